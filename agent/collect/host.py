"""The host, the container and the server's processes as samples: memory, processor, descriptors, disks, network.

In: the launcher's ``probe host``, which sees the server's own namespaces, or the same reading made here of a server
that runs on this host without a launcher. Out: :class:`HostReading`: samples under the published names
(``vllm_agent_*``), and for each figure that is missing the reason; a figure that is unknown is never a sample.

Both ways give one document (``agent/launch/hostfacts.py``), so one reader serves both. What comes over the socket is
checked: a name that is none of these, a value that is no number from 0 on, and a label that is no short word are left
out. Nothing here blocks the loop: files are read in threads with a limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from agent.errors import LauncherError
from agent.launch import HostProbe, LauncherClient, Subject, places
from agent.model import NotMeasured, Sample

PREFIX = "vllm_agent_"
LABEL_CHARACTERS = 64
MEASURES = 200
LARGEST = 1e19
PLAIN = frozenset({
    "host_memory_total_bytes", "host_memory_available_bytes", "server_resident_memory_bytes",
    "server_cpu_seconds_total", "server_open_fds", "server_max_fds", "server_threads", "cgroup_memory_bytes",
    "cgroup_memory_limit_bytes", "cgroup_oom_kills_total", "shm_total_bytes", "shm_free_bytes",
})  # fmt: skip
NAMED = frozenset({
    "host_cpu_seconds_total", "disk_total_bytes", "disk_free_bytes", "network_receive_bytes_total",
    "network_transmit_bytes_total", "network_speed_bytes_per_second",
})  # fmt: skip


class HostReading(msgspec.Struct, frozen=True, kw_only=True):
    """One round. ``not_measured`` names each figure that is missing, and why."""

    samples: tuple[Sample, ...] = ()
    not_measured: tuple[NotMeasured, ...] = ()


class HostSource(Protocol):
    """Where the facts come from. ``pids`` are the server's processes, for a source that does not know them itself.

    Raises LauncherError where nobody answers.
    """

    async def facts(self, pids: Sequence[int]) -> Mapping[str, object]: ...


class LauncherHost:
    """The launcher's side: it knows the server's processes and lives in their namespaces."""

    def __init__(self, client: LauncherClient) -> None:
        self._client = client

    async def facts(self, pids: Sequence[int]) -> Mapping[str, object]:
        return await self._client.call("probe", name="host")


class LocalHost:
    """A server of this host that nothing wraps; its namespaces are seen through /proc/PID, as far as that is allowed.

    ``proc`` and ``monotonic`` are for tests.
    """

    def __init__(self, *, proc: Path = Path("/proc"), monotonic: Callable[[], float] = time.monotonic) -> None:
        self._proc = proc
        self._probe = HostProbe(monotonic, proc=proc)
        self._pids: Sequence[int] = ()

    async def facts(self, pids: Sequence[int]) -> Mapping[str, object]:
        self._pids = tuple(pids)
        return await self._probe.read(self._subject)

    def _subject(self) -> Subject:
        """Runs in a thread: ``environ`` of a stuck process may block."""
        if not self._pids:
            return Subject(shares=False)
        folder = self._proc / str(self._pids[0])
        env = dict(entry.split("=", 1) for entry in _words(folder / "environ") if "=" in entry)
        return Subject(pids=self._pids, spaces=places(_words(folder / "cmdline"), env, None), shares=False)


class HostReader:
    """Samples of one server (label ``server``)."""

    def __init__(self, server: str, source: HostSource) -> None:
        self._server = server
        self._source = source

    async def read(self, pids: Sequence[int] = ()) -> HostReading:
        """One round, at most some seconds; never raises."""
        try:
            return host_reading(self._server, await self._source.facts(pids))
        except LauncherError as error:
            return HostReading(not_measured=(NotMeasured(check="host", reason=error.message),))


def host_reading(server: str, document: Mapping[str, object]) -> HostReading:
    """Read ``probe host``; a document of another shape is a reason, not an error."""
    measures, unknown = document.get("measures"), document.get("unknown")
    if not isinstance(measures, list) or not isinstance(unknown, list):
        reason = "the launcher's answer could not be read"
        return HostReading(not_measured=(NotMeasured(check="host", reason=reason),))
    samples = (_sample(server, one) for one in measures[:MEASURES])
    return HostReading(
        samples=tuple(one for one in samples if one is not None),
        not_measured=tuple(
            NotMeasured(check=str(one.get("check"))[:200], reason=str(one.get("reason"))[:500])
            for one in unknown[:MEASURES]
            if isinstance(one, dict)
        ),
    )


def _sample(server: str, measure: object) -> Sample | None:
    if not isinstance(measure, dict):
        return None
    name, label, value = measure.get("name"), measure.get("label"), measure.get("value")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < LARGEST:
        return None
    if not isinstance(name, str):
        return None
    if name in PLAIN and label is None:
        return Sample(PREFIX + name, {"server": server}, float(value))
    if name in NAMED and isinstance(label, str) and 0 < len(label) <= LABEL_CHARACTERS:
        return Sample(PREFIX + name, {"server": server, "name": label}, float(value))
    return None


def _words(path: Path) -> list[str]:
    """The words of a file with NUL between them; none where it may not be read."""
    try:
        return [word for word in path.read_bytes().decode("utf-8", "replace").split("\0") if word]
    except OSError:
        return []
