"""A server's own rules in the round of its watch, and what its scrape says of the server as the agent's own series.

In: each round's scrape or its failure, the state, the version. Out: calls to the server's judge, and the samples
``engine_state``, ``server_busy`` and ``requests_waiting``, on which the agent's own rules join.
"""

from __future__ import annotations

from agent.collect import Scrape
from agent.model import NotMeasured, Sample, State
from agent.series import OWN_PREFIX, contract_for
from agent.watch.evidence import ServerEvidence
from agent.watch.world import ServerSpec, World

BUSY, WAITING, ENGINE = f"{OWN_PREFIX}server_busy", f"{OWN_PREFIX}requests_waiting", f"{OWN_PREFIX}engine_state"
# In these states nobody expects the server to answer, and a person or the calendar wanted it so.
UNWANTED = (State.STOPPED,)


class Judged:
    """One server's rounds."""

    def __init__(self, spec: ServerSpec, world: World, evidence: ServerEvidence) -> None:
        self._spec = spec
        self._world = world
        self._evidence = evidence
        self._contract: tuple[str | None, bool] | None = None
        self._states: dict[str, State] = {}

    def scraped(self, scrape: Scrape | NotMeasured) -> None:
        """A round in which the server was asked, or could not be."""
        client = self._evidence.client
        if self._world.judges is not None and client is not None:
            judge = self._world.judges.of(self._spec.name, self._spec.profile, client.url)
            seen = self._evidence.version, self._evidence.multiprocess
            if seen != self._contract:
                self._contract = seen
                judge.see_contract(contract_for(seen[0], multiprocess=seen[1]))
            if isinstance(scrape, Scrape):
                judge.scraped(scrape.body, scrape.content_type, at_ms=scrape.at_ms, seconds=scrape.seconds)
            elif self._evidence.state() in UNWANTED:
                judge.gone()
            else:
                judge.failed()
        self._bring_load()
        self.see_engines()

    def see_engines(self) -> None:
        """The state of an engine may have changed."""
        name = self._spec.name
        states = {engine: standing.state for engine, standing in self._evidence.engines.items()}
        if states == self._states:
            return
        self._states = states
        rows = [
            Sample(ENGINE, {"server": name, "engine": engine, "state": one.value}, float(one is state))
            for engine, state in states.items()
            for one in State
        ]
        self._world.metrics.bring(f"engines/{name}", rows)

    def _bring_load(self) -> None:
        """Nothing where the last round brought nothing: a number of yesterday is no load."""
        name, load = self._spec.name, self._evidence.load
        rows = []
        if load is not None:
            running, waiting = load
            labels = {"server": name}
            rows = [Sample(BUSY, labels, float(running + waiting > 0)), Sample(WAITING, labels, waiting)]
        self._world.metrics.bring(f"load/{name}", rows)
