"""The out-of-memory remedy by mechanism, held to numbers measured on a real card."""

from __future__ import annotations

import msgspec
import pytest

from agent.model import Action, ActionState, Change, Evidence, Mechanism, MemoryFacts, Mode, OccupancyFacts
from agent.remediate import advise, plan
from tests.repairs.world import (
    GIB,
    H200,
    MIB,
    MODES,
    NEIGHBOUR_OOM,
    OWN_OOM,
    POOL,
    card,
    cause,
    known,
    situation,
)

FRAGMENTED = cause("oom-serving", mechanism=Mechanism.FRAGMENTATION, facts=OWN_OOM)
BATCH = cause("oom-serving", mechanism=Mechanism.BATCH, facts=OWN_OOM)


def off(*actions: str) -> dict[str, Mode]:
    return {**MODES, **dict.fromkeys(actions, Mode.OFF)}


def step(action: str, state: ActionState = ActionState.FAILED, change: str = "x") -> Action:
    at = "2026-01-02T00:00:00.000Z"
    return Action(
        id="a-1",
        incident="i-1",
        action=action,
        change=change,
        mode=Mode.AUTO,
        state=state,
        created_at=at,
        started_at=at,
    )


def test_reserve_that_covers_the_request_is_cured_by_the_allocator_at_the_same_batch():
    first = plan(FRAGMENTED, situation())[0]
    assert first.action == "oom-expandable-segments"
    assert first.delta == Change(env={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})
    text = "\n".join(first.why)
    assert "reserve 1.76 GiB >= request 1.00 GiB" in text and "887.12 MiB" in text


def test_after_the_allocator_the_batch_is_halved_and_the_pool_held():
    second = plan(FRAGMENTED, situation())[1]
    assert second.action == "oom-reduce-batch"
    assert dict(second.delta.flags) == {
        "--max-num-seqs": "512",
        "--max-num-batched-tokens": "32768",
        "--kv-cache-memory-bytes": str(POOL),
    }
    text = "\n".join(second.why)
    assert "max-num-seqs 1024 (log line 7) -> 512" in text
    assert "130.68 GiB (log line 28)" in text


def test_a_plain_restart_comes_last():
    assert [it.action for it in plan(FRAGMENTED, situation())] == [
        "oom-expandable-segments",
        "oom-reduce-batch",
        "restart",
    ]


