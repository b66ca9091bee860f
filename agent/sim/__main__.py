"""``python -m agent.sim``: the stand-in without the rest of the command line."""

import sys

from agent.sim import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
