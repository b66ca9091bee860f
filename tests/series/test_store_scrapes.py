"""The store writes what Prometheus would write of a scrape: labels, ``up``, staleness, timestamps, order."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.series import STALE, Labels, Match, Matcher, Need, Selection, Series, Store, Taken, is_stale, labels_of

CAPTURES = sorted((Path(__file__).parents[1] / "data/captures/metrics").glob("*.prom"))
TARGET = {"job": "vllm", "instance": "10.0.0.1:8000"}
T0 = 1_700_000_000_000
MINUTE = 60_000


def named(name: str) -> Matcher:
    return Matcher("__name__", Match.EQUAL, name)


def scrape(store: Store, text: str, second: float) -> Taken:
    return store.scraped(text.encode(), "text/plain", at_ms=T0 + int(second * 1000), seconds=0.01)


def points(store: Store, name: str, **labels: str) -> list[tuple[float, float | str]]:
    """(second, value) of the one series with these labels beside the target's."""
    wanted = [named(name), *(Matcher(label, Match.EQUAL, value) for label, value in labels.items())]
    (series,) = store.select(wanted)
    return shown(series)


def shown(series: Series) -> list[tuple[float, float | str]]:
    return [
        ((time - T0) / 1000, "stale" if is_stale(value) else value)
        for time, value in zip(series.times, series.values, strict=True)
    ]


@pytest.fixture
def store() -> Store:
    return Store(Selection.all(10 * MINUTE), target=TARGET)


def test_a_scrape_stamps_the_target_and_reports_itself(store: Store) -> None:
    taken = scrape(store, 'a{x="1"} 5\nb 2\n', 0)
    assert (taken.up, taken.scraped, taken.kept, taken.refused, taken.trouble) == (True, 2, 2, 0, None)
    (series,) = store.select([named("a")])
    assert series.labels == labels_of({"__name__": "a", "x": "1", **TARGET})
    assert points(store, "up", **TARGET) == [(0, 1.0)]
    assert points(store, "scrape_samples_scraped") == [(0, 2.0)]
    assert points(store, "scrape_duration_seconds") == [(0, 0.01)]


@pytest.mark.parametrize(
    ("exposed", "stored"),
    [
        ({"job": "x"}, {"exported_job": "x"}),
        ({"job": "x", "exported_job": "y"}, {"exported_exported_job": "x", "exported_job": "y"}),
        ({"job": "x", "instance": "y"}, {"exported_job": "x", "exported_instance": "y"}),
        ({"job": ""}, {}),
    ],
)
def test_an_exposed_label_gives_way_to_the_targets(
    store: Store, exposed: dict[str, str], stored: dict[str, str]
) -> None:
    labels = ",".join(f'{name}="{value}"' for name, value in exposed.items())
    scrape(store, f"a{{{labels}}} 1\n", 0)
    (series,) = store.select([named("a")])
    assert series.labels == labels_of({"__name__": "a", **stored, **TARGET})


def test_a_series_that_is_missing_from_the_next_answer_ends_once(store: Store) -> None:
    scrape(store, "a 1\nb 1\n", 0)
    scrape(store, "b 2\n", 1)
    scrape(store, "b 3\n", 2)
    scrape(store, "a 9\nb 4\n", 3)
    assert points(store, "a") == [(0, 1.0), (1, "stale"), (3, 9.0)]
    assert points(store, "b") == [(0, 1.0), (1, 2.0), (2, 3.0), (3, 4.0)]


@pytest.mark.parametrize("how", ["no answer", "a web page"])
def test_a_failed_scrape_ends_every_series_and_writes_up(store: Store, how: str) -> None:
    scrape(store, "a 1\n", 0)
    for second in (1, 2):
        if how == "no answer":
            taken = store.failed(at_ms=T0 + second * 1000, seconds=2.0)
        else:
            taken = scrape(store, "<html>", second)
            assert "web page" in str(taken.trouble)
        assert not taken.up
    scrape(store, "a 3\n", 3)
    assert points(store, "a") == [(0, 1.0), (1, "stale"), (3, 3.0)]
    assert points(store, "up") == [(0, 1.0), (1, 0.0), (2, 0.0), (3, 1.0)]
    assert [value for _, value in points(store, "scrape_samples_scraped")] == [1.0, 0.0, 0.0, 1.0]


def test_a_target_that_is_gone_ends_with_its_up(store: Store) -> None:
    scrape(store, "a 1\n", 0)
    store.gone(at_ms=T0 + 1000)
    assert points(store, "a") == [(0, 1.0), (1, "stale")]
    assert points(store, "up") == [(0, 1.0), (1, "stale")]


def test_a_sample_with_a_time_of_its_own_keeps_it_and_is_not_marked_stale(store: Store) -> None:
    scrape(store, f"a 1 {T0 - 5000}\n", 0)
    scrape(store, f"a 1 {T0 - 5000}\n", 1)  # the same again is refused
    scrape(store, f"a 2 {T0 + 500}\n", 2)
    scrape(store, f"a 3 {T0 - 1000}\n", 3)  # out of order
    scrape(store, f"a 4 {T0 + 11 * MINUTE}\n", 4)  # too far ahead
    scrape(store, "b 1\n", 5)
    assert points(store, "a") == [(-5, 1.0), (0.5, 2.0)]


