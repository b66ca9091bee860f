"""Assembler, cache and restart plans, and what is said where nothing may be done."""

from __future__ import annotations

import msgspec
import pytest

from agent.model import AssemblerFacts, CacheFacts, Mechanism, Mode, PortFacts, Retry, State
from agent.remediate import AssemblerCandidate, advise, plan
from tests.repairs.world import GIB, H200, OWN_OOM, card, cause, known, situation

CLASSIC, BLACKWELL = "TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH"
CUDA13 = AssemblerCandidate(path="/usr/local/cuda-13/bin/ptxas", version="13.0", root_owned=True, assembles=True)
CUDA12 = AssemblerCandidate(path="/usr/local/cuda-12/bin/ptxas", version="12.9", root_owned=True, assembles=True)
OLD = AssemblerCandidate(
    path="/opt/old/ptxas", version="12.0", root_owned=True, assembles=False, error="sm_90a unknown"
)
LOOSE = AssemblerCandidate(path="/home/u/ptxas", version="14.0", root_owned=False, assembles=True)
BUNDLED = AssemblerCandidate(path="/v/triton/backends/nvidia/bin/ptxas", version="12.9", assembles=True)
BUNDLED_B = AssemblerCandidate(path="/v/triton/backends/nvidia/bin/ptxas-blackwell", version="13.4", assembles=True)


def refused(arch: str, path: str | None = None):
    return cause("triton-ptxas", facts=AssemblerFacts(arch=arch, path=path))


@pytest.mark.parametrize(
    ("triton", "arch", "names"),
    [
        ("3.3.1", "sm_103a", [CLASSIC]),
        ("3.5.0", "sm_121a", [CLASSIC]),
        ("3.6.0", "sm_90a", [CLASSIC]),
        ("3.6.0", "sm_100a", [BLACKWELL]),
        ("3.8.1", "sm_103a", [BLACKWELL]),
        ("3.8.1", "sm_89", [CLASSIC]),
        ("3.9.0", "sm_90a", [BLACKWELL]),
        ("3.9.0", "sm_89", [CLASSIC]),
        (None, "sm_90a", [CLASSIC, BLACKWELL]),
        ("3.9.0", None, [CLASSIC, BLACKWELL]),
    ],
)
def test_the_variable_depends_on_triton_and_architecture(triton, arch, names):
    now = situation(start_failed=True, triton_version=triton, assemblers=(CUDA13,))
    first = plan(cause("triton-ptxas", facts=AssemblerFacts(arch=arch)), now)[0]
    assert first.delta.env == dict.fromkeys(names, CUDA13.path)


def test_the_installed_triton_is_believed_over_the_table():
    now = situation(triton_version="3.6.0", assembler_variable=BLACKWELL, assemblers=(CUDA13,), start_failed=True)
    assert plan(refused("sm_90a"), now)[0].delta.env == {BLACKWELL: CUDA13.path}


def test_the_operators_wrong_variable_is_unset_first_when_the_bundled_one_assembles():
    env = {CLASSIC: OLD.path, BLACKWELL: OLD.path}
    now = situation(
        env=env,
        triton_version="3.6.0",
        assemblers=(OLD, CUDA12, CUDA13, BUNDLED, BUNDLED_B),
        start_failed=True,
    )
    plans = plan(refused("sm_90a", OLD.path), now)
    assert [it.delta.env for it in plans] == [
        {CLASSIC: None, BLACKWELL: None},
        {CLASSIC: CUDA13.path},
        {CLASSIC: CUDA12.path},
    ]


def test_the_bundled_assembler_of_the_other_variable_does_not_count():
    now = situation(env={BLACKWELL: OLD.path}, triton_version="3.9.0", assemblers=(BUNDLED, OLD), start_failed=True)
    assert plan(refused("sm_90a", OLD.path), now) == ()


def test_only_proven_root_owned_assemblers_are_set():
    untried = AssemblerCandidate(path="/usr/local/cuda-14/bin/ptxas", root_owned=True, assembles=None)
    now = situation(triton_version="3.6.0", assemblers=(LOOSE, OLD, untried), start_failed=True)
    assert plan(refused("sm_90a"), now) == ()
    assert "sm_90a unknown" in advise(refused("sm_90a"), now)[0]


def test_an_assembler_that_vanished_or_changed_is_not_set():
    now = situation(triton_version="3.6.0", assemblers=(CUDA13,), start_failed=True)
    check = plan(refused("sm_90a"), now)[0].check
    assert check(now) is None
    assert "gone" in (check(situation(assemblers=())) or "")
    loose = AssemblerCandidate(path=CUDA13.path, assembles=True, root_owned=False)
    assert "root-owned" in (check(situation(assemblers=(loose,))) or "")


