"""The agent's own samples through the script: servers in every state, cards and hosts with one fault after the other.

In: the second of the script, and the Unix time of its second 0. Out: the samples that the agent exposes then. Before
the script (negative seconds) all is well but for two things that must last a day.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from agent.series import Labels, labels_of

STATES = ("starting", "serving", "saturated", "stalled", "dead", "draining", "paused", "stopped", "unknown")
GIB = float(2**30)
Row = tuple[str, dict[str, str], float]


def own_frame(second: int, origin: float) -> dict[Labels, float]:
    """All samples of this second."""
    parts: tuple[Callable[[int, float], Iterator[Row]], ...] = (servers, agent, cards, events, allocator, host)
    return {
        labels_of({**labels, "__name__": f"vllm_agent_{name}"}): float(value)
        for part in parts
        for name, labels, value in part(second, origin)
    }


def _in(second: int, since: int, until: int) -> bool:
    return since <= second < until


def state_of(server: str, second: int) -> str:
    """``a`` through the bad states, ``b`` a long start, ``c`` up and down, ``d`` always serving."""
    if server == "a":
        spans = {(300, 420): "stalled", (1_000, 1_200): "dead", (2_000, 3_000): "saturated", (3_200, 4_200): "unknown"}
        return next((state for (since, until), state in spans.items() if _in(second, since, until)), "serving")
    if server == "b":
        return "starting" if _in(second, 0, 1_980) else "serving"
    if server == "c" and _in(second, 600, 1_100):
        return "starting" if second // 60 % 2 else "serving"
    return "serving"


def servers(second: int, origin: float) -> Iterator[Row]:
    for server in "abcd":
        now = state_of(server, second)
        for state in STATES:
            yield "server_state", {"server": server, "state": state}, state == now
        yield "server_busy", {"server": server}, server == "d" or second % 60 < 30
        waiting = (second - 2_400) / 20 if server == "d" and _in(second, 2_400, 4_000) else 0.0
        yield "requests_waiting", {"server": server}, waiting
        yield "server_starts_total", {"server": server, "reason": "operator"}, 1.0
    yield "server_starts_total", {"server": "a", "reason": "restart"}, 4.0 * (second >= 2_000)
    yield "server_starts_total", {"server": "b", "reason": "restart"}, 5.0 * (second >= -84_000)
    if second >= 2_500:
        yield "server_starts_total", {"server": "c", "reason": "remedy"}, 1.0 + (second >= 2_800)


def agent(second: int, origin: float) -> Iterator[Row]:
    stale = second - 1_300 if _in(second, 1_300, 1_500) else second % 5
    yield "scrape_age_seconds", {"server": "a"}, stale
    if _in(second, 500, 1_600):
        yield "rule_unknown", {"server": "a", "rule": "VLLMQueueLong", "reason": "absent"}, 1.0
    yield "rule_unknown", {"server": "a", "rule": "VLLMKvCachePressure", "reason": "needs-feature"}, 1.0
    yield "notifications_pending", {"notifier": "slack"}, 3.0 * _in(second, 200, 1_300)
    yield "notifications_total", {"notifier": "slack", "outcome": "parked"}, 1.0 * (second >= 600)
    yield "notifications_total", {"notifier": "slack", "outcome": "sent"}, max(0, second // 100)
    yield "journal_healthy", {}, not _in(second, 400, 540)
    yield "breaker_open", {"server": "a"}, _in(second, 700, 900)
    yield "frozen", {}, _in(second, 0, 3_780)
    yield "override_in_force", {"server": "a"}, second < 1_200
    yield "log_dropped_bytes_total", {"server": "a"}, 4_096.0 * (second >= 800)


def cards(second: int, origin: float) -> Iterator[Row]:
    """Two cards of ``d``, one of ``a`` that is lost for a while."""
    for gpu in "01":
        card = {"server": "d", "gpu": gpu, "uuid": f"GPU-{gpu}"}
        busy = 0.999 if _in(second, 2_400, 4_000) else 0.78
        yield "gpu_utilization_ratio", card, 0.2 if gpu == "0" and _in(second, 0, 2_400) else busy
        yield "gpu_memory_total_bytes", card, 80 * GIB
        growing = 0.975 + 0.02 * second / 4_500 if _in(second, 0, 4_200) else 0.5
        yield "gpu_memory_used_bytes", card, growing * 80 * GIB if gpu == "1" else 0.6 * 80 * GIB
        foreign = 2 * GIB if gpu == "0" and _in(second, 500, 1_000) else 0.0
        yield "gpu_process_memory_bytes", {**card, "class": "foreign"}, foreign
        yield "gpu_process_memory_bytes", {**card, "class": "own"}, 40 * GIB
        yield "gpu_up", card, 1.0
    lost = {"server": "a", "gpu": "0", "uuid": "GPU-a"}
    yield "gpu_up", lost, not _in(second, 1_500, 1_620)
    if not _in(second, 1_500, 1_620):
        yield "gpu_utilization_ratio", lost, 0.8


def events(second: int, origin: float) -> Iterator[Row]:
    card = {"server": "d", "gpu": "1", "uuid": "GPU-1"}
    for at, number in ((100, "79"), (200, "31"), (250, "999")):
        if second >= at:
            yield "gpu_xid_errors_total", {**card, "name": number}, 1.0
            yield "gpu_xid_last_timestamp_seconds", {**card, "name": number}, origin + at
    yield "gpu_ecc_errors_total", {**card, "class": "uncorrected"}, 1.0 * (second >= 400)
    yield "gpu_ecc_errors_total", {**card, "class": "corrected"}, 7.0 + 5_000 * (second >= 420)
    yield "gpu_remap_pending", card, _in(second, 600, 720)
    yield "gpu_remap_failed", card, _in(second, 800, 920)
    yield "gpu_pcie_replays_total", card, 3.0 + 500 * (second >= 500)
    yield "gpu_clock_event", {**card, "reason": "hw_slowdown"}, _in(second, 1_000, 1_700)
    yield "gpu_clock_event", {**card, "reason": "sw_power_cap"}, _in(second, 1_000, 3_200)
    yield "gpu_clock_event", {**card, "reason": "gpu_idle"}, second % 2 == 0


def allocator(second: int, origin: float) -> Iterator[Row]:
    card = {"server": "d", "engine": "0", "gpu": "0", "uuid": "GPU-0"}
    yield "allocator_reserved_bytes", card, 40 * GIB
    yield "allocator_allocated_bytes", card, 28 * GIB if _in(second, 700, 1_500) else 38 * GIB
    yield "allocator_retries_total", card, 3.0 * (second >= 900)


def host(second: int, origin: float) -> Iterator[Row]:
    own = {"server": "d"}
    yield "host_memory_total_bytes", own, 512 * GIB
    yield "host_memory_available_bytes", own, (10 if _in(second, 500, 900) else 400) * GIB
    yield "cgroup_memory_bytes", own, (95 if _in(second, 1_000, 1_400) else 60) * GIB
    yield "cgroup_memory_limit_bytes", own, 100 * GIB
    yield "cgroup_memory_bytes", {"server": "a"}, 60 * GIB
    yield "cgroup_memory_limit_bytes", {"server": "a"}, 0.0
    yield "cgroup_oom_kills_total", own, second >= 1_500
    yield "shm_total_bytes", own, 16 * GIB
    yield "shm_free_bytes", own, (0.5 if _in(second, 600, 1_000) else 15) * GIB
    for disk in ("/", "/models"):
        yield "disk_total_bytes", {**own, "name": disk}, 1_000 * GIB
        yield "disk_free_bytes", {**own, "name": disk}, (20 if disk == "/" and _in(second, 700, 1_100) else 300) * GIB
    yield "server_open_fds", own, 950 if _in(second, 800, 1_200) else 120
    yield "server_max_fds", own, 1_000
    yield "network_speed_bytes_per_second", {**own, "name": "eth0"}, 1.25e9
    yield "network_receive_bytes_total", {**own, "name": "eth0"}, 1e6 * (second + 90_000)
    sent = 1e6 * (second + 90_000) + 1.2e9 * max(0, min(second, 1_700) - 1_000)
    yield "network_transmit_bytes_total", {**own, "name": "eth0"}, sent