@pytest.mark.parametrize(
    ("fields", "settings"),
    [
        ({"argv": ("vllm", "serve", "m", "--enable-sleep-mode")}, H200),
        ({"argv": ("vllm", "serve", "m", "--kv-transfer-config={}")}, H200),
        ({}, msgspec.structs.replace(H200, kv_connector=known("LMCacheConnector"))),
        ({"env": {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64,expandable_segments:True"}}, H200),
        ({"env": {"PYTORCH_ALLOC_CONF": "expandable_segments: true"}}, H200),
        ({"overrides": Change(env={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})}, H200),
        ({"vllm_version": "0.32.0+cpu"}, H200),
    ],
)
def test_expandable_segments_are_not_offered_where_refused_or_in_force(fields, settings):
    assert "oom-expandable-segments" not in [it.action for it in plan(FRAGMENTED, situation(settings, **fields))]


def test_the_operators_other_allocator_settings_stay():
    env = {
        "PYTORCH_ALLOC_CONF": "roundup_power2_divisions:[256:1,512:2],expandable_segments:False,max_split_size_mb:64"
    }
    first = plan(FRAGMENTED, situation(env=env))[0]
    wanted = "roundup_power2_divisions:[256:1,512:2],max_split_size_mb:64,expandable_segments:True"
    assert first.delta.env == {"PYTORCH_ALLOC_CONF": wanted}


def test_numbers_that_contradict_fragmentation_are_believed():
    small = MemoryFacts(requested_bytes=GIB, reserved_unallocated_bytes=100 * MIB)
    first = plan(cause("oom-serving", mechanism=Mechanism.FRAGMENTATION, facts=small), situation())[0]
    assert first.action == "oom-reduce-batch"


def test_without_the_pools_size_the_utilisation_goes_down():
    settings = msgspec.structs.replace(H200, kv_pool_bytes=None)
    flags = dict(plan(BATCH, situation(settings))[0].delta.flags)
    # 0.98 - (1 GiB + margin 1 % of 139.80 GiB) / 139.80 GiB = 0.9628
    assert flags["--gpu-memory-utilization"] == "0.96"
    assert "--kv-cache-memory-bytes" not in flags


def test_an_old_vllm_has_no_pool_flag():
    flags = dict(plan(BATCH, situation(vllm_version="0.9.2"))[0].delta.flags)
    assert "--kv-cache-memory-bytes" not in flags and "--gpu-memory-utilization" in flags


def test_the_cpu_build_gets_no_gpu_flags_and_says_so():
    best = plan(BATCH, situation(vllm_version="0.32.0+cpu"))[0]
    assert set(dict(best.delta.flags)) == {"--max-num-seqs", "--max-num-batched-tokens"}
    assert any("CPU build" in line for line in best.why)


def test_a_full_card_gives_up_pool_as_well():
    full = cause("oom-serving", mechanism=Mechanism.FULL, facts=OWN_OOM)
    pool = int(dict(plan(full, situation())[0].delta.flags)["--kv-cache-memory-bytes"])
    assert POOL - 3 * GIB < pool < POOL - 2 * GIB


def test_the_last_step_quarters_and_the_fifth_does_not_exist():
    previous = (step("oom-reduce-batch"), step("oom-reduce-batch", change="y"))
    third = plan(BATCH, situation(previous=previous))[0]
    assert dict(third.delta.flags)["--max-num-seqs"] == "512"
    assert int(dict(third.delta.flags)["--kv-cache-memory-bytes"]) < POOL
    last = plan(BATCH, situation(previous=(*previous, step("oom-reduce-batch", change="z"))))[0]
    assert dict(last.delta.flags)["--max-num-seqs"] == "256" and any("last step" in line for line in last.why)
    assert plan(BATCH, situation(previous=previous * 2)) == ()


def test_numbers_that_prove_half_too_much_lead_further_down_at_once():
    """In use beside the pool 8 GiB, request 16 GiB, 0.7 GiB free or reserved: 8.7 of 24 GiB fit, a share of 0.36."""
    facts = msgspec.structs.replace(
        OWN_OOM,
        requested_bytes=16 * GIB,
        allocated_bytes=POOL + 8 * GIB,
        free_bytes=GIB // 2,
        reserved_unallocated_bytes=GIB // 5,
    )
    first = plan(cause("oom-serving", mechanism=Mechanism.BATCH, facts=facts), situation())[0]
    flags = dict(first.delta.flags)
    assert (flags["--max-num-seqs"], flags["--max-num-batched-tokens"]) == ("371", "23756")
    assert any("= 0.36 of the step fits: half cannot hold" in line for line in first.why)


def test_a_share_that_is_nearly_half_is_half():
    """In use beside the pool 8 GiB, request 9.5 GiB, 0.7 GiB free or reserved: 8.7 of 17.5 GiB, a share of 0.497."""
    facts = msgspec.structs.replace(
        OWN_OOM,
        requested_bytes=19 * GIB // 2,
        allocated_bytes=POOL + 8 * GIB,
        free_bytes=GIB // 2,
        reserved_unallocated_bytes=GIB // 5,
    )
    first = plan(cause("oom-serving", mechanism=Mechanism.BATCH, facts=facts), situation())[0]
    flags = dict(first.delta.flags)
    assert (flags["--max-num-seqs"], flags["--max-num-batched-tokens"]) == ("512", "32768")


def test_weights_that_the_log_states_are_no_activations():
    """12 GiB beside the pool, 8 of them weights: 4 GiB of activations, and (4 + 0.7) of (4 + 8) GiB fit."""
    facts = msgspec.structs.replace(
        OWN_OOM,
        requested_bytes=8 * GIB,
        allocated_bytes=POOL + 12 * GIB,
        free_bytes=GIB // 2,
        reserved_unallocated_bytes=GIB // 5,
    )
    full = cause("oom-serving", mechanism=Mechanism.BATCH, facts=facts)
    loaded = msgspec.structs.replace(H200, weights_bytes=known(8 * GIB))
    assert dict(plan(full, situation())[0].delta.flags)["--max-num-seqs"] == "512"
    assert dict(plan(full, situation(loaded))[0].delta.flags)["--max-num-seqs"] == "401"


@pytest.mark.parametrize("allocated", [None, POOL, POOL - GIB])
def test_without_usable_numbers_the_batch_is_halved(allocated):
    facts = msgspec.structs.replace(OWN_OOM, requested_bytes=64 * GIB, allocated_bytes=allocated)
    first = plan(cause("oom-serving", mechanism=Mechanism.BATCH, facts=facts), situation())[0]
    assert dict(first.delta.flags)["--max-num-seqs"] == "512"


def test_one_step_never_goes_below_a_quarter_by_the_numbers():
    facts = msgspec.structs.replace(
        OWN_OOM, requested_bytes=100 * GIB, allocated_bytes=POOL + GIB, free_bytes=0, reserved_unallocated_bytes=0
    )
    first = plan(cause("oom-serving", mechanism=Mechanism.BATCH, facts=facts), situation())[0]
    assert dict(first.delta.flags)["--max-num-seqs"] == "256"


def test_rocm_is_said_to_be_not_handled():
    signs = (
        situation(vllm_version="0.25.1+rocm700"),
        situation(env={"PYTORCH_HIP_ALLOC_CONF": "max_split_size_mb:64"}),
    )
    for here in signs:
        assert plan(FRAGMENTED, here)[0].action == "oom-reduce-batch"
        assert "PYTORCH_HIP_ALLOC_CONF is not handled" in advise(FRAGMENTED, here)[0]
    words = msgspec.structs.replace(
        FRAGMENTED,
        finding=msgspec.structs.replace(
            FRAGMENTED.finding, evidence=(Evidence(source="log", where="log:1", text="HIP out of memory. Tried"),)
        ),
    )
    assert plan(words, situation())[0].action == "oom-reduce-batch"


def test_the_step_that_died_is_halved_when_the_engine_tells_its_size():
    seen = situation(running_requests=known(64, "dump"), scheduled_tokens=known(64, "dump"))
    flags = dict(plan(BATCH, seen)[0].delta.flags)
    assert flags["--max-num-seqs"] == "32" and flags["--max-num-batched-tokens"] == "32768"
    seen = situation(running_requests=known(2, "dump"), scheduled_tokens=known(16000, "dump"))
    flags = dict(plan(BATCH, seen)[0].delta.flags)
    assert flags["--max-num-seqs"] == "512" and flags["--max-num-batched-tokens"] == "8000"


def test_warm_up_goes_down_to_256_sequences_with_the_utilisation():
    warm = cause("oom-warmup", mechanism=Mechanism.BATCH, facts=OWN_OOM)
    flags = dict(plan(warm, situation(start_failed=True))[0].delta.flags)
    assert flags["--max-num-seqs"] == "256" and flags["--gpu-memory-utilization"] == "0.96"


def test_graphs_get_room_before_the_batch_is_touched_and_eager_needs_approval():
    graphs = cause("oom-cudagraph", mechanism=Mechanism.FULL, facts=OWN_OOM)
    plans = plan(graphs, situation(start_failed=True))
    assert dict(plans[0].delta.flags) == {"--gpu-memory-utilization": "0.96"}
    assert (plans[1].action, plans[1].mode) == ("enforce-eager", Mode.APPROVE)
    later = plan(graphs, situation(start_failed=True, previous=(step("oom-reduce-batch"),)))[0]
    assert "--max-num-seqs" in dict(later.delta.flags)


def test_weights_that_do_not_fit_have_no_automatic_remedy():
    load = cause("oom-load", mechanism=Mechanism.FULL, facts=OWN_OOM)
    assert plan(load, situation(start_failed=True)) == ()


def test_a_command_that_takes_no_flags_gets_environment_remedies_only():
    assert [it.action for it in plan(FRAGMENTED, situation(can_append_flags=False))] == [
        "oom-expandable-segments",
        "restart",
    ]


# -- neighbours -----------------------------------------------------------------------------------


NEIGHBOUR = cause("oom-serving", mechanism=Mechanism.NEIGHBOUR, facts=NEIGHBOUR_OOM)
BESIDE = msgspec.structs.replace(
    H200, gpu_memory_utilization=known(0.3), kv_pool_bytes=known(int(35.62 * GIB), "log line 28")
)


def test_a_neighbour_is_fitted_and_named_and_the_batch_stays():
    first = plan(NEIGHBOUR, situation(BESIDE, gpus=(card(40.44),)))[0]
    # (40.44 - 3 % of 139.80) / 139.80 = 0.259
    assert (first.action, first.delta.flags) == ("oom-fit-neighbour", (("--gpu-memory-utilization", "0.25"),))
    text = "\n".join(first.why)
    assert "process 3095 holds 99.36 GiB" in text and "margin 4.19 GiB" in text


def test_no_plan_for_a_neighbour_begins_with_a_smaller_batch():
    for gpus in ((card(40.44),), (card(1.0),), (card(139.0),), None, ()):
        for fault in ("oom-serving", "oom-load", "oom-warmup", "oom-cudagraph"):
            foreign = cause(fault, mechanism=Mechanism.NEIGHBOUR, facts=NEIGHBOUR_OOM)
            for it in plan(foreign, situation(BESIDE, gpus=gpus)):
                assert "--max-num-seqs" not in dict(it.delta.flags), (gpus, fault, it)


def test_too_little_room_is_waited_for_and_not_fitted():
    actions = [it.action for it in plan(NEIGHBOUR, situation(BESIDE, gpus=(card(8.0),)))]
    assert actions == ["wait-for-memory", "restart"]


def test_one_full_request_must_fit_by_the_pools_tokens():
    tokens = msgspec.structs.replace(
        BESIDE, kv_pool_tokens=known(1_167_056), max_model_len=known(1_100_000), chunked_prefill=known(True)
    )
    assert "oom-fit-neighbour" not in [it.action for it in plan(NEIGHBOUR, situation(tokens, gpus=(card(40.44),)))]


def test_a_neighbour_that_is_gone_leaves_nothing_to_fit():
    assert plan(NEIGHBOUR, situation(BESIDE, gpus=(card(139.0),)))[0].action == "wait-for-memory"


def test_the_precondition_of_a_fit_is_the_memory_on_the_card():
    first = plan(NEIGHBOUR, situation(BESIDE, gpus=(card(40.44),)))[0]
    assert first.check(situation(BESIDE, gpus=(card(40.44),))) is None
    assert "is needed" in (first.check(situation(BESIDE, gpus=(card(10.0),))) or "")


def test_a_fit_that_did_not_hold_is_followed_by_a_fit_with_a_smaller_batch():
    second = plan(NEIGHBOUR, situation(BESIDE, gpus=(card(38.0),), previous=(step("oom-fit-neighbour"),)))[0]
    assert second.action == "oom-fit-neighbour"
    assert {"--gpu-memory-utilization", "--max-num-seqs"} <= set(dict(second.delta.flags))


def test_every_card_of_a_tensor_parallel_server_counts():
    pair = msgspec.structs.replace(BESIDE, tensor_parallel_size=known(2))
    first = plan(NEIGHBOUR, situation(pair, gpus=(card(40.44), card(36.0, index=1))))[0]
    assert dict(first.delta.flags)["--gpu-memory-utilization"] == "0.22"


def test_an_occupied_card_is_waited_for_first():
    facts = OccupancyFacts(
        device="cuda:0",
        free_bytes=20 * GIB,
        total_bytes=80 * GIB,
        utilization=0.9,
        requested_bytes=72 * GIB,
    )
    occupied = cause("gpu-memory-occupied", facts=facts)
    settings = msgspec.structs.replace(H200, gpu_memory_utilization=None, kv_pool_bytes=None)
    plans = plan(occupied, situation(settings, start_failed=True, gpus=(card(60.0, 80.0),)))
    assert [it.action for it in plans] == ["wait-for-memory", "oom-fit-neighbour"]
    assert plans[0].needed_bytes == 72 * GIB
    assert dict(plans[1].delta.flags) == {"--gpu-memory-utilization": "0.72"}


def test_leftovers_of_our_own_are_ended_first():
    orphan = cause("gpu-memory-occupied", mechanism=Mechanism.ORPHAN, facts=OccupancyFacts(requested_bytes=72 * GIB))
    assert plan(orphan, situation(start_failed=True, gpus=(card(60.0, 80.0),)))[0].action == "end-orphans"
