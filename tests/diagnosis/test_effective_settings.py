"""What the engine runs with, and the place that says so."""

from __future__ import annotations

from agent.model import Context, GpuReading, Setting
from tests.diagnosis.logs import capture, session

GIB = 1 << 30


def card(total: int, name: str) -> GpuReading:
    return GpuReading(index=0, uuid="GPU-1", name=name, total_bytes=total, used_bytes=0, free_bytes=total)


def test_the_log_states_them() -> None:
    found = session(capture("h200_base.log")).settings()
    assert found.vllm_version == "0.25.1"
    assert found.max_num_batched_tokens == Setting(value=8192, source="vllm.log:11")
    assert found.kv_pool_bytes is not None and found.kv_pool_bytes.value == round(66.55 * GIB)
    assert found.weights_bytes == Setting(value=round(2.32 * GIB), source="vllm.log:22")
    assert found.gpu_memory_utilization == Setting(value=0.5, source="vllm.log:7")
    assert found.max_model_len is not None and found.max_model_len.value == 8192
    assert found.model is not None and found.model.value == "/models/m1b"
    assert found.max_num_seqs is None


def test_the_command_line_fills_the_rest_and_its_last_flag_wins() -> None:
    argv = ("vllm", "serve", "m", "--max-num-seqs", "64", "--max-num-seqs=32", "--max-num-batched-tokens", "16k",
            "-tp", "2",
            "--enforce-eager", "--kv-transfer-config", '{"kv_connector": "NixlConnector"}')  # fmt: skip
    found = session("").settings(Context(argv=argv))
    assert found.max_num_seqs == Setting(value=32, source="argv")
    assert found.max_num_batched_tokens is not None and found.max_num_batched_tokens.value == 16000
    assert found.tensor_parallel_size is not None and found.tensor_parallel_size.value == 2
    assert found.enforce_eager == Setting(value=True, source="argv")
    assert found.kv_connector == Setting(value="NixlConnector", source="argv")


def test_a_number_that_is_none_is_no_size() -> None:
    found = session("INFO Available KV cache memory: 1.2.3 GiB\nINFO Model loading took 1..2 GiB\n").settings()
    assert found.kv_pool_bytes is None and found.weights_bytes is None


def test_the_weights_of_older_versions_are_read() -> None:
    found = session("INFO 01-01 00:00:00 model_runner.py:1110] Loading model weights took 14.9888 GB\n").settings()
    assert found.weights_bytes is not None and found.weights_bytes.value == round(14.9888 * GIB)


def test_nothing_stated_is_nothing_known() -> None:
    assert session("").settings().gpu_memory_utilization is None


def test_defaults_need_a_version_and_a_card() -> None:
    h200 = Context(vllm_version="0.32.0", gpus=(card(141 * GIB, "NVIDIA H200"),))
    assert session("").settings(h200).max_num_seqs == Setting(value=1024, source="default of vLLM 0.32.0 for this card")
    a100 = Context(vllm_version="0.32.0", gpus=(card(80 * GIB, "NVIDIA A100-SXM4-80GB"),))
    found = session("").settings(a100)
    assert found.max_num_seqs is not None and found.max_num_seqs.value == 256
    assert found.gpu_memory_utilization == Setting(value=0.92, source="default of vLLM 0.32.0")


def test_a_namespace_of_an_old_version_is_read() -> None:
    log = "INFO 04-04 10:05:08 api_server.py:228] args: Namespace(host=None, model='m', max_num_seqs=128, gpu_memory_utilization=0.85)\n"  # noqa: E501
    found = session(log).settings()
    assert found.max_num_seqs is not None and found.max_num_seqs.value == 128
    assert found.gpu_memory_utilization is not None and found.gpu_memory_utilization.value == 0.85


def test_broken_arguments_are_read_as_far_as_they_go() -> None:
    log = "INFO [a.py:1] non-default args: {'max_num_seqs': 128, 'x': <object at 0x1>, 'enforce_eager': True}\n"
    found = session(log).settings()
    assert found.max_num_seqs is not None and found.max_num_seqs.value == 128
    assert found.enforce_eager is not None and found.enforce_eager.value is True
