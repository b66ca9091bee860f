"""Which source a server has: a launcher where its run-dir is named, else its URL and log files alone."""

from __future__ import annotations

from agent.watch.attached import AttachedSide
from agent.watch.launched import LauncherSide
from agent.watch.source import Source, Watched
from agent.watch.world import ServerSpec, World


def make_source(spec: ServerSpec, watched: Watched, world: World) -> Source:
    """By run-dir where there is one, else attached."""
    if spec.run_dir is not None:
        return LauncherSide(spec, spec.run_dir, watched, world)
    return AttachedSide(spec, watched, world)
