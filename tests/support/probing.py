"""A kubelet's view: ``/livez`` asked again and again, every answer kept.

In: the probe port. Out: the answers with their times; ``states`` without repeats. It runs in a thread of its own, so
that a test can do something to the server meanwhile.
"""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass

OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class Answer:
    """``at``: monotonic seconds; ``status`` 0 where nobody answered."""

    at: float
    status: int
    state: str
    reason: str


def ask(port: int) -> Answer:
    """``/livez`` once."""
    try:
        with OPENER.open(f"http://127.0.0.1:{port}/livez", timeout=3) as answer:
            status, body = int(answer.status), json.loads(answer.read())
    except urllib.error.HTTPError as error:
        status, body = error.code, json.loads(error.read())
    except OSError as error:
        return Answer(time.monotonic(), 0, "", str(error))
    return Answer(time.monotonic(), status, str(body["state"]), str(body["reason"]))


class Kubelet:
    """Asks every ``period`` seconds while the ``with`` block runs."""

    def __init__(self, port: int, period: float = 0.25) -> None:
        self.answers: list[Answer] = []
        self._port, self._period = port, period
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kubelet", daemon=True)

    def __enter__(self) -> Kubelet:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(10)

    def _run(self) -> None:
        while not self._end.is_set():
            self.answers.append(ask(self._port))
            self._end.wait(self._period)

    @property
    def failed(self) -> list[Answer]:
        """The answers on which a kubelet would count towards a kill."""
        return [one for one in self.answers if one.status == 503]

    @property
    def states(self) -> list[str]:
        """Every state in order, repeats left out."""
        found: list[str] = []
        for one in self.answers:
            if one.state and (not found or found[-1] != one.state):
                found.append(one.state)
        return found
