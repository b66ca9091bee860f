"""Answers of a healthy stand-in: the OpenAI endpoints, their errors, the scheduler's limits, the small
endpoints."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator

import pytest

from tests.sim.standin import Standin


@pytest.fixture(scope="module")
def sim() -> Iterator[Standin]:
    with Standin("tiny", "--max-model-len", "1024", "--sim-step-seconds", "0.002") as standin:
        yield standin.ready()


def test_completion_has_the_asked_tokens_and_is_the_same_again(sim: Standin) -> None:
    answers = [json.loads(sim.complete(7)[1]) for _ in range(2)]
    assert answers[0]["usage"]["completion_tokens"] == 7
    assert answers[0]["choices"][0]["finish_reason"] == "length"
    assert answers[0]["choices"][0]["text"] == answers[1]["choices"][0]["text"]
    assert len(answers[0]["choices"][0]["text"].split()) == 7


def test_prompts_may_be_token_ids_or_several(sim: Standin) -> None:
    ids = json.loads(sim.request("POST", "/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 2})[1])
    assert ids["usage"]["prompt_tokens"] == 3
    body = {"prompt": ["one", "two"], "n": 2, "max_tokens": 2}
    several = json.loads(sim.request("POST", "/v1/completions", body)[1])
    assert [c["index"] for c in several["choices"]] == [0, 1, 2, 3]


def test_stream_carries_usage_only_when_asked(sim: Standin) -> None:
    plain = sim.complete(3, stream=True)[1]
    asked = sim.complete(3, stream=True, stream_options={"include_usage": True})[1]
    for text in (plain, asked):
        assert text.rstrip().endswith("data: [DONE]")
    assert "usage" not in plain
    assert json.loads(asked.split("data: ")[-2])["usage"]["completion_tokens"] == 3


def test_chat_stream_starts_with_the_role(sim: Standin) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "stream": True}
    first = sim.request("POST", "/v1/chat/completions", body)[1].split("\n\n")[0]
    assert json.loads(first[6:])["choices"][0]["delta"]["role"] == "assistant"


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({"prompt": "x" * 5000, "max_tokens": 1}, 400, "maximum context length is 1024 tokens"),
        (
            {"prompt": "x", "max_tokens": 5000},
            400,
            "max_tokens=5000 cannot be greater than max_model_len=1024",
        ),
        ({"prompt": "x", "model": "other"}, 404, "The model `other` does not exist."),
        ({"max_tokens": 1}, 400, "prompt"),
        ("{", 400, "JSON decode error"),
        ({"prompt": "x", "temperature": -1}, 400, "temperature"),
        ({"prompt": "x", "max_tokens": "many"}, 400, "valid integer"),
        ({"prompt": []}, 400, "prompt"),
    ],
)
def test_bad_requests_get_vllm_errors(sim: Standin, body: object, status: int, text: str) -> None:
    answer = sim.request("POST", "/v1/completions", body)
    assert answer[0] == status
    error = json.loads(answer[1])["error"]
    assert text in error["message"]
    assert error["code"] == status


def test_small_endpoints(sim: Standin) -> None:
    assert sim.get("/health") == (200, "")
    assert sim.get("/ping") == (200, "")
    assert json.loads(sim.get("/version")[1]) == {"version": "0.32.0"}
    assert json.loads(sim.get("/load")[1]) == {"server_load": 0}
    assert json.loads(sim.get("/v1/models")[1])["data"][0]["max_model_len"] == 1024
    assert sim.get("/nothing")[0] == 404
    assert sim.get("/v1/completions")[0] == 405
    assert sim.metric("http_requests_total", 'handler="none",method="GET",status="4xx"') >= 2


def test_garbage_on_the_port_is_answered_and_harms_nothing(sim: Standin) -> None:
    import socket

    with socket.create_connection(("127.0.0.1", sim.port), 10) as sock:
        sock.sendall(b"\x16\x03\x01 nonsense\r\n\r\n")
        assert b"400 Bad Request" in sock.recv(1000)
    assert sim.get("/health")[0] == 200


def test_a_client_that_leaves_frees_its_place_and_is_counted_nowhere(sim: Standin) -> None:
    import http.client

    before = sim.metric("vllm:request_success_total", 'finished_reason="abort"')
    connection = http.client.HTTPConnection("127.0.0.1", sim.port, timeout=10)
    connection.request("POST", "/v1/completions", json.dumps({"prompt": "x", "max_tokens": 1000, "stream": True}))
    connection.getresponse().read(50)
    connection.close()
    until = time.monotonic() + 10
    while sim.metric("vllm:num_requests_running") and time.monotonic() < until:
        time.sleep(0.05)
    assert sim.metric("vllm:num_requests_running") == 0
    assert sim.metric("vllm:request_success_total", 'finished_reason="abort"') == before


def test_api_key_guards_v1_only() -> None:
    with Standin("--api-key", "secret") as sim:
        sim.ready()
        assert sim.complete()[0] == 401
        assert sim.request("GET", "/v1/models", headers={"Authorization": "Bearer secret"})[0] == 200
        assert sim.get("/metrics")[0] == 200
        assert "secret" not in sim.log


def test_256_requests_run_and_wait_within_the_batch() -> None:
    with Standin("--max-num-seqs", "16", "--sim-step-seconds", "0.005") as sim:
        sim.ready()
        seen: list[tuple[float, float]] = []
        stop = threading.Event()

        def watch() -> None:
            while not stop.is_set():
                seen.append((sim.metric("vllm:num_requests_running"), sim.metric("vllm:num_requests_waiting")))
                time.sleep(0.05)

        watcher = threading.Thread(target=watch)
        watcher.start()
        answers = sim.burst(256, 8)
        stop.set()
        watcher.join()
        assert [a[0] for a in answers] == [200] * 256
        assert max(r for r, _ in seen) == 16
        assert max(w for _, w in seen) > 16
        assert sim.metric("vllm:generation_tokens_total") == 256 * 8
        assert sim.metric("vllm:request_success_total", 'finished_reason="length"') == 256
        assert sim.metric("vllm:time_to_first_token_seconds_count") == 256
        assert sim.metric("vllm:inter_token_latency_seconds_count") == 256 * 7


def test_queue_limit_sheds_with_503() -> None:
    with Standin("--max-num-seqs", "2", "--max-num-queued-reqs", "4") as sim:
        sim.ready()
        statuses = sorted(a[0] for a in sim.burst(12, 30))
        assert statuses == [200] * 4 + [503] * 8
        assert sim.metric("vllm:admission_rejections_total", 'reason="max_num_queued_reqs"') == 8


def test_prefix_cache_and_preemption_move_their_counters() -> None:
    with Standin("--num-gpu-blocks-override", "12", "--max-model-len", "128", "--sim-step-seconds", "0.001") as sim:
        sim.ready()
        prompt = "a prompt that is long enough to fill more than one block of sixteen tokens, twice over. " * 2
        sim.complete(2, prompt)
        sim.complete(2, prompt)
        assert sim.metric("vllm:prefix_cache_hits_total") >= 16
        assert [a[0] for a in sim.burst(6, 60)] == [200] * 6
        assert sim.metric("vllm:num_preemptions_total") > 0
        assert sim.metric("vllm:kv_cache_usage_perc") == 0


def test_idle_costs_next_to_nothing() -> None:
    with Standin() as sim:
        sim.ready()
        before = sim.metric("process_cpu_seconds_total")
        time.sleep(1)
        assert sim.metric("process_cpu_seconds_total") - before <= 0.1


def test_unix_socket_and_last_flag_wins(tmp_path: object) -> None:
    path = f"{tmp_path}/s.sock"
    import socket

    with Standin("--uds", path, "--max_model_len=64", "--max-model-len", "2k") as sim:
        until = time.monotonic() + 10
        while "startup complete" not in sim.log and time.monotonic() < until:
            time.sleep(0.02)
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(path)
            sock.sendall(b"GET /v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            data = b""
            while chunk := sock.recv(4096):
                data += chunk
        assert b'"max_model_len": 2000' in data