# -- cache ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("printed", "set_to"), [(384, "384"), (50688, "50688"), (395, "384"), (16, "16")])
def test_the_length_that_vllm_prints_is_set_by_approval(printed, set_to):
    facts = CacheFacts(max_model_len=131072, needed_bytes=4 * GIB, available_bytes=GIB, estimated_max_model_len=printed)
    [only] = plan(cause("kv-cache-too-small", facts=facts), situation(start_failed=True))
    assert only.delta.flags == (("--max-model-len", set_to),)
    assert only.mode is Mode.APPROVE
    assert "4.00 GiB" in only.why[0]


@pytest.mark.parametrize("printed", [None, 0, 15, 131072, 200000])
def test_without_a_usable_length_there_is_only_advice(printed):
    facts = CacheFacts(max_model_len=131072, estimated_max_model_len=printed)
    none = cause("kv-cache-too-small", facts=facts)
    assert plan(none, situation(start_failed=True)) == ()
    assert "--max-model-len" in advise(none, situation())[0]


def test_no_pool_at_all_raises_the_utilisation_only_with_room_and_a_smaller_batch():
    none = cause("kv-cache-none")
    settings = H200
    plans = plan(none, situation(settings, start_failed=True, gpus=(card(139.0),)))
    assert [it.action for it in plans] == ["oom-reduce-batch"]  # 0.98 leaves no room to raise
    low = situation(
        msgspec.structs.replace(settings, gpu_memory_utilization=known(0.5)),
        start_failed=True,
        gpus=(card(139.0),),
    )
    raised = plan(none, low)[1]
    assert raised.action == "kv-raise-utilization" and raised.mode is Mode.APPROVE
    flags = dict(raised.delta.flags)
    assert 0.5 < float(flags["--gpu-memory-utilization"]) <= 0.97 and flags["--max-num-seqs"] == "256"


# -- restart and advice ---------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["port-in-use", "config-invalid", "model-not-found"])
def test_what_only_a_person_can_change_has_no_plan_but_advice(fault):
    for retry in Retry:
        assert plan(cause(fault, retry=retry, facts=PortFacts(port=8000)), situation(start_failed=True)) == ()
    assert advise(cause(fault), situation())


@pytest.mark.parametrize("fault", ["engine-dead", "engine-hang", "host-oom-kill", "something-new"])
def test_other_faults_are_restarted(fault):
    [only] = plan(cause(fault, retry=Retry.MAY), situation())
    assert only.action == "restart" and only.delta == situation().overrides


def test_a_start_that_fails_again_unchanged_is_not_restarted():
    assert plan(cause("something-new", retry=Retry.NEEDS_CHANGE), situation(start_failed=True)) == ()
    assert plan(cause("something-new", retry=Retry.NEEDS_CHANGE), situation(start_failed=False)) != ()


def test_a_restart_is_not_done_to_a_server_that_a_person_stopped():
    [only] = plan(cause("engine-dead", retry=Retry.MAY), situation())
    assert only.check(situation(state=State.STOPPED)) is not None


def test_several_nodes_are_said_in_the_advice():
    one_of_two = situation(msgspec.structs.replace(H200, nnodes=known(2)))
    full = cause("oom-serving", mechanism=Mechanism.BATCH, facts=OWN_OOM)
    assert "2 nodes" in advise(full, one_of_two)[0]


def test_every_plan_says_what_it_changes_why_costs_undo_and_proofs():
    causes = [
        cause("oom-serving", mechanism=Mechanism.FRAGMENTATION, facts=OWN_OOM),
        cause("engine-dead", retry=Retry.MAY),
        refused("sm_90a"),
        cause("gpu-memory-occupied"),
    ]
    now = situation(gpus=(card(30.0),), assemblers=(CUDA13,), triton_version="3.6.0")
    for it in (it for one in causes for it in plan(one, now)):
        assert it.change and it.why and it.cost and it.undo and it.precondition
        assert [proof.kind for proof in it.proofs] == [
            "serving",
            "request-answered",
            "metric-advanced",
            "log-line-absent",
        ]


def test_a_bundled_program_that_root_owns_may_be_named_where_no_variable_is_to_blame():
    """torch sets the variable itself when it ships a ptxas, so an unset one proves nothing."""
    own = AssemblerCandidate(path=BUNDLED.path, version="12.9", root_owned=True, assembles=True)
    now = situation(triton_version="3.6.0", assemblers=(own,), start_failed=True)
    assert [it.delta.env for it in plan(refused("sm_90a"), now)] == [{CLASSIC: BUNDLED.path}]
