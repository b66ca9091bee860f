"""The watcher: collects, judges, decides, and asks the launcher to act.

:func:`serve` is ``agent watch``; :class:`CommandLine` is what it was told; :func:`read_rulebook` are the rules that a
configuration names.
"""

from agent.watch.rulebook import read_rulebook
from agent.watch.service import serve
from agent.watch.specs import CommandLine

__all__ = ["CommandLine", "read_rulebook", "serve"]
