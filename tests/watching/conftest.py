"""A served server under a fake launcher, watched."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent.config import Config
from agent.model import State
from agent.watch.world import ServerSpec
from tests.watching.launcher import FakeLauncher
from tests.watching.server import Answers, serving
from tests.watching.watcher import QUIET, Watching, watching


@dataclass
class Served:
    """Launcher, server and watch at the moment when the server serves."""

    launcher: FakeLauncher
    server: Answers
    watch: Watching
    spec: ServerSpec

    def come_back(self) -> None:
        """What a launcher does when it is asked to restart: a start that becomes ready."""
        self.launcher.start()
        self.launcher.print(READY)
        self.launcher.ready()


READY = "(APIServer pid=1) INFO:     Application startup complete.\n"
ARGUMENTS = "(APIServer pid=1) INFO 11-30 20:00:00 [utils.py:233] non-default args: {'max_num_seqs': 16}\n"
FATAL = "(EngineCore pid=2) ERROR 11-30 20:00:05 [core.py:950] EngineCore encountered a fatal error.\n"
PTXAS = (
    "(EngineCore pid=2) ERROR 11-30 20:00:05 [core.py:950] ptxas fatal   : Value 'sm_103a' is not defined for option"
    " 'gpu-name'\n"
)
DEAD = "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.\n"
OOM = (
    "(EngineCore pid=2) ERROR 11-30 20:00:05 [core.py:950] torch.OutOfMemoryError: CUDA out of memory. Tried to"
    " allocate 220.00 MiB. GPU 0 has a total capacity of 79.10 GiB of which 87.12 MiB is free. Process 2 has"
    " 79.00 GiB memory in use. Of the allocated memory 77.00 GiB is allocated by PyTorch, and 100.00 MiB is"
    " reserved by PyTorch but unallocated.\n"
)


@asynccontextmanager
async def launched(folder: Path, settings: Config = QUIET) -> AsyncIterator[Served]:
    """A served server under a fake launcher, watched with ``settings``."""
    async with serving() as server, FakeLauncher(folder / "run") as launcher:
        launcher.url = server.url
        launcher.start()
        launcher.print(ARGUMENTS + READY)
        launcher.ready()
        spec = ServerSpec(name="run", run_dir=folder / "run")
        async with watching(spec, folder / "state", settings=settings) as watch:
            await watch.state(State.SERVING)
            one = Served(launcher, server, watch, spec)
            launcher.on_restart = one.come_back
            yield one


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with launched(tmp_path) as one:
        yield one
