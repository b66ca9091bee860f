"""Evidence: one collector per source, each yields readings and never raises; what it cannot see it says.

Sources: the launcher (events, log stream, GPU and process probes), the server's own HTTP side, log files in
attach mode. A reading is a value or a :class:`agent.model.NotMeasured` with the reason.
"""

from agent.collect.canary import Canary, CanaryOutcome, CanaryResult, Requester
from agent.collect.gpu import GpuRounds, GpuSet, GpuSource, Xid
from agent.collect.gpusource import LauncherGpu, LocalGpu
from agent.collect.host import HostReader, HostReading, HostSource, LauncherHost, LocalHost, host_reading
from agent.collect.launcher import LauncherEvent, LauncherSource, exit_record, gpu_readings
from agent.collect.logfile import LogFile
from agent.collect.process import ListenerProcesses, ProcessReading, ProcessState, from_probe
from agent.collect.scrape import Scrape
from agent.collect.vllm import Answer, Health, HealthKind, Target, VllmClient

__all__ = [
    "Answer",
    "Canary",
    "CanaryOutcome",
    "CanaryResult",
    "GpuRounds",
    "GpuSet",
    "GpuSource",
    "Health",
    "HealthKind",
    "HostReader",
    "HostReading",
    "HostSource",
    "LauncherEvent",
    "LauncherGpu",
    "LauncherHost",
    "LauncherSource",
    "ListenerProcesses",
    "LocalGpu",
    "LocalHost",
    "LogFile",
    "ProcessReading",
    "ProcessState",
    "Requester",
    "Scrape",
    "Target",
    "VllmClient",
    "Xid",
    "exit_record",
    "from_probe",
    "gpu_readings",
    "host_reading",
]
