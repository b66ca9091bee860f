"""The text format to its letter: against prometheus_client's parsers, on real answers and on made ones."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from agent.series import ExpositionError, Labels, Reader, labels_of, parse

CAPTURES = sorted((Path(__file__).parents[1] / "data/captures/metrics").glob("*.prom"))
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
Seen = list[tuple[Labels, bytes, int | None]]


def bits(value: float) -> bytes:
    """So that NaN equals NaN and -0.0 is not 0.0."""
    return b"nan" if math.isnan(value) else struct.pack("<d", value)


def ours(body: str | bytes, content_type: str = "text/plain; version=0.0.4") -> Seen:
    found = parse(body.encode() if isinstance(body, str) else body, content_type)
    assert not found.bad, found.bad
    return [(labels, bits(value), time_ms) for labels, value, time_ms in found.samples]


def theirs(text: str) -> Seen:
    return [
        (
            labels_of({"__name__": sample.name, **sample.labels}),
            bits(sample.value),
            # It divides by 1000, so the milliseconds come back by rounding.
            None if sample.timestamp is None else round(float(sample.timestamp) * 1000),
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.stem)
def test_real_answers_read_as_the_reference_reads_them(path: Path) -> None:
    text = path.read_text()
    assert sorted(ours(text), key=repr) == sorted(theirs(text), key=repr)


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.stem)
def test_the_metadata_of_real_answers_is_kept(path: Path) -> None:
    text = path.read_text()
    families = parse(text.encode()).families
    said = [line.split(" ", 3) for line in text.splitlines() if line.startswith("# TYPE ")]
    assert {name: families[name].type for _, _, name, _ in said} == {name: kind for _, _, name, kind in said}
    assert all(families[name].help for _, _, name, _ in said)


NAMES = st.from_regex(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,12}", fullmatch=True)
LABEL_NAMES = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,8}", fullmatch=True).filter(lambda name: name[:2] != "__")
TEXTS = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\r"), max_size=12)
TRICKY = st.sampled_from(['"', "\\", "\n", "a b", "{", "}", "# {", ",", "=", '\\"', "\\n", " 1 2", "é", "日本", "} 3"])
VALUES = st.one_of(st.floats(), st.integers(-(2**53), 2**53).map(float))
SERIES = st.tuples(NAMES, st.dictionaries(LABEL_NAMES, st.one_of(TEXTS, TRICKY), max_size=4))


def quoted(text: str) -> str:
    return '"' + text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"") + '"'


def written(value: float) -> str:
    return {math.inf: "+Inf", -math.inf: "-Inf"}.get(value, "NaN" if math.isnan(value) else repr(value))


def rendered(name: str, labels: dict[str, str], value: float, time: str = "") -> str:
    inner = ",".join(f"{label}={quoted(text)}" for label, text in labels.items())
    return f"{name}{{{inner}}} {written(value)}{time}\n" if labels else f"{name} {written(value)}{time}\n"


@settings(max_examples=60)
@given(st.lists(st.tuples(SERIES, VALUES, st.none() | st.integers(-(10**13), 10**13)), min_size=1, max_size=8))
def test_what_is_written_is_read(samples: list[tuple[tuple[str, dict[str, str]], float, int | None]]) -> None:
    body = "".join(
        rendered(name, labels, value, "" if time is None else f" {time}") for (name, labels), value, time in samples
    )
    expected = [(labels_of({"__name__": name, **labels}), bits(value), time) for (name, labels), value, time in samples]
    assert ours(body) == expected
    reader: Reader[Labels] = Reader(lambda labels: labels)
    for _ in range(2):  # the second time from memory
        found = reader.read(body.encode())
        assert [(labels, bits(value), time) for labels, value, time in found.samples] == expected


@given(st.lists(st.tuples(SERIES, VALUES), min_size=1, max_size=6))
@settings(max_examples=60)
def test_the_reference_reads_the_same(samples: list[tuple[tuple[str, dict[str, str]], float]]) -> None:
    body = "".join(rendered(name, labels, value) for (name, labels), value in samples)
    assert sorted(ours(body), key=repr) == sorted(theirs(body), key=repr)


@pytest.mark.parametrize(
    ("line", "labels", "value", "time_ms"),
    [
        ('a{x="1",} 2', {"x": "1"}, 2.0, None),
        ('a { x = "1" , y="2" } 2 17', {"x": "1", "y": "2"}, 2.0, 17),
        ("a\t2\t17", {}, 2.0, 17),
        ("  a   2   17  ", {}, 2.0, 17),
        ("a{} 2", {}, 2.0, None),
        ('a{x="1"}2', {"x": "1"}, 2.0, None),
        ('a{x=""} 2', {}, 2.0, None),
        (r'a{x="\\n\"\n\q"} 2', {"x": '\\n"\n\\q'}, 2.0, None),
        ('a{x="} 3 # {y=\\"z\\"} 1"} 2', {"x": '} 3 # {y="z"} 1'}, 2.0, None),
        ('a{x="1"} 2 # {trace_id="a b"} 0.5 17.25', {"x": "1"}, 2.0, None),
        ('a{x="1"} 2 17 # {trace_id="}"} 0.5', {"x": "1"}, 2.0, 17),
        ("a 2 # {} 0.5", {}, 2.0, None),
        ("a -17e-1 -5", {}, -1.7, -5),
        ("a +iNf", {}, math.inf, None),
        ("a -Inf", {}, -math.inf, None),
        ("a 1\r", {}, 1.0, None),
    ],
)
def test_one_line(line: str, labels: dict[str, str], value: float, time_ms: int | None) -> None:
    body = f"other 1\n{line}\nother 2\n".encode()
    reader: Reader[Labels] = Reader(lambda labels: labels)
    for _ in range(3):
        found = reader.read(body)
        assert not found.bad
        assert found.samples[1] == (labels_of({"__name__": "a", **labels}), value, time_ms)


@pytest.mark.parametrize(
    ("line", "pairs"),
    [
        ('{"a.b",x="y"} 1', {"__name__": "a.b", "x": "y"}),
        ('{x="y","a.b"} 1', {"__name__": "a.b", "x": "y"}),
        ('{"a.b","x.y"="z"} 1', {"__name__": "a.b", "x.y": "z"}),
        ('a{"x y"="z"} 1', {"__name__": "a", "x y": "z"}),
        ('{"日本 \\"1\\""} 1', {"__name__": '日本 "1"'}),
    ],
)
def test_quoted_names(line: str, pairs: dict[str, str]) -> None:
    assert ours(f"{line}\n") == [(labels_of(pairs), bits(1.0), None)]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("a", "missing"),
        ("a{", "labels at column 3"),
        ('a{x="1" 2', "column 9"),
        ('a{x="1"y="2"} 2', "column 8"),
        ("a{x=1} 2", "labels"),
        ('a{x="1} 2', "labels"),
        ("a x", "'x' is no number"),
        ("a 1_000", "1_000"),
        ("a 0x10", "0x10"),
        ("a 1e999", "too large"),
        ("a １", "number"),
        ("a 1 2 3", "after the timestamp"),
        ("a 1 2.5", "timestamp"),
        ("a 1 99999999999999999999999", "out of range"),
        ("a 1 # x", "timestamp"),
        ('a{x="1",x="2"} 1', "twice"),
        ('a{__name__="b"} 1', "twice"),
        ('{x="1"} 1', "no metric name"),
        ('a{"b"} 1', "two metric names"),
        ("9a 1", "no metric name"),
        ("ä 1", "no metric name"),
    ],
)
def test_a_broken_line_costs_that_line_alone(line: str, words: str) -> None:
    body = f"# HELP good x\ngood 1\n{line}\n\ngood2 2\n".encode()
    reader: Reader[Labels] = Reader(lambda labels: labels)
    for _ in range(2):
        found = reader.read(body)
        assert [value for _, value, _ in found.samples] == [1.0, 2.0]
        assert (found.lines, found.bad_count, found.bad[0].line) == (2, 1, 3)
        assert words in found.bad[0].reason
        assert "line 3" in str(found.trouble())


def test_invalid_utf8_costs_its_line() -> None:
    found = parse(b'a{x="\xff"} 1\na{x="y"} 2\n')
    assert [value for _, value, _ in found.samples] == [2.0]
    assert found.bad[0].reason == "invalid UTF-8"


def test_many_broken_lines_are_counted_and_few_are_named() -> None:
    found = parse(b"good 1\n" + b"a x\n" * 1000)
    assert found.bad_count == 1000
    assert len(found.bad) == 20


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_but_a_refusal(body: bytes) -> None:
    for content_type in ("", OPENMETRICS):
        try:
            parse(body, content_type)
        except ExpositionError as error:
            assert "exposition" in error.message


@settings(max_examples=60)
@given(st.data())
def test_a_spoilt_real_answer_reads_the_same_from_memory(data: st.DataObject) -> None:
    lines = CAPTURES[0].read_text().splitlines()[:40]
    for _ in range(data.draw(st.integers(1, 5))):
        place = data.draw(st.integers(0, len(lines) - 1))
        cut = data.draw(st.integers(0, len(lines[place])))
        lines[place] = lines[place][:cut] + data.draw(
            st.sampled_from(['"', "{", "}", " ", "#", "x", "\\", ",", "1", ""])
        )
    body = "\n".join(lines).encode()
    reader: Reader[Labels] = Reader(lambda labels: labels)
    first, second, whole = reader.read(body), reader.read(body), parse(body)
    assert first.samples == second.samples == whole.samples
    assert first.bad == second.bad


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"<html><body>nginx</body></html>", "web page"),
        (b"\n <!DOCTYPE html>\n<p>a 1", "web page"),
        (b'{"detail":"Not Found"}', "JSON"),
        (b'{\n "a": 1\n}', "JSON"),
        (b"[1, 2]", "JSON"),
        (b"{}", "JSON"),
        (b"\x89PNG\r\n\x1a\n", "binary"),
        (b"\x1f\x8b\x08\x00", "binary"),
        (b"Internal Server Error", "line 1"),
        (b"OK", "line 1"),
        (b"# only a title\n\nand some words\n", "line 3"),
    ],
)
def test_what_is_no_exposition_is_refused_in_words(body: bytes, words: str) -> None:
    with pytest.raises(ExpositionError, match="not a Prometheus text exposition") as refused:
        parse(body)
    assert words in refused.value.message
    assert refused.value.remedy


@pytest.mark.parametrize("body", [b"", b"\n", b"# HELP a b\n"])
def test_an_empty_answer_is_an_answer(body: bytes) -> None:
    assert parse(body).samples == []


OM = """# HELP a_seconds How long.
# TYPE a_seconds histogram
# UNIT a_seconds seconds
a_seconds_bucket{le="0.5"} 1 # {trace_id="x y"} 0.25 1700000000.5
a_seconds_bucket{le="+Inf"} 2
a_seconds_count 2
a_seconds_sum 1.5
a_seconds_created 1700000000.123
# TYPE b counter
b_total{x="#"} 5 1700000000.250
# TYPE c gauge
c 1 1700000001
# EOF
"""


def test_openmetrics_reads_as_the_reference_reads_it() -> None:
    reference = [
        (
            labels_of({"__name__": sample.name, **sample.labels}),
            bits(sample.value),
            None if sample.timestamp is None else int(float(sample.timestamp) * 1000),
        )
        for family in openmetrics_families(OM)
        for sample in family.samples
    ]
    assert ours(OM, OPENMETRICS) == reference
    found = parse(OM.encode(), OPENMETRICS)
    assert (found.families["a_seconds"].type, found.families["a_seconds"].unit) == ("histogram", "seconds")
    reader: Reader[Labels] = Reader(lambda labels: labels)
    assert reader.read(OM.encode(), OPENMETRICS).samples == reader.read(OM.encode(), OPENMETRICS).samples


def test_the_content_type_decides_what_a_timestamp_means() -> None:
    assert parse(b"a 1 1700000000\n").samples[0][2] == 1_700_000_000
    assert parse(b"a 1 1700000000\n# EOF\n", OPENMETRICS).samples[0][2] == 1_700_000_000_000


def test_openmetrics_that_was_cut_off_says_so_and_distrusts_its_last_line() -> None:
    found = parse(b"a 1\nb 12", OPENMETRICS)
    assert [value for _, value, _ in found.samples] == [1.0]
    assert "EOF" in str(found.trouble())
    assert [value for _, value, _ in parse(b"a 1\n# EOF\nb 2\n", OPENMETRICS).samples] == [1.0]


def test_created_series_can_be_left_out() -> None:
    text = CAPTURES[0].read_text()
    created = {line.split("{")[0] for line in text.splitlines() if "_created{" in line and line[0] != "#"}
    assert created
    body = text + "# TYPE users_created gauge\nusers_created 3\n"
    kept = {dict(labels)["__name__"] for labels, _, _ in parse(body.encode(), created=False).samples}
    assert not kept & created
    assert "users_created" in kept


def test_crlf_reads_as_lf() -> None:
    text = CAPTURES[0].read_text()
    assert ours(text.replace("\n", "\r\n")) == ours(text)


def test_duplicates_stay_in_order() -> None:
    assert [value for _, value, _ in parse(b"a 1\na 2\n").samples] == [1.0, 2.0]


def test_new_labels_at_every_scrape_take_no_memory() -> None:
    reader: Reader[Labels] = Reader(lambda _: None, max_known=1000)
    for round_ in range(20):
        found = reader.read("".join(f'a{{x="{round_}-{i}"}} 1\n' for i in range(700)).encode())
        assert found.lines == 700
        assert len(reader) <= 1000


def test_an_endless_answer_is_read_to_the_limit_and_said() -> None:
    reader: Reader[Labels] = Reader(lambda labels: labels, max_lines=100)
    found = reader.read(b"".join(b"a%d 1\n" % i for i in range(1000)))
    assert found.truncated
    assert len(found.samples) == 100
    assert "first 100 samples" in str(found.trouble())


def test_a_series_is_resolved_once() -> None:
    asked: list[Labels] = []
    reader: Reader[Labels] = Reader(lambda labels: asked.append(labels))  # type: ignore[func-returns-value]
    for value in range(3):
        reader.read(f'a{{x="y"}} {value}\n'.encode())
    assert len(asked) == 1
    reader.forget()
    reader.read(b'a{x="y"} 1\n')
    assert len(asked) == 2


def test_a_flood_of_new_series_is_learnt_over_several_answers() -> None:
    reader: Reader[Labels] = Reader(lambda labels: labels, max_new=400)
    body = b"".join(b"a%d 1\n" % i for i in range(1000))
    seen = []
    for _ in range(4):
        found = reader.read(body)
        seen.append((len(found.samples), found.waiting, found.trouble() is None))
    assert seen == [(400, 600, False), (800, 200, False), (1000, 0, True), (1000, 0, True)]


def test_an_endless_openmetrics_answer_is_cut_and_not_called_broken() -> None:
    found = parse(b"a 1\n" * 150_000 + b"# EOF\n", OPENMETRICS)
    assert found.truncated
    assert len(found.samples) == 100_000
    assert not found.bad
