"""All profiles against a real Prometheus 3: an hour and more of every fault at 5 s, 15 s and 1 s, and a whole day.

The states come from Prometheus' own rule groups, the values from a server with the same samples at the same times; see
tests/differential. Over the day every shipped alert waits, fires and ends.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.alerts import load_rules, profiles
from tests.differential.compare import Outcome, differential
from tests.differential.scenes import Scene
from tests.support.figures import keep

pytestmark = [pytest.mark.vllm_matrix, pytest.mark.timeout(900)]
DAY = Scene("day-60s", 60, 96_600, start_s=-90_000)
SCENES = (
    Scene("hour-5s", 5, 4_500),
    Scene("hour-15s-unsteady", 15, 4_500, unsteady=True),
    Scene("ten-minutes-1s-unsteady", 1, 600, start_s=700, unsteady=True),
    DAY,
)


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
def test_every_rule_says_what_prometheus_says_at_every_evaluation(scene: Scene, tmp_path: Path) -> None:
    targets = scene.targets()
    outcomes: dict[str, Outcome] = {}
    for profile in profiles():
        folder = tmp_path / profile
        folder.mkdir()
        outcomes[profile] = differential(scene, targets, profile, folder)
    keep(f"differential-{scene.name}", "make test-real", figures(scene, outcomes))
    for profile, outcome in outcomes.items():
        assert outcome.differing == (), profile
        if scene is DAY:
            assert untold(profile, outcome) == []


def untold(profile: str, outcome: Outcome) -> list[str]:
    """What no alert may leave out over the day: to wait where it has a ``for``, to fire, to end."""
    missing = []
    for rule in load_rules(profile=profile).rules:
        wanted = {"firing", "resolved", *(("pending",) if rule.for_ms else ())}
        if not rule.record and not wanted <= outcome.told.get(rule.name, frozenset()):
            missing.append(rule.name)
    return missing


def figures(scene: Scene, outcomes: dict[str, Outcome]) -> dict[str, object]:
    """Counts by profile; what differs in words, at most a hundred."""
    by_profile = {
        profile: {
            "evaluations": outcome.evaluations,
            "rule_evaluations_compared": outcome.rule_evaluations,
            "values_compared": outcome.values,
            "values_not_bitwise_equal": outcome.values_not_bitwise,
            "state_vectors_compared": outcome.state_vectors,
            "states_compared": outcome.state_samples,
            "mismatches": len(outcome.differing),
            "differing": outcome.differing[:100],
            "samples_in_prometheus": outcome.samples,
            "fired": sorted(name for name, states in outcome.told.items() if "firing" in states),
            "resolved": sorted(name for name, states in outcome.told.items() if "resolved" in states),
        }
        for profile, outcome in outcomes.items()
    }
    return {
        "prometheus": sorted({outcome.prometheus for outcome in outcomes.values()}),
        "scrape_and_evaluation_step_seconds": scene.step_s,
        "length_seconds": scene.length_s,
        "answers_before_the_evaluation": "up to three tenths of a step" if scene.unsteady else "at the evaluation",
        "alerts_shipped": sum(not rule.record for rule in load_rules(profile=profiles()[0]).rules),
        "by_profile": by_profile,
    }