def test_a_series_that_gets_times_of_its_own_ends_where_it_was_tracked(store: Store) -> None:
    scrape(store, "a 1\n", 0)
    scrape(store, f"a 2 {T0 + 500}\n", 1)
    assert points(store, "a") == [(0, 1.0), (0.5, 2.0), (1, "stale")]


def test_of_two_samples_of_one_series_the_first_counts(store: Store) -> None:
    taken = scrape(store, 'a{x="1",y="2"} 1\na{y="2",x="1"} 7\na{x="1",y="2"} 8\n', 0)
    assert (taken.kept, taken.refused, taken.scraped) == (1, 2, 3)
    assert points(store, "a") == [(0, 1.0)]
    scrape(store, 'a{y="2",x="1"} 7\na{x="1",y="2"} 1\n', 1)
    assert points(store, "a") == [(0, 1.0), (1, 7.0)]


def test_a_broken_line_is_said_and_costs_no_scrape(store: Store) -> None:
    taken = scrape(store, "a 1\nb x\n", 0)
    assert taken.up
    assert "line 2" in str(taken.trouble)


def test_only_what_is_asked_for_is_kept_and_no_longer() -> None:
    engine = Matcher("engine", Match.REGEX, "0|1")
    needs = [Need((named("a"), engine), 2 * MINUTE), Need((named("a"),), 0), Need((named("b"), engine), MINUTE)]
    store = Store(Selection(needs), target=TARGET)
    text = "".join(f'{name}{{engine="{n}"}} 1\n' for name in "abc" for n in range(3))
    for second in range(0, 1200, 10):
        taken = scrape(store, text, second)
    assert (taken.scraped, taken.kept) == (9, 5)
    span = {
        (dict(one.labels)["__name__"], dict(one.labels).get("engine")): (one.times[-1] - one.times[0]) / MINUTE
        for one in store
    }
    assert {key for key in span if key[0] in "abc"} == {("a", "0"), ("a", "1"), ("a", "2"), ("b", "0"), ("b", "1")}
    # The window, the lookback of five minutes, and at most the half minute between two rounds of trimming.
    assert 7 <= span["a", "0"] <= 7.5
    assert 5 <= span["a", "2"] <= 5.5
    assert 6 <= span["b", "1"] <= 6.5
    assert 5 <= span["up", None] <= 5.5


def test_a_matcher_may_ask_for_what_the_scrape_stamped() -> None:
    for job, kept in (("vllm", 1), ("other", 0)):
        store = Store(Selection([Need((named("a"), Matcher("job", Match.EQUAL, job)))]), target=TARGET)
        assert scrape(store, "a 1\n", 0).kept == kept


def test_the_generation_moves_when_series_come_and_go(store: Store) -> None:
    scrape(store, "a 1\n", 0)
    before, found = store.generation, store.select([named("a")])
    for second in range(1, 60):
        scrape(store, "a 1\n", second)
    assert store.generation == before
    assert store.select([named("a")]) is found
    scrape(store, "b 1\n", 60)
    assert store.generation != before
    assert len(store.select([Matcher("__name__", Match.REGEX, "a|b")])) == 2
    before = store.generation
    for second in range(61, 61 + 17 * 60, 10):
        scrape(store, "b 1\n", second)
    assert store.generation != before
    assert not store.select([named("a")])
    scrape(store, "a 5\nb 1\n", 2000)
    assert points(store, "a") == [(2000, 5.0)]


def test_selecting_tests_every_matcher(store: Store) -> None:
    scrape(store, 'a{x="1"} 1\na{x="2"} 1\na 1\nb{x="1"} 1\n', 0)

    def values(*matchers: Matcher) -> list[str]:
        return sorted(dict(one.labels).get("x", "-") for one in store.select([named("a"), *matchers]))

    assert values() == ["-", "1", "2"]
    assert values(Matcher("x", Match.EQUAL, "")) == ["-"]
    assert values(Matcher("x", Match.NOT_EQUAL, "1")) == ["-", "2"]
    assert values(Matcher("x", Match.REGEX, "1|2")) == ["1", "2"]
    assert values(Matcher("x", Match.REGEX, "1.+")) == []
    assert values(Matcher("x", Match.NOT_REGEX, ".+")) == ["-"]
    assert len(store.select([Matcher("x", Match.EQUAL, "1")])) == 2


def test_made_up_labels_fill_neither_memory_nor_the_place_of_later_series() -> None:
    store = Store(Selection.all(0), target=TARGET, max_series=50)
    for second in range(0, 1200, 60):
        taken = scrape(store, "".join(f'a{{x="{second}-{n}"}} 1\n' for n in range(100)), second)
        assert len(store) <= 50 + 4
        assert "not kept" in str(taken.trouble)
    for second in range(1200, 2000, 60):
        taken = scrape(store, "b 1\n", second)
    assert taken.kept == 1
    assert taken.trouble is None
    assert points(store, "b")[-1] == (1980, 1.0)


