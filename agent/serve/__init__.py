"""The watcher's face to machines: ``/metrics`` and a small JSON API on loopback.

In: a :class:`Backend` that knows the state and takes a person's decisions, and :class:`AgentMetrics` that
the stages feed. Out: HTTP answers. Never: a decision of its own, a traceback, a write without the token.
"""

from agent.serve.api import Api, start_api
from agent.serve.backend import Backend
from agent.serve.metrics import AgentMetrics

__all__ = ["AgentMetrics", "Api", "Backend", "start_api"]
