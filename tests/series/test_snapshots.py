"""A restarted watcher goes on with the windows it had; a file that cannot be used is put aside and said."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import msgspec
import pytest

from agent.series import (
    Match,
    Matcher,
    Need,
    Restored,
    Selection,
    Series,
    Store,
    capture_snapshot,
    is_stale,
    labels_of,
    restore_snapshot,
    write_snapshot,
)

TARGET = {"job": "vllm", "instance": "10.0.0.1:8000"}
T0 = 1_700_000_000_000
MINUTE = 60_000


def store(*needs: Need) -> Store:
    return Store(Selection(needs) if needs else Selection.all(10 * MINUTE), target=TARGET)


def named(name: str) -> Matcher:
    return Matcher("__name__", Match.EQUAL, name)


def lived(seconds: int = 60) -> Store:
    """A store with a counter that was reset, a series that ended, and one that began late."""
    made = store()
    for second in range(seconds):
        text = f"a {second % 40}\n" + ("gone NaN\n" if second < 30 else f'late{{x="é"}} {second}\n')
        made.scraped(text.encode(), "", at_ms=T0 + second * 1000, seconds=0.25)
    return made


def saved(path: Path, seconds: int = 60) -> Store:
    made = lived(seconds)
    assert write_snapshot(path, capture_snapshot(made, now_ms=T0 + seconds * 1000)) is None
    return made


def content(made: Store) -> dict[object, tuple[bytes, bytes, list[int], int]]:
    return {
        one.labels: (one.times.tobytes(), one.values.tobytes(), list(one.drops), one.stale) for one in made if one.times
    }


def one(made: Store, name: str) -> Series:
    (series,) = made.select([named(name)])
    return series


def test_everything_comes_back(tmp_path: Path) -> None:
    before, after = saved(tmp_path / "s"), store()
    restored = restore_snapshot(tmp_path / "s", after, now_ms=T0 + 61_000)
    assert content(after) == content(before)
    assert (restored.series, restored.notice, restored.saved_at_ms) == (len(before), None, T0 + 60_000)
    assert restored.samples == sum(len(series.times) for series in before)


def test_the_gap_is_a_gap_and_what_vanished_in_it_gets_no_marker(tmp_path: Path) -> None:
    saved(tmp_path / "s")
    after = store()
    restore_snapshot(tmp_path / "s", after, now_ms=T0 + 90_000)
    after.scraped(b"a 5\n", "", at_ms=T0 + 90_000, seconds=0.1)
    assert list(one(after, "a").times)[-2:] == [T0 + 59_000, T0 + 90_000]
    assert one(after, "a").drops == [T0 + 40_000, T0 + 90_000]
    assert not is_stale(one(after, "late").values[-1])
    assert one(after, "gone").stale == 1


def test_what_is_too_old_or_not_asked_for_is_left_out(tmp_path: Path) -> None:
    saved(tmp_path / "s")
    after = store(Need((named("a"),), MINUTE))
    restored = restore_snapshot(tmp_path / "s", after, now_ms=T0 + 30_500 + 6 * MINUTE)
    assert {dict(series.labels)["__name__"] for series in after} == {"a"}
    assert one(after, "a").times[0] == T0 + 31_000
    assert one(after, "a").drops == [T0 + 40_000]
    assert restored.notice is None
    assert restore_snapshot(tmp_path / "s", store(), now_ms=T0 + 3600_000).series == 0


def test_a_clock_that_was_set_back_drops_the_future(tmp_path: Path) -> None:
    saved(tmp_path / "s")
    after = store()
    restored = restore_snapshot(tmp_path / "s", after, now_ms=T0 + 35_000)
    assert "25 s behind" in str(restored.notice)
    assert list(one(after, "a").times)[-1] == T0 + 34_000
    assert after.scraped(b"a 1\n", "", at_ms=T0 + 35_000, seconds=0.1).kept == 1


def test_no_file_is_no_trouble(tmp_path: Path) -> None:
    assert restore_snapshot(tmp_path / "s", store(), now_ms=T0) == Restored()


def edited(path: Path, **fields: object) -> None:
    path.write_bytes(msgspec.msgpack.encode({**msgspec.msgpack.decode(path.read_bytes()), **fields}))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda path: path.write_bytes(b""), "broken"),
        (lambda path: path.write_bytes(path.read_bytes()[:-20]), "broken"),
        (lambda path: path.write_bytes(os.urandom(5000)), "broken"),
        (lambda path: path.write_bytes(b'{"kind": "x"}'), "broken"),
        (lambda path: edited(path, v=2), "newer agent (format 2, this one reads 1)"),
        (lambda path: edited(path, v=2, packed=7), "newer agent"),
        (lambda path: edited(path, kind="journal"), "no file of saved series"),
        (
            lambda path: edited(path, target={"job": "vllm", "instance": "b:1"}),
            "another server (instance=b:1, job=vllm)",
        ),
        (lambda path: edited(path, packed=b"x" * 100), "broken"),
        (lambda path: path.write_bytes(path.read_bytes().replace(b"packed", b"pecked")), "broken"),
    ],
)
def test_a_file_that_cannot_be_used_is_put_aside_and_said(tmp_path: Path, spoil: object, words: str) -> None:
    path = tmp_path / "series.snapshot"
    saved(path)
    spoil(path)  # type: ignore[operator]
    spoilt, after = path.read_bytes(), store()
    notice = restore_snapshot(path, after, now_ms=T0 + 61_000).notice
    assert notice is not None
    assert words in notice
    assert "renamed to series.snapshot.rejected" in notice
    assert len(after) == 0
    assert not path.exists()
    assert (tmp_path / "series.snapshot.rejected").read_bytes() == spoilt


def test_every_cut_and_every_flipped_bit_is_noticed_or_harmless(tmp_path: Path) -> None:
    path = tmp_path / "s"
    before = content(saved(path, seconds=5))
    data = path.read_bytes()
    for place in range(len(data)):
        for spoilt in (data[:place], data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]):
            path.write_bytes(spoilt)
            after = store()
            notice = restore_snapshot(path, after, now_ms=T0 + 6_000).notice
            # Only the moment of saving is free to differ, and it decides nothing but a notice.
            assert content(after) == before or (notice is not None and len(after) == 0), place


def test_a_folder_or_a_link_in_its_place_is_said(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    assert "cannot be read" in str(restore_snapshot(tmp_path / "s", store(), now_ms=T0).notice)
    saved(tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert "cannot be read" in str(restore_snapshot(tmp_path / "link", store(), now_ms=T0).notice)


def test_a_full_disk_is_said_and_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s"
    saved(path)
    old = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    notice = write_snapshot(path, capture_snapshot(lived(10), now_ms=T0))
    assert "No space left on device" in str(notice)
    assert path.read_bytes() == old
    assert [entry.name for entry in tmp_path.iterdir()] == ["s"]


def test_a_missing_folder_is_said(tmp_path: Path) -> None:
    notice = write_snapshot(tmp_path / "no" / "s", capture_snapshot(lived(10), now_ms=T0))
    assert "No such file" in str(notice)


def test_the_file_is_the_agents_alone(tmp_path: Path) -> None:
    saved(tmp_path / "s")
    assert (tmp_path / "s").stat().st_mode & 0o777 == 0o600


def test_the_agents_own_series_come_back_without_a_target(tmp_path: Path) -> None:
    labels = labels_of({"__name__": "r", "rule": "x"})
    before, after = Store(Selection.all(MINUTE)), Store(Selection.all(MINUTE))
    before.record("r", [(labels, 1.5)], at_ms=T0)
    assert write_snapshot(tmp_path / "s", capture_snapshot(before, now_ms=T0)) is None
    assert restore_snapshot(tmp_path / "s", after, now_ms=T0 + 1).series == 1
    after.record("r", (), at_ms=T0 + 1000)
    assert list(one(after, "r").values) == [1.5]
    assert "another server" in str(restore_snapshot(tmp_path / "s", store(), now_ms=T0 + 1).notice)


def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path / "s")
    monkeypatch.setattr("agent.series.snapshot.MAX_CONTENT_BYTES", 1000)
    assert "broken" in str(restore_snapshot(tmp_path / "s", store(), now_ms=T0).notice)
