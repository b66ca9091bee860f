"""What is read of a scrape: each engine apart, old names and new ones, and what counts as movement."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from agent.series import labels_of, parse
from agent.watch.progress import EngineSample, Progress, engine_samples, moved
from agent.watch.shape import Shape, shape_of

CAPTURES = Path(__file__).parents[1] / "data" / "captures" / "metrics"


def capture(path: Path) -> tuple[EngineSample, ...]:
    body = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return engine_samples(parse(body).samples, 1.0)


@pytest.mark.parametrize("path", sorted(CAPTURES.glob("*.prom*")), ids=lambda path: path.name)
def test_every_capture_has_one_engine_with_its_gauges_and_counters(path: Path) -> None:
    (sample,) = capture(path)
    assert sample.engine == "0"
    for name in ("running", "waiting", "kv_usage", "generation_tokens", "prompt_tokens", "iterations", "later_tokens"):
        assert getattr(sample, name) is not None, name


def test_a_server_under_kv_pressure_shows_who_waits_for_capacity() -> None:
    (sample,) = capture(CAPTURES / "cpu032_07_kv_pressure_t2.prom")
    assert sample.busy and sample.held_back == sample.waiting and sample.held_back > 0
    assert sample.waiting_by_reason.keys() == {"capacity", "deferred"}


def samples(*lines: tuple[dict[str, str], float]) -> list[tuple[tuple[tuple[str, str], ...], float, int | None]]:
    return [(labels_of(labels), value, None) for labels, value in lines]


def test_engines_are_told_apart_and_models_of_one_engine_are_summed() -> None:
    name = "vllm:num_requests_running"
    found = engine_samples(
        samples(
            ({"__name__": name, "engine": "1", "model_name": "a"}, 3.0),
            ({"__name__": name, "engine": "0", "model_name": "a"}, 1.0),
            ({"__name__": name, "engine": "0", "model_name": "b"}, 2.0),
            ({"__name__": "vllm:admission_rejections_total", "reason": "max_num_queued_reqs"}, 7.0),
            ({"__name__": "vllm:engine_sleep_state", "engine": "1", "sleep_state": "awake"}, 0.0),
            ({"__name__": "vllm:generation_tokens_total", "engine": "0"}, float("nan")),
        ),
        5.0,
    )
    assert [(one.engine, one.running, one.rejections, one.awake) for one in found] == [
        ("0", 3.0, 7.0, None),
        ("1", 3.0, 7.0, False),
    ]
    assert found[0].generation_tokens is None


def test_the_names_of_older_versions_are_read() -> None:
    found = engine_samples(
        samples(
            ({"__name__": "vllm:gpu_cache_usage_perc"}, 0.5),
            ({"__name__": "vllm:time_per_output_token_seconds_count"}, 11.0),
            ({"__name__": "vllm:num_requests_running"}, 1.0),
        ),
        5.0,
    )
    assert (found[0].engine, found[0].kv_usage, found[0].later_tokens) == ("0", 0.5, 11.0)


def at(seconds: float, **values: float) -> EngineSample:
    return EngineSample(engine="0", at=seconds, **{"running": 1.0, "generation_tokens": 0.0, **values})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["running", "waiting", "kv_usage", "generation_tokens", "prompt_tokens", "iterations",
                                  "finished", "preemptions"])  # fmt: skip
def test_any_series_of_the_engine_that_changes_is_movement(name: str) -> None:
    assert moved(at(1, **{name: 1.0}), at(2, **{name: 2.0}))


def test_refused_requests_are_no_movement() -> None:
    assert not moved(at(1, rejections=1.0), at(2, rejections=9.0))


def test_only_gaps_under_work_are_learned_and_forgotten_after_ten_minutes() -> None:
    progress = Progress()
    for seconds, tokens, running in ((0, 0, 1), (7, 1, 1), (8, 2, 0), (500, 3, 1), (501, 4, 1)):
        progress.saw(at(seconds, generation_tokens=tokens, running=running))
    assert progress.longest_gap(501) == 7
    assert progress.longest_gap(608) == 1


def test_requests_that_may_have_ended_in_the_same_scrape_are_not_counted_as_decoding() -> None:
    progress = Progress()
    for second in range(5):
        total = 100.0 * second
        progress.saw(at(second, running=8, later_tokens=8 * total, iterations=total, finished=0))
    assert (progress.decoders, progress.steady) == (8, 4)
    progress.saw(at(6, running=8, later_tokens=4800, iterations=500.5, finished=8))
    assert progress.decoders < 9 and progress.steady == 5
    progress.saw(at(7, running=2, later_tokens=5600, iterations=600.5, finished=16))
    assert progress.decoders == 0


@pytest.mark.parametrize(
    ("argv", "shape"),
    [
        ((), Shape()),
        (("vllm", "serve", "m", "--tensor-parallel-size", "8", "--nnodes", "1"), Shape()),
        (("vllm", "serve", "m", "--nnodes=2"), Shape(whole=False)),
        (("vllm", "serve", "m", "--distributed-executor-backend", "ray"), Shape(whole=False)),
        (("vllm", "serve", "m", "--headless"), Shape(whole=False)),
        (("vllm", "serve", "m", "--data_parallel_size_local", "4"), Shape(whole=False)),
        (("vllm", "serve", "m", "--no-enable-chunked-prefill"), Shape(chunked=False)),
        (("vllm", "serve", "m", "--kv-transfer-config", '{"kv_connector":"N","kv_role":"kv_producer"}'),
         Shape(role="prefill")),
        (("vllm", "serve", "m", '--kv-transfer-config={"kv_connector":"N","kv_role":"kv_both"}'), Shape()),
        (("vllm", "serve", "m", "--kv-transfer-config", "{broken"), Shape()),
    ],
)  # fmt: skip
def test_the_command_line_tells_what_matters(argv: tuple[str, ...], shape: Shape) -> None:
    assert shape_of(argv) == shape
