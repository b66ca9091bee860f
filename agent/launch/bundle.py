"""Builds ``agent-launch.pyz``: the launcher as one file for an image that has Python and nothing else.

In: this package's own files. Out: a zipapp with ``agent/__init__.py``, ``agent/errors.py`` and
``agent/launch/**`` alone. Run it as ``python -m agent.launch.bundle dist/agent-launch.pyz``.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import zipapp
from pathlib import Path

MAIN = "import sys\n\nfrom agent.launch.cli import main\n\nsys.exit(main(sys.argv[1:]))\n"


def build(target: Path) -> Path:
    """Write the zipapp, executable, with ``python3`` as its interpreter. Raises OSError."""
    package = Path(__file__).resolve().parent.parent
    with tempfile.TemporaryDirectory(prefix="agent-bundle-") as folder:
        root = Path(folder)
        (root / "agent" / "launch").mkdir(parents=True)
        for name in ("__init__.py", "errors.py"):
            shutil.copy(package / name, root / "agent" / name)
        for source in sorted((package / "launch").glob("*.py")):
            shutil.copy(source, root / "agent" / "launch" / source.name)
        (root / "__main__.py").write_text(MAIN, encoding="utf-8")
        target.parent.mkdir(parents=True, exist_ok=True)
        zipapp.create_archive(root, target, interpreter="/usr/bin/env python3", compressed=True)
    target.chmod(0o755)
    return target


if __name__ == "__main__":
    print(build(Path(sys.argv[1] if len(sys.argv) > 1 else "dist/agent-launch.pyz")))
