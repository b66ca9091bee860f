"""The store's content in one file, so that a restarted watcher does not begin with empty windows.

In: a :class:`~agent.series.store.Store`. Out: a file, and the store again. :func:`capture_snapshot` copies what is
held, about three milliseconds for 300 series of twenty minutes at one second; :func:`write_snapshot` packs and writes
that copy and may run in a thread, since it touches the store no more. The file is replaced whole or not at all.
:func:`restore_snapshot` never raises: a file that is broken, of another server or of a newer agent is put aside as
``….rejected`` with a notice, and the windows fill anew.

Format 1: a MessagePack map (kind, v, saved_at_ms, target, order, crc, packed), where ``packed`` is zlib over a
MessagePack array of time tables and series. Nearly all series of a target share their times, so each table stands once.
"""

from __future__ import annotations

import contextlib
import os
import sys
import zlib
from array import array
from itertools import pairwise
from pathlib import Path

import msgspec

from agent.series.data import Labels, Series, is_stale
from agent.series.store import Store

KIND = "vllm-agent-series"
VERSION = 1
MAX_FILE_BYTES = 64 * 2**20
MAX_CONTENT_BYTES = 256 * 2**20
_LEVEL = 1


class Row(msgspec.Struct, array_like=True, frozen=True):
    """One series: its labels, the index of its time table, and its values and counter resets as raw arrays."""

    labels: Labels
    table: int
    values: bytes
    drops: list[int]


class Content(msgspec.Struct, array_like=True, frozen=True):
    """All series, with the time tables that they share (raw arrays of milliseconds)."""

    tables: list[bytes]
    rows: list[Row]


class Image(msgspec.Struct, frozen=True):
    """A copy of what a store held at ``saved_at_ms``."""

    saved_at_ms: int
    target: dict[str, str]
    content: Content


class _Head(msgspec.Struct, frozen=True):
    """What is read first, in every version."""

    kind: str
    v: int


