"""Was the server told to stop by somebody else? Read from its own words as they pass.

In: chunks of the log. Out: whether vLLM said "[shutdown] API server: shutdown triggered" (vllm/entrypoints/
launcher.py, on SIGTERM and SIGINT) with no error shortly before. Errors *after* that line are normal: a
healthy SIGTERM prints an EngineDeadError traceback.
"""

from __future__ import annotations

MARKER = b"[shutdown] API server: shutdown triggered"
ERRORS = (
    b" ERROR ",
    b"Traceback (most recent call last)",
    b"exited unexpectedly",
    b"died unexpectedly",
    b"EngineDeadError",
)
MEMORY_SECONDS = 30.0
_OVERLAP = max(len(word) for word in (*ERRORS, MARKER))


class ShutdownScanner:
    """One per server process."""

    def __init__(self) -> None:
        self._tail = b""
        self._last_error: float | None = None
        self.told_to_stop = False

    def feed(self, chunk: bytes, now: float) -> None:
        """``now`` is monotonic seconds."""
        if self.told_to_stop:
            return
        text = self._tail + chunk
        marker = text.find(MARKER)
        limit = len(text) if marker < 0 else marker
        if any(text.rfind(error, 0, limit) + len(error) > len(self._tail) for error in ERRORS if error in text):
            self._last_error = now
        if marker >= 0:
            self.told_to_stop = self._last_error is None or now - self._last_error > MEMORY_SECONDS
        self._tail = text[-_OVERLAP:]
