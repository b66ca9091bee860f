"""From lines to a cause: the fault catalogue and the engine that reads a server's log with it.

In: the bytes of a log and whatever else is known (exit record, command, cards). Out: signals while the log
is written, causes with their numbers, a diagnosis for people and programs. Never: an action, a guess shown
as certain, an exception because of what a log holds. Faults live in ``rules/faults/*.yaml``; what a table
cannot hold (the arithmetic of memory) is a small module here.
"""

from agent.diagnose.catalogue import Catalogue, Fault, load_catalogue
from agent.diagnose.logs import LogSource, diagnose_logs
from agent.diagnose.render import FAIL_ON, OUTPUTS, exit_code, render
from agent.diagnose.session import LogSession
from agent.diagnose.start import Signal

__all__ = [
    "FAIL_ON",
    "OUTPUTS",
    "Catalogue",
    "Fault",
    "LogSession",
    "LogSource",
    "Signal",
    "diagnose_logs",
    "exit_code",
    "load_catalogue",
    "render",
]
