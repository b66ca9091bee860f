"""Receivers on loopback that keep what they were sent: an Alertmanager's API v2 and a plain webhook."""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web


class Receiver:
    """``status`` is what it answers; ``refuse`` names alerts that make a whole request a 400, as Alertmanager does."""

    def __init__(self) -> None:
        self.status = 200
        self.refuse: set[str] = set()
        self.pushed: list[list[dict[str, Any]]] = []
        self.hooked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.attempts = 0
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application()
        app.router.add_post("/api/v2/alerts", self._alerts)
        app.router.add_post("/hook", self._hook)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()

    async def stop(self) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    @property
    def url(self) -> str:
        assert self._runner is not None
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    def names(self) -> list[str]:
        """The names of all alerts that were taken, in order."""
        return [alert["labels"]["alertname"] for batch in self.pushed for alert in batch]

    async def _alerts(self, request: web.Request) -> web.Response:
        self.attempts += 1
        if self.status != 200:
            return web.Response(status=self.status, text="trouble")
        batch = json.loads(await request.read())
        if any(alert["labels"]["alertname"] in self.refuse for alert in batch):
            return web.json_response({"code": 601, "message": "bad alert"}, status=400)
        self.pushed.append(batch)
        self.headers.append(dict(request.headers))
        return web.Response()

    async def _hook(self, request: web.Request) -> web.Response:
        self.attempts += 1
        if self.status != 200:
            return web.Response(status=self.status, headers={"Retry-After": "7"}, text="trouble")
        self.hooked.append(json.loads(await request.read()))
        self.headers.append(dict(request.headers))
        return web.Response()
