"""Free space where the server writes: /dev/shm, the model's and the compiler's cache, the run-dir, /tmp.

In: the server's environment and command line. Out: paths by their use, and the size of the file system under each.
A file system may hang (NFS) and statvfs cannot be interrupted, so :class:`Bounded` runs it in a thread of its own that
is waited for with a limit, is never started twice, and dies with the process.

Variables and defaults are those of huggingface_hub (``constants.py``) and vLLM (``vllm/envs.py``).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from agent.launch.command import flag_value, words

T = TypeVar("T")
LINKS = 40
HUB_VARIABLES = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE")


class Hangs(Exception):
    """The work has not come back; ``str()`` says for how long."""


@dataclass(frozen=True)
class Space:
    """One file system: ``device`` tells whether two paths share it; ``free_bytes`` is what a user can still write."""

    device: int
    total_bytes: int
    free_bytes: int


class Bounded(Generic[T]):
    """Work that may block, in a daemon thread. One thread at most: while it hangs, no other is started."""

    def __init__(self, work: Callable[[], T], monotonic: Callable[[], float]) -> None:
        self._work = work
        self._monotonic = monotonic
        self._running: asyncio.Future[T] | None = None
        self._since = 0.0

    async def run(self, limit: float) -> T:
        """What the work returns or raises; :class:`Hangs` where it takes longer than ``limit`` seconds. Who asks while
        it runs gets the same answer."""
        if self._running is None or self._running.done():
            self._since = self._monotonic()
            self._running = self._begin()
        running = self._running
        left = limit - (self._monotonic() - self._since)
        if left > 0:
            await asyncio.wait({running}, timeout=left)
        if not running.done():
            raise Hangs(f"no answer for {self._monotonic() - self._since:.1f} s")
        return running.result()

    def _begin(self) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        future.add_done_callback(_seen)

        def body() -> None:
            try:
                tell = functools.partial(future.set_result, self._work())
            except Exception as error:
                tell = functools.partial(future.set_exception, error)
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(tell)

        threading.Thread(target=body, name="host-facts", daemon=True).start()
        return future


def _seen(future: asyncio.Future[T]) -> None:
    """An error that came after the limit is not "never retrieved"."""
    if not future.cancelled():
        future.exception()


def places(argv: Sequence[str], env: Mapping[str, str], run_dir: str | None) -> dict[str, str]:
    """Paths by use, what matters most first. Reads no file; a path that is not absolute is left out."""
    tokens, user = words(argv), env.get("HOME") or "/root"
    cache = env.get("XDG_CACHE_HOME") or f"{user}/.cache"
    hub = next((env[name] for name in HUB_VARIABLES if env.get(name)), None)
    home = env.get("HF_HOME") or f"{cache}/huggingface"
    found = {
        "model": _model(tokens),
        "model_cache": flag_value(tokens, "--download-dir") or hub or f"{home}/hub",
        "compile_cache": env.get("VLLM_CACHE_ROOT") or f"{cache}/vllm",
        "tmp": env.get("TMPDIR") or "/tmp",
        "run_dir": run_dir,
    }
    whole = {use: _expanded(path, user) for use, path in found.items() if path}
    return {use: path for use, path in whole.items() if path.startswith("/")}


def _model(tokens: Sequence[str]) -> str | None:
    """``vllm serve PATH`` or ``--model PATH``; a name of a repository is no path."""
    named = flag_value(tokens, "--model")
    if named is None and "serve" in tokens[:-1]:
        named = tokens[list(tokens).index("serve") + 1]
    return named if named and named.startswith(("/", "~")) else None


def _expanded(path: str, home: str) -> str:
    return home + path[1:] if path == "~" or path.startswith("~/") else path


def measure(path: str, root: Path = Path("/")) -> Space:
    """The file system of ``path`` below ``root``, or of the nearest folder above it that exists. Raises OSError."""
    found = _inside(path, root)
    status, info = found.stat(), os.statvfs(found)
    return Space(status.st_dev, info.f_blocks * info.f_frsize, info.f_bavail * info.f_frsize)


def _inside(path: str, root: Path) -> Path:
    """Follow ``path`` in another root: the kernel would follow an absolute link there into our own."""
    left, at, links = [part for part in path.split("/") if part], root, 0
    while left:
        part = left.pop(0)
        if part == "..":
            at = at.parent if at != root else root
            continue
        try:
            target = str((at / part).readlink())
        except FileNotFoundError:
            return at  # it will be made here
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            at = at / part  # no link
            continue
        links += 1
        if links > LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        at = root if target.startswith("/") else at
        left = [part for part in target.split("/") if part not in ("", ".")] + left
    return at
