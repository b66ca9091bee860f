"""``python -m agent`` and the console command ``agent``.

The launcher and the stand-in are taken first and import the standard library alone.
"""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line; returns the exit code."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["launch"]:
        from agent.launch import main as launch

        return launch(arguments[1:])
    if arguments[:1] == ["sim"]:
        from agent.sim import main as sim

        return sim(arguments[1:])
    from agent.cli import main as command_line

    return command_line(arguments)


if __name__ == "__main__":
    sys.exit(main())
