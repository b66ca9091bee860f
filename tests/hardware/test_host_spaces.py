"""Where a server writes, what is free there, and a file system that hangs."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path

import pytest

from agent.launch.space import Bounded, Hangs, measure, places


@pytest.mark.parametrize(
    ("argv", "env", "expected"),
    [
        ([], {}, {"model_cache": "/root/.cache/huggingface/hub", "compile_cache": "/root/.cache/vllm", "tmp": "/tmp"}),
        (["vllm", "serve", "org/model"], {"HOME": "/home/u"}, {"model_cache": "/home/u/.cache/huggingface/hub"}),
        (["vllm", "serve", "/models/llama"], {}, {"model": "/models/llama"}),
        (["vllm", "serve", "~/llama"], {"HOME": "/home/u"}, {"model": "/home/u/llama"}),
        (["python", "-m", "vllm.entrypoints.openai.api_server", "--model=/m"], {}, {"model": "/m"}),
        (["bash", "-c", "exec vllm serve /m --download-dir /d"], {}, {"model": "/m", "model_cache": "/d"}),
        (["vllm", "serve", "M", "--download_dir=/d"], {"HF_HOME": "/h"}, {"model_cache": "/d"}),
        ([], {"HF_HOME": "/h", "XDG_CACHE_HOME": "/x"}, {"model_cache": "/h/hub", "compile_cache": "/x/vllm"}),
        ([], {"HF_HUB_CACHE": "/c", "HF_HOME": "/h"}, {"model_cache": "/c"}),
        ([], {"HUGGINGFACE_HUB_CACHE": "/c", "HF_HUB_CACHE": ""}, {"model_cache": "/c"}),
        ([], {"VLLM_CACHE_ROOT": "/v", "TMPDIR": "/scratch"}, {"compile_cache": "/v", "tmp": "/scratch"}),
    ],
)
def test_the_paths_are_those_that_the_server_uses(
    argv: list[str], env: dict[str, str], expected: dict[str, str]
) -> None:
    found = places(argv, env, None)
    assert {use: found.get(use) for use in expected} == expected


@pytest.mark.parametrize("argv", [["vllm", "serve"], ["vllm", "serve", "org/model"], ["vllm", "serve", "--port", "1"]])
def test_a_name_of_a_repository_is_no_path(argv: list[str]) -> None:
    assert "model" not in places(argv, {}, None)


def test_relative_paths_are_left_out() -> None:
    assert "model_cache" not in places(["vllm", "serve", "M", "--download-dir", "here"], {}, "/run/a")


def test_a_path_that_is_not_there_yet_is_measured_where_it_will_be(tmp_path: Path) -> None:
    info = os.statvfs(tmp_path)
    size = measure(str(tmp_path / "a" / "b" / "c"))
    assert size.total_bytes == info.f_blocks * info.f_frsize
    assert 0 <= size.free_bytes <= size.total_bytes


def test_links_are_followed_inside_the_other_root(tmp_path: Path) -> None:
    """/cache of a container is a link to /data: not to our own /data. /dev/shm stands for another file system."""
    root = tmp_path / "root"
    (root / "data").mkdir(parents=True)
    (root / "cache").symlink_to("/data")
    (root / "up").symlink_to("../../../../data")
    (root / "shm").symlink_to("/dev/shm")
    here = root.stat().st_dev
    for path in ("/cache/hub", "/up/x", "/shm/x", "/../../data"):
        assert measure(path, root).device == here, path


def test_links_in_a_circle_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links"):
        measure("/a", tmp_path)


# -- work that hangs ---------------------------------------------------------------------------------------


async def test_work_that_hangs_is_left_and_never_started_twice() -> None:
    release, begun = threading.Event(), 0

    def hang() -> str:
        nonlocal begun
        begun += 1
        release.wait(60)
        return "late"

    bounded = Bounded(hang, time.monotonic)
    for _ in range(3):
        with pytest.raises(Hangs, match="no answer for"):
            await bounded.run(0.05)
    assert begun == 1
    release.set()
    for _ in range(500):  # the answer comes through the loop
        await asyncio.sleep(0.01)
        try:
            answer = await bounded.run(5)
            break
        except Hangs:
            continue
    assert answer == "late"
    assert begun == 2


async def test_who_asks_meanwhile_gets_the_same_answer() -> None:
    begun = []

    def slow() -> int:
        begun.append(1)
        time.sleep(0.1)
        return len(begun)

    bounded = Bounded(slow, time.monotonic)
    assert await asyncio.gather(*(bounded.run(30) for _ in range(3))) == [1, 1, 1]


async def test_the_loop_goes_on_while_a_file_system_hangs() -> None:
    release = threading.Event()
    bounded = Bounded(lambda: release.wait(60), time.monotonic)
    waiting = asyncio.ensure_future(bounded.run(30))
    turns = 0
    while turns < 100:
        await asyncio.sleep(0)
        turns += 1
    assert not waiting.done()
    release.set()
    assert await waiting is True


async def test_an_error_of_the_work_is_the_askers() -> None:
    bounded: Bounded[int] = Bounded(lambda: 1 // 0, time.monotonic)
    with pytest.raises(ZeroDivisionError):
        await bounded.run(30)
