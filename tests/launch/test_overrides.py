"""Overrides: what may change, what is refused, when a set is dropped."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from agent.errors import LauncherError
from agent.launch import ALLOWED_ENV, ALLOWED_FLAGS
from agent.launch.allow import check_env, check_flag, merge_allocator, root_only_problem
from agent.launch.command import can_append_flags, command_sha256
from agent.launch.overrides import Key, Overrides, build, load
from tests.launch.harness import FAKE, Factory

ARGV = ["vllm", "serve", "MODEL", "--max-num-seqs", "256", "--enforce-eager", "--kv-cache-memory-bytes=5"]
KEY = Key(command_sha256(ARGV), "0.32.0", ("GPU-1",))


def made(args: dict[str, object], argv: list[str] = ARGV, env: dict[str, str] | None = None) -> Overrides:
    return build(args, KEY, argv, env or {}, "2026-01-01T00:00:00.000Z")


def refusal(args: dict[str, object], argv: list[str] = ARGV) -> LauncherError:
    with pytest.raises(LauncherError) as caught:
        made(args, argv)
    assert caught.value.remedy
    return caught.value


def test_flags_go_to_the_end_so_that_the_last_one_wins() -> None:
    overrides = made({"flags": [["--max-num-seqs", "32"], ["--gpu-memory-utilization", 0.8]]})
    assert overrides.apply_argv(ARGV) == [*ARGV, "--max-num-seqs", "32", "--gpu-memory-utilization", "0.8"]


def test_an_operators_flag_can_be_unset_with_its_value() -> None:
    overrides = made({"unset_flags": ["--enforce-eager", "--kv-cache-memory-bytes", "--max-num-seqs"]})
    assert overrides.apply_argv(ARGV) == ["vllm", "serve", "MODEL"]


@pytest.mark.parametrize(
    "flag",
    [
        ["--tensor-parallel-size", "2"],
        ["--max-num-seqs", "0"],
        ["--max-num-seqs", "many"],
        ["--max-num-seqs", "1; rm -rf /"],
        ["--max-num-seqs", None],
        ["--max-num-seqs", True],
        ["--gpu-memory-utilization", "1.0"],
        ["--gpu-memory-utilization", "0.01"],
        ["--gpu-memory-utilization", "nan"],
        ["--enforce-eager", "yes"],
        ["--max-num-seqs=3", "4"],
        [7, 7],
    ],
)
def test_a_flag_outside_the_list_or_its_bounds_is_refused(flag: list[object]) -> None:
    error = refusal({"flags": [flag]})
    assert error.code == "refused"
    assert str(flag[0]) in error.message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LD_PRELOAD", "/lib/x.so"),
        ("PYTHONPATH", "/tmp"),
        ("PATH", "/tmp"),
        ("VLLM_USE_DEEP_GEMM", "2"),
        ("VLLM_CPU_KVCACHE_SPACE", "-1"),
        ("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync"),
        ("PYTORCH_CUDA_ALLOC_CONF", ""),
        ("TRITON_PTXAS_PATH", "ptxas"),
        ("TRITON_PTXAS_PATH", "/no/such/file"),
        ("TRITON_PTXAS_PATH", "/etc/passwd"),
        ("CUDA_HOME", "/tmp"),
        ("TRITON_PTXAS_PATH", 3),
    ],
)
def test_a_variable_outside_the_list_or_its_bounds_is_refused(name: str, value: object) -> None:
    error = refusal({"env": {name: value}})
    assert error.code == "refused"
    assert name in error.message


def test_a_program_in_a_folder_that_others_may_write_is_refused(tmp_path: Path) -> None:
    program = tmp_path / "ptxas"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    # /tmp on the way is world-writable, whoever owns the file.
    assert refusal({"env": {"TRITON_PTXAS_PATH": str(program)}}).code == "refused"


def test_a_program_that_root_alone_can_write_is_taken() -> None:
    path = str(Path("/usr/bin/env"))
    assert root_only_problem(path) is None
    assert check_env("TRITON_PTXAS_PATH", path, {}) == ("TRITON_PTXAS_PATH", path)


def test_dots_and_links_do_not_lead_out_of_roots_folders(tmp_path: Path) -> None:
    assert root_only_problem("/usr/bin/../.." + str(tmp_path)) is not None
    link = tmp_path / "link"
    link.symlink_to("/usr/bin/env")
    assert root_only_problem(str(link)) is not None


def test_allocator_settings_join_those_of_the_operator() -> None:
    env = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64,roundup_power2_divisions:[256:1,512:2]"}
    overrides = made({"env": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}}, env=env)
    merged = overrides.apply_env(env)["PYTORCH_CUDA_ALLOC_CONF"]
    assert merged == env["PYTORCH_CUDA_ALLOC_CONF"] + ",expandable_segments:True"
    assert (
        merge_allocator("expandable_segments:False,a:1", "expandable_segments:True") == "a:1,expandable_segments:True"
    )


def test_null_unsets_a_variable() -> None:
    assert made({"env": {"TRITON_PTXAS_PATH": None}}).apply_env({"TRITON_PTXAS_PATH": "/x", "A": "1"}) == {"A": "1"}


def test_every_listed_flag_and_variable_has_a_working_value() -> None:
    good = {"int": "64", "float": "0.5", "switch": None}
    for flag in ALLOWED_FLAGS.values():
        assert check_flag(flag.name, good[flag.kind])[0] == flag.name
    values = {
        "allocator": "expandable_segments:True",
        "program": "/usr/bin/env",
        "folder": "/usr",
        "choice": "0",
        "int": "4",
    }
    for variable in ALLOWED_ENV.values():
        assert check_env(variable.name, values[variable.kind], {}) == (variable.name, values[variable.kind])


@pytest.mark.parametrize(
    ("argv", "appendable"),
    [
        (["vllm", "serve", "M"], True),
        (["/opt/venv/bin/vllm", "serve", "M"], True),
        (["env", "A=1", "nice", "-n", "5", "vllm", "serve", "M"], True),
        (["python3", "-m", "vllm.entrypoints.openai.api_server"], True),
        (["python3", "-m", "vllm.entrypoints.cli.main", "serve", "M"], True),
        (["agent", "sim"], True),
        (["python", "-m", "agent.sim"], True),
        (["bash", "-c", "vllm serve M"], False),
        (["/bin/sh", "-ec", "exec vllm serve M"], False),
        (["./start.sh"], False),
        (["vllm", "bench"], False),
    ],
)
def test_flags_are_appended_only_where_vllm_reads_them(argv: list[str], appendable: bool) -> None:
    assert can_append_flags(argv) is appendable
    if not appendable:
        assert refusal({"flags": [["--max-num-seqs", "2"]]}, argv).code == "not-appendable"
        assert made({"env": {"VLLM_USE_DEEP_GEMM": "0"}}, argv).env == (("VLLM_USE_DEEP_GEMM", "0"),)


@pytest.mark.parametrize(
    ("other", "dropped"),
    [
        (Key("0" * 64, "0.32.0", ("GPU-1",)), "command"),
        (Key(KEY.command_sha256, "0.33.0", ("GPU-1",)), "0.33.0"),
        (Key(KEY.command_sha256, "0.32.0", ("GPU-2",)), "GPUs"),
        (Key(KEY.command_sha256, None, ("GPU-1",)), None),
        (Key(KEY.command_sha256, "0.32.0", None), None),
    ],
)
def test_a_set_belongs_to_its_key(tmp_path: Path, other: Key, dropped: str | None) -> None:
    path = tmp_path / "overrides.json"
    path.write_text(json.dumps(made({"flags": [["--max-num-seqs", "32"]], "incident": "i-1"}).to_json()))
    found, notice = load(path, other, ARGV, {})
    if dropped is None:
        assert found is not None and found.flags == (("--max-num-seqs", "32"),) and notice is None
    else:
        assert found is None and notice is not None and dropped in notice
        assert not path.exists() and (tmp_path / "overrides.json.rejected").exists()


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[]", b"null", b'{"v":2}', b"\xff\xfe", b'{"v":1,"key":{}}', b"[" * 60000,
        b'{"v":1,"key":{"command_sha256":"x","gpus":7}}', b"x" * 70000,
        b'{"v":1,"key":{"command_sha256":"x","vllm_version":null,"gpus":[]},"env":{"LD_PRELOAD":"/x"}}',
    ],
)  # fmt: skip
def test_a_corrupt_or_forged_file_is_kept_aside_and_said(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "overrides.json"
    path.write_bytes(content)
    found, notice = load(path, KEY, ARGV, {})
    assert found is None and notice is not None and "rejected" in notice
    assert (tmp_path / "overrides.json.rejected").read_bytes() == content


async def test_overrides_take_effect_at_the_next_start_and_are_gone_when_cleared(
    launch: Factory, vllm_like: list[str]
) -> None:
    launched = launch(command=vllm_like)
    first = await launched.event("started")
    answer = await launched.client.call(
        "set-overrides", flags=[["--max-num-seqs", "32"]], env={"VLLM_USE_DEEP_GEMM": "0"}, incident="i-1"
    )
    assert isinstance(answer["overrides"], dict) and answer["overrides"]["incident"] == "i-1"
    await launched.client.call("restart", reason="apply")
    second = await launched.event("started", after=int(str(first["seq"])))
    status = await launched.status()
    assert status["effective_argv"] == [*vllm_like, "--max-num-seqs", "32"]
    assert status["operator_argv"] == vllm_like
    assert status["env_overrides"] == {"VLLM_USE_DEEP_GEMM": "0"}

    async def seen() -> bool:
        return "env VLLM_USE_DEEP_GEMM=0" in await launched.text()

    await launched.wait_for(seen)
    assert (await launched.client.call("clear-overrides")) == {"cleared": True}
    await launched.client.call("restart", reason="back")
    await launched.event("started", after=int(str(second["seq"])))
    assert (await launched.status())["effective_argv"] == vllm_like


async def test_flags_that_vllm_refuses_are_dropped_so_that_the_server_comes_back(
    launch: Factory, vllm_like: list[str]
) -> None:
    launched = launch(command=[*vllm_like, "--refuses", "--max-num-active-seqs"])
    await launched.event("started")
    await launched.client.call("set-overrides", flags=[["--max-num-active-seqs", "4"]])
    await launched.client.call("restart", reason="apply")
    rejected = await launched.event("overrides-rejected")
    await launched.event("started", after=int(str(rejected["seq"])))
    status = await launched.status()
    assert status["overrides"] is None and "exit 2" in str(status["overrides_notice"])
    assert status["child_pid"]


async def test_a_corrupt_file_does_not_keep_the_server_down(launch: Factory, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "overrides.json").write_text("{nonsense")
    (run_dir / "starts.json").write_text("{nonsense")
    launched = launch(run_dir=run_dir, command=[sys.executable, str(FAKE)])
    await launched.event("overrides-rejected")
    notice = await launched.event("notice")
    assert "starts.json" in str(notice["text"])
    assert (await launched.status())["child_pid"]
    assert (run_dir / "overrides.json.rejected").exists() and (run_dir / "starts.json.rejected").exists()
