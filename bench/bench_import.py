"""How long the commands take to start: a fresh interpreter until the import is done, 15 runs each.

In: this interpreter, with bytecode as an installed package has it (the first, uncounted run makes it). Out:
milliseconds above a bare interpreter. Modules take turns, so that a busy moment of the machine meets all of them.
Budget: 150 ms for ``agent diagnose``; 40 ms for the launcher.
"""

from __future__ import annotations

import sys

from frame import Report, compiled, cost, scratch, spread

RUNS = 15
BUDGETS = {"agent.launch": 40, "agent.sim": None, "agent.cli.diagnose": 150, "agent.watch": None}


def main() -> int:
    report = Report("import", "import times above a bare interpreter")
    raw: dict[str, list[float]] = {module: [] for module in BUDGETS}
    bare: list[float] = []
    with scratch() as folder:
        environment = compiled(folder)

        def milliseconds(statement: str) -> float:
            return cost([sys.executable, "-c", statement], env=environment).seconds * 1000

        for module in BUDGETS:
            milliseconds(f"import {module}")
        for _ in range(RUNS):
            bare.append(milliseconds("pass"))
            for module in BUDGETS:
                raw[module].append(round(milliseconds(f"import {module}") - bare[-1], 1))
    report.add(unit="ms above a bare interpreter", bare=spread(bare))
    for module, budget in BUDGETS.items():
        report.row(f"import {module}, median of {RUNS}", spread(raw[module])["p50"], "ms", budget)
        report.add(**{module: {"budget": budget, **spread(raw[module]), "raw": raw[module]}})
    report.done()
    return 0


if __name__ == "__main__":
    sys.exit(main())
