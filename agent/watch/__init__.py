"""The watcher: collects, judges, decides, and asks the launcher to act.

:func:`serve` is ``agent watch``; :class:`CommandLine` is what it was told.
"""

from agent.watch.service import CommandLine, serve

__all__ = ["CommandLine", "serve"]
