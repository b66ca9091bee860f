"""``python -m agent.launch`` and the entry of the zipapp."""

from __future__ import annotations

import sys

from agent.launch.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
