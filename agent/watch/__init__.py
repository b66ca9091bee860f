"""The watcher: collects, judges, decides, and asks the launcher to act.

:func:`serve` is ``agent watch``; :class:`CommandLine` is what it was told.
"""

from agent.watch.service import serve
from agent.watch.specs import CommandLine

__all__ = ["CommandLine", "serve"]
