"""A driver stand-in under the real binding: built once a test run, its cards are lines of a file."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("fake_nvml.c")


def compiler() -> str:
    found = shutil.which("gcc") or shutil.which("cc")
    if found is None:
        pytest.skip("no C compiler to build the driver stand-in with")
    return found


def build(folder: Path, *flags: str) -> Path:
    """The folder that holds ``libnvidia-ml.so.1``."""
    folder.mkdir(parents=True)
    library = "libnvidia-ml.so.1"
    command = [compiler(), "-O1", "-w", "-shared", "-fPIC", f"-Wl,-soname,{library}", *flags]
    subprocess.run([*command, "-o", str(folder / library), str(SOURCE)], check=True, timeout=120)
    return folder


class FakeDriver:
    """Its state file; ``library`` None: no driver is installed."""

    def __init__(self, state: Path, library: Path | None) -> None:
        self._state = state
        self._library = library
        self._xids = state.with_name(state.name + ".xids")
        self._head: dict[str, object] = {}
        self._cards: list[dict[str, object]] = []
        self.set()

    def environment(self, **more: str) -> dict[str, str]:
        env = {**os.environ, "FAKE_NVML": str(self._state), **more}
        for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
            if name not in more:
                env.pop(name, None)
        if self._library is not None:
            env["LD_LIBRARY_PATH"] = str(self._library)
        return env

    def set(self, *cards: dict[str, object], **head: object) -> None:
        """Everything anew."""
        self._cards, self._head = [dict(card) for card in cards], dict(head)
        self._write()

    def card(self, index: int, **values: object) -> None:
        """Change one card."""
        self._cards[index].update(values)
        self._write()

    def head(self, **values: object) -> None:
        """Change the driver as a whole."""
        self._head.update(values)
        self._write()

    def xid(self, gpu: int, number: int, instance: int = 0xFFFFFFFF) -> None:
        """The driver reports one."""
        with self._xids.open("a") as file:
            file.write(f"{gpu} {number} {instance}\n")

    def _write(self) -> None:
        rows = [("driver", self._head), *(("gpu", card) for card in self._cards)]
        text = "".join(" ".join([word, *(f"{k}={v}" for k, v in row.items())]) + "\n" for word, row in rows)
        beside = self._state.with_name("state.new")
        beside.write_text(text)
        beside.replace(self._state)
