"""A server behind TLS: a private CA is verified, a launched server's own certificate is not."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from agent.collect import HealthKind, Target, VllmClient
from agent.model import SystemClock

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    key, cert = folder / "key.pem", folder / "cert.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test"
    words = [*command.split(), "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(words, check=True, capture_output=True)
    return key, cert


@pytest.fixture
async def url(certificate: tuple[Path, Path]) -> AsyncIterator[str]:
    async def health(_: web.Request) -> web.Response:
        return web.Response()

    app = web.Application()
    app.router.add_get("/root/health", health)
    app.router.add_get("/health", health)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate[1], certificate[0])
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    yield f"https://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def health(target: Target) -> tuple[HealthKind, str]:
    async with VllmClient(target, SystemClock()) as client:
        answer = await client.health()
        return answer.kind, answer.detail


async def test_a_private_ca_is_verified_also_behind_a_root_path(url: str, certificate: tuple[Path, Path]) -> None:
    ca = str(certificate[1])
    assert (await health(Target(url=url, tls_ca=ca)))[0] is HealthKind.OK
    assert (await health(Target(url=f"{url}/root/", tls_ca=ca)))[0] is HealthKind.OK


async def test_an_unknown_certificate_is_a_reading_that_says_why(url: str) -> None:
    kind, detail = await health(Target(url=url))
    assert kind is HealthKind.OTHER and "certificate" in detail.lower()


async def test_the_certificate_of_our_own_child_is_not_asked_about(url: str) -> None:
    assert (await health(Target(url=url, tls_verify=False)))[0] is HealthKind.OK
