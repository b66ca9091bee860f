"""The driver's own process: it alone loads NVML or amdsmi, so that a driver that hangs hangs nobody else.

In: one JSON request a line, ``{"id": n, "costly": bool, "own": [pid]|null}`` (or ``{"id": n, "costs": repeats}``).
Out: one JSON answer a line, and ``{"xid": {gpu, uuid, xid, at}}`` as soon as the driver reports one (``at`` is Unix
time). Ends when its input ends, and with its owner (PR_SET_PDEATHSIG) even while the driver hangs.

It runs under the Python of the server, which has a binding more often than the launcher's. What bindings print goes
to stderr. A missing library or driver is asked for again at each request; where a loaded library no longer fits,
the answer says ``fresh`` and the owner starts a new process.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from agent.launch.amd import Amd, load_binding
from agent.launch.nvml import Nvml
from agent.launch.nvmlfields import Trouble, find_binding

AMD_RETRY_SECONDS = 60.0
PR_SET_PDEATHSIG = 1


class Driver:
    """Whichever binding finds a driver."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env
        self._nvidia = find_binding()
        self._amd_at = 0.0
        self._amd_trouble: Trouble | None = None
        self.open: Nvml | Amd | None = None

    def answer(self, request: Mapping[str, Any]) -> dict[str, object]:
        """The reading, or ``{"trouble": {kind, reason, fresh}}``."""
        try:
            if self.open is None:
                self.open = self._find()
            if "costs" in request:
                return {"backend": self.open.name, "costs": self.open.costs(int(request["costs"]))}
            own = request.get("own")
            pids = frozenset(int(pid) for pid in own) if isinstance(own, list) else None
            reading = self.open.read(costly=bool(request.get("costly")), own=pids)
            return {"backend": self.open.name, "costly": bool(request.get("costly")), **reading}
        except Trouble as trouble:
            return self._gave_up(trouble)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            return self._gave_up(Trouble("unknown", f"the driver could not be asked: {reason}", fresh=True))

    def _gave_up(self, trouble: Trouble) -> dict[str, object]:
        backend, self.open = self.open, None
        if backend is not None:
            backend.close()
        return {"trouble": {"kind": trouble.kind, "reason": trouble.reason, "fresh": trouble.fresh}}

    def _find(self) -> Nvml | Amd:
        nvidia = Trouble("no-binding", "no NVML binding: neither nvidia-ml-py nor vLLM is installed")
        if self._nvidia is not None:
            try:
                nvml = Nvml(self._nvidia, self._env)
                nvml.open()
                return nvml
            except Trouble as trouble:
                nvidia = trouble
        if nvidia.kind not in ("no-binding", "library-missing", "driver-not-loaded"):
            raise nvidia
        try:
            return self._find_amd()
        except Trouble as trouble:
            if trouble.kind == "no-binding":
                raise nvidia from None
            reason = f"NVIDIA: {nvidia.reason}; AMD: {trouble.reason}"
            raise Trouble(trouble.kind, reason, fresh=trouble.fresh) from trouble

    def _find_amd(self) -> Amd:
        """An import that failed costs 20 ms, so it is tried again once a minute only."""
        if self._amd_trouble is not None and time.monotonic() < self._amd_at:
            raise self._amd_trouble
        self._amd_at = time.monotonic() + AMD_RETRY_SECONDS
        try:
            amd = Amd(load_binding(), self._env)
            amd.open()
        except Trouble as trouble:
            self._amd_trouble = trouble
            raise
        return amd


class Output:
    """Whole lines from two threads, on the descriptor that was stdout before bindings could print there."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._descriptor = os.dup(1)
        os.dup2(2, 1)

    def send(self, document: Mapping[str, object]) -> None:
        """Write one line; an owner that is gone ends the process."""
        line = json.dumps(document, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            try:
                while line:
                    line = line[os.write(self._descriptor, line) :]
            except OSError:
                os._exit(0)


def _listen(driver: Driver, output: Output) -> None:
    while True:
        backend = driver.open
        if backend is None or isinstance(backend, Amd):
            time.sleep(0.5)
            continue
        xid = backend.wait()
        if xid is not None:
            output.send({"xid": xid})


def end_with_owner() -> None:
    """The kernel kills this process when its owner dies (prctl(2)); no such call: the end of the input has to do."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def main() -> None:
    """Serve until the input ends."""
    end_with_owner()
    output = Output()
    driver = Driver(os.environ)
    threading.Thread(target=_listen, args=(driver, output), daemon=True).start()
    for line in sys.stdin:
        with contextlib.suppress(ValueError):
            request = json.loads(line)
            output.send({"id": request.get("id"), **driver.answer(request)})
    os._exit(0)  # a thread may be inside the driver, which need not come back