class _File(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    v: int
    saved_at_ms: int
    target: dict[str, str]
    order: str
    crc: int
    packed: bytes


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """What a file gave back. ``notice`` is for people; None: all is well, or there was no file."""

    series: int = 0
    samples: int = 0
    saved_at_ms: int | None = None
    notice: str | None = None


class _RejectedError(Exception):
    """Why a file is put aside."""


def capture_snapshot(store: Store, *, now_ms: int) -> Image:
    """Copy what the store holds."""
    places: dict[bytes, int] = {}
    rows: list[Row] = []
    for series in store:
        if series.times:
            place = places.setdefault(series.times.tobytes(), len(places))
            rows.append(Row(series.labels, place, series.values.tobytes(), list(series.drops)))
    return Image(now_ms, dict(store.target), Content(list(places), rows))


def write_snapshot(path: Path, image: Image) -> str | None:
    """Pack and write; returns a notice where that failed. Blocks: call it in a thread."""
    packed = _packed(image.content)
    file = _File(
        kind=KIND,
        v=VERSION,
        saved_at_ms=image.saved_at_ms,
        target=image.target,
        order=sys.byteorder,
        crc=zlib.crc32(packed),
        packed=packed,
    )
    data = msgspec.msgpack.encode(file)
    if len(data) > MAX_FILE_BYTES:
        return f"{path}: the series take {len(data) >> 20} MiB and are not saved; a restart begins with empty windows"
    try:
        _replace(path, data)
    except OSError as error:
        return (
            f"{path}: the series are not saved ({os.strerror(error.errno or 0)}); a restart begins with empty windows"
        )
    return None


def _packed(content: Content) -> bytes:
    """Compressed row by row: the whole content a second time would stay in the process's memory."""
    press, encode = zlib.compressobj(_LEVEL), msgspec.msgpack.encode
    found = [press.compress(_array_of(2) + _array_of(len(content.tables)))]
    found += [press.compress(encode(table)) for table in content.tables]
    found.append(press.compress(_array_of(len(content.rows))))
    found += [press.compress(encode(row)) for row in content.rows]
    return b"".join((*found, press.flush()))


def _array_of(length: int) -> bytes:
    """MessagePack's head of an array."""
    return bytes((0x90 | length,)) if length < 16 else b"\xdd" + length.to_bytes(4, "big")


def restore_snapshot(path: Path, store: Store, *, now_ms: int) -> Restored:
    """Give the store what the file holds; call it before the first scrape."""
    try:
        data = _read(path)
        file, content = _decode(data, store)
    except FileNotFoundError:
        return Restored()
    except OSError as error:
        return Restored(notice=f"{path}: the saved series cannot be read: {error.strerror}; the windows fill anew")
    except _RejectedError as error:
        return Restored(notice=f"{path}: {error}; {_put_aside(path)}; the windows fill anew")
    kept = [count for count in (store.restore(one, now_ms=now_ms) for one in content) if count]
    ahead = file.saved_at_ms - now_ms
    notice = None
    if ahead > 0:
        notice = f"the wall clock is {ahead / 1000:.0f} s behind the saved series: what lies in the future is dropped"
    return Restored(series=len(kept), samples=sum(kept), saved_at_ms=file.saved_at_ms, notice=notice)


def _decode(data: bytes, store: Store) -> tuple[_File, list[Series]]:
    try:
        head = msgspec.msgpack.decode(data, type=_Head)
        if head.kind != KIND:
            raise _RejectedError("this is no file of saved series")
        if head.v > VERSION:
            raise _RejectedError(f"it was written by a newer agent (format {head.v}, this one reads {VERSION})")
        file = msgspec.msgpack.decode(data, type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise _RejectedError("the file is broken, or no file of saved series") from None
    if file.target != store.target:
        named = ", ".join(f"{name}={value}" for name, value in sorted(file.target.items()))
        raise _RejectedError(f"it holds the series of another server ({named or 'no target'})")
    try:
        return file, _series(file)
    except (msgspec.DecodeError, UnicodeDecodeError, zlib.error, ValueError, IndexError):
        raise _RejectedError("the file is broken") from None


def _series(file: _File) -> list[Series]:
    if zlib.crc32(file.packed) != file.crc:
        raise ValueError("the checksum is wrong")
    unpack = zlib.decompressobj()
    plain = unpack.decompress(file.packed, MAX_CONTENT_BYTES)
    if not unpack.eof:
        raise ValueError("the content is too large")
    content = msgspec.msgpack.decode(plain, type=Content)
    swap = file.order != sys.byteorder
    tables = [_array("q", table, swap) for table in content.tables]
    if not all(before < after for table in tables for before, after in pairwise(table)):
        raise ValueError("times do not rise")
    return [_one(row, tables[row.table], swap) for row in content.rows]


def _one(row: Row, times: array[int], swap: bool) -> Series:
    series = Series(row.labels)
    series.times = times[:]
    series.values = _array("d", row.values, swap)
    if len(series.values) != len(times):
        raise ValueError("a series has more values than times")
    series.drops = row.drops
    series.stale = sum(1 for value in series.values if value != value and is_stale(value))
    return series


def _array(kind: str, data: bytes, swap: bool) -> array:  # type: ignore[type-arg]
    values = array(kind, data)
    if swap:
        values.byteswap()
    return values


def _read(path: Path) -> bytes:
    """At most one byte more than a file may have; a link is not followed. Raises OSError, _RejectedError."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise _RejectedError(f"it is larger than {MAX_FILE_BYTES >> 20} MiB")
    return data


def _replace(path: Path, data: bytes) -> None:
    """Write beside, sync, rename. Raises OSError and leaves nothing behind."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def _put_aside(path: Path) -> str:
    aside = path.with_name(f"{path.name}.rejected")
    try:
        path.replace(aside)
    except OSError as error:
        return f"it could not be renamed ({error.strerror})"
    return f"it was renamed to {aside.name}"
