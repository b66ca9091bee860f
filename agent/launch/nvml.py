"""NVIDIA cards through NVML: which are the server's, how they are now, and their Xid events.

In: a binding and the server's environment. Out: per device of the server its rows (:mod:`agent.launch.nvmlfields`), the
reason for each field that it does not tell, and Xid events. Runs only in the driver's own child process
(:mod:`agent.launch.driver`), never in launcher or watcher: a driver that hangs hangs its caller.

A card that is lost stays listed as down; the library is opened anew from time to time, so that a card that came back
is found without a new process. A failure of the driver as a whole ends in :class:`Trouble`.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agent.launch.nvmlfields import (
    CHEAP,
    COSTLY,
    DOWN,
    DRIVER_WIDE,
    FUNCTION_NOT_FOUND,
    GPU_NOT_FOUND,
    TIMEOUT,
    WORDS,
    Memory,
    Read,
    Row,
    code_of,
    pids_match,
    process_rows,
    read_memory,
    text_of,
    trouble_of,
    words_for,
)  # fmt: skip
from agent.launch.selection import Card, Chosen, Instance, choose

WAIT_MS = 500
REOPEN_SECONDS = (2.0, 5.0, 10.0, 20.0, 40.0, 60.0)
NO_INSTANCE = 0xFFFFFFFF


@dataclass
class Device:
    """One chosen device with its handles; ``down`` says why it cannot be asked."""

    chosen: Chosen
    handle: Any = None
    instance_handle: Any = None
    capability: str | None = None
    down: str | None = None


class Nvml:
    """One initialised NVML; ``read`` and ``wait`` may run in two threads."""

    name = "nvml"

    def __init__(self, binding: Any, env: Mapping[str, str], clock: Callable[[], float] = time.monotonic) -> None:
        self._n = binding
        self._env = env
        self._clock = clock
        self._waiting = threading.Lock()
        self._closing = False
        self._open = False
        self._events: Any = None
        self._xid_reason: str | None = None
        self._devices: list[Device] = []
        self._uuids: dict[int, tuple[str, str]] = {}
        self._note: str | None = None
        self._failures = 0
        self._reopen_at = 0.0
        self.driver_version: str | None = None

    # --- opening and closing

    def open(self) -> None:
        """Initialise, find the own cards, register for Xid events. Raises Trouble."""
        try:
            self._n.nvmlInit()
            self._open = True
            self.driver_version = text_of(self._n.nvmlSystemGetDriverVersion())
            self._enumerate()
        except Exception as error:
            self._shut()
            raise trouble_of(error) from error
        self._register()

    def close(self) -> None:
        """Leave the driver; a waiter is let out first."""
        self._closing = True
        with self._waiting:
            self._shut()
        self._closing = False

    def _shut(self) -> None:
        if self._events is not None:
            with contextlib.suppress(Exception):
                self._n.nvmlEventSetFree(self._events)
        self._events = None
        if self._open:
            with contextlib.suppress(Exception):
                self._n.nvmlShutdown()
        self._open = False

    def _enumerate(self) -> None:
        handles: dict[int, Any] = {}
        down: dict[int, str] = {}
        parts: dict[str, Any] = {}
        cards = []
        for index in range(self._n.nvmlDeviceGetCount()):
            instances: tuple[Instance, ...] = ()
            try:
                handle = handles[index] = self._n.nvmlDeviceGetHandleByIndex(index)
                self._uuids[index] = (
                    text_of(self._n.nvmlDeviceGetUUID(handle)),
                    text_of(self._n.nvmlDeviceGetName(handle)),
                )
                instances, found = self._instances(handle)
                parts.update(found)
            except Exception as error:
                if code_of(error) in DRIVER_WIDE:
                    raise
                down[index] = words_for(error)
            uuid, name = self._uuids.get(index, ("", "unknown"))
            cards.append(Card(index, uuid, name, instances))
        chosen, self._note = choose(cards, self._env)
        listed = {card.uuid for card in cards}
        vanished = [
            device.chosen
            for device in self._devices
            if device.chosen.card.uuid and device.chosen.card.uuid not in listed
        ]
        self._devices = [
            Device(
                one, handles.get(one.card.index), parts.get(one.uuid),
                self._capability(handles.get(one.card.index)), down.get(one.card.index),
            )
            for one in chosen
        ]  # fmt: skip
        self._devices += [Device(one, down=WORDS[GPU_NOT_FOUND]) for one in vanished]

    def _instances(self, handle: Any) -> tuple[tuple[Instance, ...], dict[str, Any]]:
        n, found, handles = self._n, [], {}
        try:
            if n.nvmlDeviceGetMigMode(handle)[0] != 1:
                return (), {}
            count = n.nvmlDeviceGetMaxMigDeviceCount(handle)
        except Exception as error:
            if code_of(error) in DOWN | DRIVER_WIDE:
                raise
            return (), {}
        for position in range(count):
            with contextlib.suppress(Exception):  # a gap: not every position holds an instance
                part = n.nvmlDeviceGetMigDeviceHandleByIndex(handle, position)
                uuid = text_of(n.nvmlDeviceGetUUID(part))
                numbers = n.nvmlDeviceGetGpuInstanceId(part), n.nvmlDeviceGetComputeInstanceId(part)
                found.append(Instance(uuid, *numbers))
                handles[uuid] = part
        return tuple(found), handles

    def _capability(self, handle: Any) -> str | None:
        with contextlib.suppress(Exception):
            major, minor = self._n.nvmlDeviceGetCudaComputeCapability(handle)
            return f"{major}.{minor}"
        return None

    # --- reading

    def read(self, *, costly: bool, own: frozenset[int] | None) -> dict[str, object]:
        """Every own device. Raises Trouble."""
        if any(device.down for device in self._devices) and self._clock() >= self._reopen_at:
            self._reopen_at = self._clock() + REOPEN_SECONDS[min(self._failures, len(REOPEN_SECONDS) - 1)]
            self._failures += 1
            self.close()
            self.open()
        cards = [self._card(device, costly, own) for device in self._devices]
        if not any(device.down for device in self._devices):
            self._failures = 0
        return {"driver": self.driver_version, "cards": cards, "note": self._note, "xid_reason": self._xid_reason}

    def _card(self, device: Device, costly: bool, own: frozenset[int] | None) -> dict[str, object]:
        card = device.chosen.card
        head = {"index": card.index, "uuid": device.chosen.uuid, "name": card.name}
        rows: list[Row] = []
        failed: dict[str, str] = {}
        reading = None
        if device.down is None:
            fields = {**CHEAP, **COSTLY} if costly else CHEAP
            try:
                memory = self._memory(device, rows, failed)
                processes = self._processes(device, rows, failed, own)
                for name, read in fields.items():
                    self._field(name, read, device.handle, rows, failed)
            except _Down as error:
                device.down, rows, failed = error.reason, [], {}
                # Not at once: its Xid is still to be fetched from the event set that is open now.
                self._reopen_at = max(self._reopen_at, self._clock() + REOPEN_SECONDS[0])
            else:
                reading = {
                    **head, "total_bytes": memory and memory.total, "used_bytes": memory and memory.used,
                    "free_bytes": memory and memory.free, "compute_capability": device.capability,
                    "processes": processes,
                }  # fmt: skip
        return {**head, "up": device.down is None, "reason": device.down, "samples": rows, "failed": failed,
                "reading": reading}  # fmt: skip

    def _field(self, name: str, read: Read, handle: Any, rows: list[Row], failed: dict[str, str]) -> None:
        try:
            rows.extend(read(self._n, handle))
        except Exception as error:
            self._failed(name, error, failed)

    def _failed(self, name: str, error: Exception, failed: dict[str, str]) -> None:
        code = code_of(error)
        if code in DRIVER_WIDE:
            raise trouble_of(error) from error
        if code in DOWN:
            raise _Down(words_for(error)) from error
        failed[name] = words_for(error)

    def _memory(self, device: Device, rows: list[Row], failed: dict[str, str]) -> Memory | None:
        try:
            memory = read_memory(self._n, device.instance_handle or device.handle)
        except Exception as error:
            self._failed("memory", error, failed)
            return None
        rows.extend(memory.rows())
        if memory.reserved is None:
            failed["memory_reserved"] = WORDS[FUNCTION_NOT_FOUND]
        return memory

    def _processes(
        self, device: Device, rows: list[Row], failed: dict[str, str], own: frozenset[int] | None
    ) -> list[dict[str, object]]:
        try:
            listed = self._n.nvmlDeviceGetComputeRunningProcesses(device.instance_handle or device.handle)
        except Exception as error:
            self._failed("processes", error, failed)
            return []
        found = [(one.pid, one.usedGpuMemory) for one in listed]
        rows.extend(process_rows(found, own if pids_match() else None))
        return [{"pid": pid, "used_bytes": used, "name": self._process_name(pid)} for pid, used in found]

    def _process_name(self, pid: int) -> str | None:
        with contextlib.suppress(Exception):
            return text_of(self._n.nvmlSystemGetProcessName(pid))
        return None

    def costs(self, repeat: int) -> dict[str, dict[str, float]]:
        """Milliseconds a call of each field on the first own card: ``{field: {mean, max}}``."""
        device = next((device for device in self._devices if device.down is None), None)
        if device is None:
            return {}
        calls: dict[str, Callable[[], object]] = {
            "memory": lambda: read_memory(self._n, device.handle),
            "processes": lambda: self._n.nvmlDeviceGetComputeRunningProcesses(device.handle),
        }
        for name, read in {**CHEAP, **COSTLY}.items():
            calls[name] = lambda read=read: list(read(self._n, device.handle))  # type: ignore[misc]
        return {name: _timed(call, repeat) for name, call in calls.items()}

    # --- Xid events

    def _register(self) -> None:
        n = self._n
        self._xid_reason = None
        try:
            events = n.nvmlEventSetCreate()
            self._events = events
            for handle in {id(d.handle): d.handle for d in self._devices if d.down is None}.values():
                n.nvmlDeviceRegisterEvents(handle, n.nvmlEventTypeXidCriticalError, events)
        except Exception as error:
            self._xid_reason = words_for(error)

    def wait(self) -> dict[str, object] | None:
        """The next Xid of an own device, within half a second. Never raises; a failing wait is a pause."""
        if self._closing or self._events is None:
            time.sleep(WAIT_MS / 1000)
            return None
        with self._waiting:
            if self._events is None:
                return None
            try:
                data = self._n.nvmlEventSetWait_v2(self._events, WAIT_MS)
            except Exception as error:
                failed = code_of(error) != TIMEOUT
            else:
                return self._xid(data)
        if failed:
            time.sleep(WAIT_MS / 1000)
        return None

    def _xid(self, data: Any) -> dict[str, object] | None:
        for device in self._devices:
            if _address(device.handle) == _address(data.device) and _concerns(device, data.gpuInstanceId):
                card = device.chosen.card
                return {"gpu": card.index, "uuid": device.chosen.uuid, "xid": int(data.eventData), "at": time.time()}
        return None


class _Down(Exception):
    """One card cannot be asked any more."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def _timed(call: Callable[[], object], repeat: int) -> dict[str, float]:
    took = []
    for _ in range(repeat):
        begun = time.perf_counter()
        with contextlib.suppress(Exception):
            call()
        took.append((time.perf_counter() - begun) * 1000)
    return {"mean": sum(took) / len(took), "max": max(took)}


def _concerns(device: Device, gpu_instance: int) -> bool:
    """An Xid of another MIG instance is another tenant's."""
    own = device.chosen.instance
    return own is None or gpu_instance in (NO_INSTANCE, own.gpu_instance)


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value if handle is not None else None
