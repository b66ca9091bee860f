"""``agent overrides list|clear`` against a launcher."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from tests.watching.launcher import Document, FakeLauncher


async def agent(*words: str) -> tuple[int, str, str]:
    import sys

    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "agent", *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    return int(process.returncode or 0), out.decode(), err.decode()


class Changed(FakeLauncher):
    """With overrides in force."""

    def status(self) -> Document:
        change = {
            "v": 1,
            "flags": [["--max-num-seqs", "8"]],
            "env": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "TRITON_PTXAS_PATH": None},
            "unset_flags": ["--enforce-eager"],
            "incident": "i-1",
            "created_at": "2026-01-01T00:00:00Z",
        }
        return {**super().status(), "overrides": change, "overrides_notice": None}


async def test_listed_as_text_and_as_json_and_cleared(tmp_path: Path) -> None:
    async with Changed(tmp_path) as launcher:
        code, out, _ = await agent("overrides", "list", "--run-dir", str(tmp_path))
        assert code == 0
        assert "flag  --max-num-seqs 8" in out and "flag  --enforce-eager taken out" in out
        assert "env   TRITON_PTXAS_PATH unset" in out and "for incident i-1" in out
        code, out, _ = await agent("overrides", "list", "--run-dir", str(tmp_path), "--output", "json")
        assert json.loads(out)["overrides"]["flags"] == [["--max-num-seqs", "8"]]
        code, out, _ = await agent("overrides", "clear", "--run-dir", str(tmp_path))
        assert code == 0 and launcher.asked("clear-overrides") == [{}]


async def test_none_in_force_is_said(tmp_path: Path) -> None:
    async with FakeLauncher(tmp_path):
        code, out, _ = await agent("overrides", "list", "--run-dir", str(tmp_path))
        assert (code, out) == (0, "none in force\n")


async def test_no_launcher_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    code, out, err = await agent("overrides", "list", "--run-dir", str(tmp_path))
    assert code == 1 and out == "" and "remedy" in err and "Traceback" not in err
