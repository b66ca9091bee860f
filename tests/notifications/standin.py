"""A stand-in for Slack on loopback: Web API and incoming webhook, with the refusals that Slack gives."""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web


class SlackStandIn:
    """``mode``: ok, down (the connection breaks), 429, 500, or an error code of Slack's."""

    def __init__(self) -> None:
        self.mode = "ok"
        self.retry_after = 30
        self.messages: dict[str, dict[str, Any]] = {}
        self.hooked: list[dict[str, Any]] = []
        self.delivered: list[tuple[str, str]] = []
        self.attempts = 0
        self.tokens: set[str] = set()
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application()
        app.router.add_post("/api/{method}", self._api)
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

    def texts(self) -> list[str]:
        return [message["text"] for message in self.messages.values()]

    def _trouble(self, request: web.Request) -> web.Response | None:
        self.attempts += 1
        if self.mode == "down":
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if self.mode == "429":
            headers = {"Retry-After": str(self.retry_after)}
            return web.json_response({"ok": False, "error": "ratelimited"}, status=429, headers=headers)
        if self.mode == "500":
            return web.Response(status=500, text="<html>oops</html>")
        return None

    async def _api(self, request: web.Request) -> web.Response:
        if (trouble := self._trouble(request)) is not None:
            return trouble
        if self.mode != "ok":
            return web.json_response({"ok": False, "error": self.mode})
        self.tokens.add(request.headers.get("Authorization", ""))
        raw = await request.read()
        content = json.loads(raw)
        method = request.match_info["method"]
        if method == "chat.update":
            if content["ts"] not in self.messages:
                return web.json_response({"ok": False, "error": "message_not_found"})
            ts = content["ts"]
        else:
            ts = f"{len(self.delivered) + 1}.000"
        self.messages[ts] = content
        self.delivered.append((method, content["text"]))
        return web.json_response({"ok": True, "channel": content["channel"], "ts": ts})

    async def _hook(self, request: web.Request) -> web.Response:
        if (trouble := self._trouble(request)) is not None:
            return trouble
        if self.mode != "ok":
            return web.Response(status=404, text=self.mode)
        self.hooked.append(await request.json())
        return web.Response(text="ok")
