"""What is read around the server: its address, versions, cards, assemblers, processes, cgroup, secrets."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from agent.launch import redact, redact_argv, server_address
from agent.launch.gpu import parse, visible
from agent.launch.procfs import cgroup_memory
from agent.launch.ptxas import Arch, parse_arch, variable_for
from agent.launch.versions import find_python, package_version
from tests.launch.harness import Factory, free_port

MIB = 1 << 20
CARDS = (
    "0, GPU-aaa, NVIDIA H200, 143771, 1024, 142747, 9.0\n"
    "1, GPU-bbb, NVIDIA H200, 143771, [N/A], [N/A], [N/A]\nnonsense\n"
)
APPS = "GPU-aaa, 3095, 512, /usr/bin/python3, --with, commas\nGPU-aaa, 7, [N/A], x\nGPU-bbb, [N/A], 1, y\n"


@pytest.mark.parametrize(
    ("argv", "url"),
    [
        (["vllm", "serve", "M"], "http://127.0.0.1:8000"),
        (["vllm", "serve", "M", "--port", "1", "--port=9000", "--host", "0.0.0.0"], "http://127.0.0.1:9000"),
        (["vllm", "serve", "M", "--host", "::", "--ssl-certfile", "c.pem"], "https://[::1]:8000"),
        (["vllm", "serve", "M", "--uds", "/run/v.sock"], "unix:/run/v.sock"),
        (["vllm", "serve", "M", "--port", "many"], "http://127.0.0.1:8000"),
        (["bash", "-c", "exec vllm serve M --port 8123 --host 10.0.0.7"], "http://10.0.0.7:8123"),
        (["bash", "-lc", "vllm serve 'M --port=77"], "http://127.0.0.1:77"),
        ([], "http://127.0.0.1:8000"),
    ],
)
def test_the_address_is_read_from_the_command(argv: list[str], url: str) -> None:
    assert server_address(argv).url == url


def test_the_command_line_wins_over_vllms_own_yaml(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("model: M\nport: 8111  # ours\nhost: '0.0.0.0'\n")
    assert server_address(["vllm", "serve", "--config", str(config)]).port == 8111
    assert server_address(["vllm", "serve", "--config", str(config), "--port", "5"]).port == 5


def test_secrets_do_not_leave() -> None:
    argv = ["vllm", "serve", "M", "--api-key", "one", "two", "--port", "1", "--hf-token=abc"]
    assert redact_argv(argv) == [
        "vllm",
        "serve",
        "M",
        "--api-key",
        "***",
        "***",
        "--port",
        "1",
        "--hf-token=***",
    ]
    for text in (
        "Authorization: Bearer abcdef123",
        "--api-key s3cretvalue",
        "HF_TOKEN=hf_abcdefghijkl",
        '"password": "hunter2hunter2"',
        "http://user:hunter2hunter2@host/",
        "xoxb-1234567890-abcdef",
    ):
        shown = redact(text)
        assert "***" in shown
        for secret in ("abcdef123", "s3cretvalue", "hf_abc", "hunter2", "1234567890"):
            assert secret not in shown, shown
    harmless = "max_tokens=512, num_tokens: 1000000, token_budget=8192"
    assert redact(harmless) == harmless


def test_nvidia_smi_is_read_with_its_gaps() -> None:
    first, second = parse(CARDS, APPS)
    assert (first.uuid, first.total_bytes, first.free_bytes) == ("GPU-aaa", 143771 * MIB, 142747 * MIB)
    assert first.compute_capability == "9.0"
    assert [(p.pid, p.used_bytes) for p in first.processes] == [(3095, 512 * MIB), (7, None)]
    assert second.used_bytes is None and second.compute_capability is None and second.processes == ()
    assert parse("No devices were found\n", "") == ()


@pytest.mark.parametrize(
    ("setting", "uuids"),
    [
        (None, ["GPU-aaa", "GPU-bbb"]), ("1", ["GPU-bbb"]), ("1,0", ["GPU-bbb", "GPU-aaa"]),
        ("GPU-b", ["GPU-bbb"]), ("", []), ("-1,0", []), ("0,9,1", ["GPU-aaa"]),
    ],
)  # fmt: skip
def test_visible_devices_limit_the_cards(setting: str | None, uuids: list[str]) -> None:
    env = {} if setting is None else {"CUDA_VISIBLE_DEVICES": setting}
    assert [gpu.uuid for gpu in visible(parse(CARDS, APPS), env)] == uuids


@pytest.mark.parametrize(
    ("arch", "triton", "variable"),
    [
        (90, "3.5.1", "TRITON_PTXAS_PATH"), (103, "3.5.0", "TRITON_PTXAS_PATH"),
        (90, "3.6.0", "TRITON_PTXAS_PATH"), (100, "3.6.0", "TRITON_PTXAS_BLACKWELL_PATH"),
        (90, "3.8.1", "TRITON_PTXAS_PATH"), (90, "3.9.0", "TRITON_PTXAS_BLACKWELL_PATH"),
        (89, "3.9.0", "TRITON_PTXAS_PATH"), (90, None, None),
    ],
)  # fmt: skip
def test_the_variable_depends_on_triton(arch: int, triton: str | None, variable: str | None) -> None:
    assert variable_for(Arch(arch), triton, None) == variable


def test_the_installed_triton_wins_over_the_table() -> None:
    source = (
        "def get_ptxas(arch):\n    if arch < 95:\n        return knobs.nvidia.ptxas\n"
        "    return knobs.nvidia.ptxas_blackwell\n"
    )
    assert variable_for(Arch(90), "3.9.0", source) == "TRITON_PTXAS_PATH"
    assert variable_for(Arch(100), "3.6.0", source) == "TRITON_PTXAS_BLACKWELL_PATH"
    inline = "return knobs.nvidia.ptxas_blackwell if arch >= 100 else knobs.nvidia.ptxas"
    assert variable_for(Arch(90), None, inline) == "TRITON_PTXAS_PATH"
    assert variable_for(Arch(103), None, "def get_ptxas(): return knobs.nvidia.ptxas") == "TRITON_PTXAS_PATH"


def test_architectures_are_read_in_every_spelling() -> None:
    spellings = ("9.0", 90, "sm_90a", "10.3", "8.9", "x", "7")
    targets = [getattr(parse_arch(text), "target", None) for text in spellings]
    assert targets == ["sm_90a", "sm_90a", "sm_90a", "sm_103a", "sm_89", None, None]


def test_versions_are_read_without_an_import(tmp_path: Path) -> None:
    (tmp_path / "vllm-0.25.1.dist-info").mkdir()
    (tmp_path / "vllm-0.25.1.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: vllm\nVersion: 0.25.1+cu\n"
    )
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "version.py").write_text("__all__ = []\n__version__ = '2.11.0+cu130'\n")
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton" / "__init__.py").write_text('"""doc"""\n__version__ = "3.6.0"\n')
    paths = (tmp_path,)
    assert package_version("vllm", paths) == "0.25.1+cu"
    assert package_version("torch", paths) == "2.11.0+cu130"
    assert package_version("triton", paths) == "3.6.0"
    assert package_version("vllm", (tmp_path / "torch",)) is None


def test_the_interpreter_is_found_from_the_script(tmp_path: Path) -> None:
    script = tmp_path / "vllm"
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    for head in (f"#!{sys.executable}\n", f"#!/bin/sh\n'''exec' {sys.executable} \"$0\" \"$@\"\n' '''\n"):
        script.write_text(head)
        script.chmod(0o755)
        assert find_python(["vllm", "serve", "M"], env) == (sys.executable, None)
    assert find_python([sys.executable, "-m", "vllm.entrypoints.cli.main"], env) == (sys.executable, None)
    assert find_python(["bash", "-c", "vllm serve M"], env) == (sys.executable, None)
    script.write_bytes(b"\x7fELF\x00")
    assert find_python(["vllm"], env)[0] is None
    assert "neither" in str(find_python(["./start.sh"], env)[1])


def test_the_cgroup_is_read_in_both_versions(tmp_path: Path) -> None:
    proc, mount = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (mount / "memory").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text("4:memory:/not/visible/here\n0::/\n")
    (mount / "memory" / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    (mount / "memory" / "memory.usage_in_bytes").write_text("5\n")
    (mount / "memory" / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    first = cgroup_memory("self", proc, mount)
    assert (first.version, first.limit_bytes, first.usage_bytes, first.oom_kill) == (1, None, 5, 3)
    (proc / "self" / "cgroup").write_text("0::/pod/x\n")
    (mount / "pod" / "x").mkdir(parents=True)
    (mount / "pod" / "x" / "memory.max").write_text("1000\n")
    (mount / "pod" / "x" / "memory.current").write_text("10\n")
    (mount / "pod" / "x" / "memory.events").write_text("low 0\noom 2\noom_kill 1\noom_group_kill 9\n")
    second = cgroup_memory("self", proc, mount)
    assert (second.version, second.limit_bytes, second.usage_bytes, second.oom_kill) == (2, 1000, 10, 1)
    assert cgroup_memory("self", tmp_path / "none", mount).oom_kill is None


def fake_smi(folder: Path, used: Path) -> dict[str, str]:
    """An nvidia-smi whose used memory (MiB) stands in a file."""
    program = folder / "smi" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\ncase \"$1\" in\n*compute-apps*) echo 'GPU-aaa, 3095, 99, python3';;\n"
        f'*) u=$(cat {used}); [ "$u" = hang ] && exec sleep 60\n'
        'echo "0, GPU-aaa, NVIDIA H200, 143771, $u, 100, 9.0";;\nesac\n'
    )
    program.chmod(0o755)
    return {"PATH": f"{program.parent}:{os.environ['PATH']}"}


async def test_a_restart_waits_until_gpu_memory_is_back(launch: Factory, tmp_path: Path) -> None:
    used = tmp_path / "used"
    used.write_text("1000")
    launched = launch("--port", str(free_port()), env=fake_smi(tmp_path, used))
    ready = await launched.ready()

    async def measured() -> bool:
        return (await launched.status())["gpus"] == ["GPU-aaa"]

    await launched.wait_for(measured)
    gpu = await launched.client.call("probe", name="gpu")
    assert gpu["available"] is True and isinstance(gpu["gpus"], list)
    assert gpu["gpus"][0]["processes"] == [{"pid": 3095, "used_bytes": 99 * MIB, "name": "python3"}]
    used.write_text("100000")
    await launched.client.call("restart", reason="memory")
    after = int(str((await launched.event("exit", after=int(str(ready["seq"]))))["seq"]))
    await asyncio.sleep(0.8)
    assert (await launched.status())["child_pid"] is None, "the memory is not back"
    used.write_text("1100")
    await launched.event("started", after=after)
    used.write_text("50000")
    seq = int(str((await launched.status())["event_seq"]))
    await launched.client.call("restart", reason="a neighbour came")
    notice = await launched.event("notice", after=seq)
    assert "GiB more GPU memory" in str(notice["text"])
    await launched.event("started", after=seq)


async def test_a_hanging_driver_delays_nothing_for_long(launch: Factory, tmp_path: Path) -> None:
    used = tmp_path / "used"
    used.write_text("hang")
    launched = launch("--port", str(free_port()), env=fake_smi(tmp_path, used))
    await launched.ready()
    gpu = await launched.client.call("probe", name="gpu")
    assert gpu["available"] is False and "within 2 s" in str(gpu["reason"])


async def test_a_ptxas_is_proven_by_assembling(launch: Factory, tmp_path: Path) -> None:
    old = tmp_path / "ptxas"
    old.write_text(
        "#!/bin/sh\ncase \"$*\" in *--version*) echo 'Cuda compilation tools, release 12.0, V12.0.140';;\n"
        "*) echo \"ptxas fatal   : Value 'sm_90a' is not defined for option 'gpu-name'\" >&2; exit 1;; esac\n"
    )
    old.chmod(0o755)
    launched = launch(env={"TRITON_PTXAS_PATH": str(old)})
    await launched.event("started")
    answer = await launched.client.call("probe", name="ptxas", arch="9.0")
    assert answer["target"] == "sm_90a"
    listed = answer["candidates"]
    assert isinstance(listed, list)
    ours = next(candidate for candidate in listed if candidate["path"] == str(old))
    assert ours["version"] == "12.0.140" and ours["assembles"] is False and ours["root_owned"] is False
    assert "not defined" in ours["error"]
    for candidate in listed:
        if candidate["path"].startswith("/usr/local/cuda"):
            assert candidate["assembles"] is True and candidate["root_owned"] is True