def test_a_clock_that_is_set_back_drops_the_future_and_goes_on(store: Store) -> None:
    for second in range(100):
        scrape(store, f"a {second}\n", second)
    taken = scrape(store, "a 100\n", 40)
    assert "set back by 59 s" in str(taken.trouble)
    assert points(store, "a")[-2:] == [(39, 39.0), (40, 100.0)]
    assert scrape(store, "a 101\n", 41).trouble is None
    assert points(store, "up")[-1] == (41, 1.0)


def test_a_clock_that_is_slewed_by_milliseconds_loses_nothing(store: Store) -> None:
    for second in (0, 1, 0.99, 2):
        taken = scrape(store, f"a {second}\n", second)
        assert (taken.kept, taken.trouble) == (1, None)
    assert points(store, "a") == [(0, 0.0), (1, 1.0), (1.001, 0.99), (2, 2.0)]


def test_counter_resets_are_known_across_gaps(store: Store) -> None:
    scrape(store, "a 5\n", 0)
    store.failed(at_ms=T0 + 1000, seconds=2)
    scrape(store, "a 1\n", 2)
    (series,) = store.select([named("a")])
    assert series.drops == [T0 + 2000]


def of(name: str, **labels: str) -> Labels:
    return labels_of({"__name__": name, **labels})


def test_what_a_rule_gives_no_more_ends() -> None:
    store = Store(Selection.all(MINUTE))
    store.record("r", [(of("r", x="1"), 1.0), (of("r", x="2"), 2.0)], at_ms=T0)
    store.record("other", [(of("o"), 1.0)], at_ms=T0)
    store.record("r", [(of("r", x="2"), 3.0)], at_ms=T0 + 1000)
    store.record("r", [(of("r", x="2"), 3.0)], at_ms=T0 + 2000)
    assert points(store, "r", x="1") == [(0, 1.0), (1, "stale")]
    assert points(store, "r", x="2") == [(0, 2.0), (1, 3.0), (2, 3.0)]
    store.record("r", (), at_ms=T0 + 3000)
    assert points(store, "r", x="2")[-1] == (3, "stale")
    assert points(store, "o") == [(0, 1.0)]
    assert not store.select([named("up")])


def test_a_slow_recording_is_kept_a_day_and_a_quick_one_as_long_as_it_is_read() -> None:
    selection = Selection([Need((named("quick"),), MINUTE)], recordings={"slow": MINUTE, "quick": 15_000})
    store = Store(selection)
    for minute in range(25 * 60):
        for name in ("slow", "quick", "nobody"):
            store.record(name, [(of(name), float(minute))], at_ms=T0 + minute * MINUTE)
    assert 24 * 60 + 5 <= len(points(store, "slow")) <= 24 * 60 + 7
    assert 6 <= len(points(store, "quick")) <= 8
    assert not store.select([named("nobody")])


def test_single_samples_are_appended_in_order() -> None:
    store = Store(Selection([Need((named("a"),))]))
    assert store.append(of("a"), T0, 1.0)
    assert not store.append(of("a"), T0, 2.0)
    assert not store.append(of("b"), T0, 1.0)
    assert store.append(of("a"), T0 + 1, STALE)
    assert points(store, "a") == [(0, 1.0), (0.001, "stale")]


def test_other_rules_keep_what_both_ask_for(store: Store) -> None:
    scrape(store, "a 1\nb 1\n", 0)
    store.adopt(Selection([Need((named("b"),)), Need((named("c"),))]))
    scrape(store, "a 2\nb 2\nc 2\n", 1)
    assert not store.select([named("a")])
    assert points(store, "b") == [(0, 1.0), (1, 2.0)]
    assert points(store, "c") == [(1, 2.0)]
    assert points(store, "up") == [(0, 1.0), (1, 1.0)]


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.stem)
def test_every_capture_is_stored_whole(path: Path) -> None:
    store = Store(Selection.all(0), target=TARGET)
    text = path.read_text()
    samples = sum(1 for line in text.splitlines() if line and line[0] != "#")
    for second in range(2):
        taken = scrape(store, text, second)
        assert (taken.scraped, taken.kept, taken.trouble, taken.vllm) == (samples, samples, None, True)
    assert len(store) == samples + 4


def test_two_api_servers_answer_without_process_series() -> None:
    (path,) = [path for path in CAPTURES if "api_server_count_2" in path.name]
    store = Store(Selection.all(0), target=TARGET)
    assert scrape(store, path.read_text(), 0).vllm
    assert not store.select([Matcher("__name__", Match.REGEX, "process_.*|.*_created")])
    assert store.select([named("vllm:num_requests_running")])


def test_a_server_without_its_own_series_is_told(store: Store) -> None:
    assert not scrape(store, 'python_info{x="vllm:"} 1\n', 0).vllm
