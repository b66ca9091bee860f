"""The shared types of all stages: no behaviour, no I/O, no knowledge of any stage.

Every stage speaks in these words; what crosses a process or a file is versioned here.
"""

from agent.model.alert import Alert, AlertState
from agent.model.clock import Clock, SystemClock, parse_rfc3339, rfc3339
from agent.model.facts import (
    AssemblerFacts,
    CacheFacts,
    Facts,
    MemoryFacts,
    MemoryHolder,
    OccupancyFacts,
    PortFacts,
    ProcessFacts,
)
from agent.model.finding import (
    Cause,
    Confidence,
    Diagnosis,
    Domain,
    Evidence,
    Finding,
    Mechanism,
    Mode,
    NotMeasured,
    Remedy,
    Retry,
    Severity,
    Verdict,
)
from agent.model.incident import Action, ActionState, Change, Incident, IncidentState, Proof
from agent.model.sample import Sample
from agent.model.server import (
    Context,
    EffectiveSettings,
    Exit,
    GpuProcess,
    GpuReading,
    Setting,
    State,
)

__all__ = [
    "Action",
    "ActionState",
    "Alert",
    "AlertState",
    "AssemblerFacts",
    "CacheFacts",
    "Cause",
    "Change",
    "Clock",
    "Confidence",
    "Context",
    "Diagnosis",
    "Domain",
    "EffectiveSettings",
    "Evidence",
    "Exit",
    "Facts",
    "Finding",
    "GpuProcess",
    "GpuReading",
    "Incident",
    "IncidentState",
    "Mechanism",
    "MemoryFacts",
    "MemoryHolder",
    "Mode",
    "NotMeasured",
    "OccupancyFacts",
    "PortFacts",
    "ProcessFacts",
    "Proof",
    "Remedy",
    "Retry",
    "Sample",
    "Setting",
    "Severity",
    "State",
    "SystemClock",
    "Verdict",
    "parse_rfc3339",
    "rfc3339",
]
