"""Properties of every batch step: within vLLM's bounds and ours, never above the present value."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.model import EffectiveSettings, Mechanism, Setting
from agent.remediate import plan
from tests.repairs.world import MODES, OWN_OOM, cause, situation

CAUSES = [
    cause(fault, mechanism=mechanism, facts=OWN_OOM)
    for fault in ("oom-serving", "oom-warmup", "oom-cudagraph")
    for mechanism in (None, Mechanism.BATCH, Mechanism.FULL)
]


def maybe(values: st.SearchStrategy) -> st.SearchStrategy:
    return st.none() | values.map(lambda value: Setting(value=value, source="log"))


@st.composite
def settings(draw) -> EffectiveSettings:
    """Settings that vLLM itself would accept."""
    seqs = draw(st.integers(1, 4096))
    length = draw(st.integers(16, 200_000))
    chunked = draw(st.sampled_from([True, False, None]))
    item = draw(maybe(st.integers(1, 20_000)))
    least = max(seqs, length if chunked is False else 1, int(item.value) if item else 1)
    tokens = draw(st.integers(least, least + 300_000))
    return EffectiveSettings(
        max_num_seqs=Setting(value=seqs, source="log"),
        max_num_batched_tokens=Setting(value=tokens, source="log"),
        max_model_len=draw(st.sampled_from([None, Setting(value=length, source="log")]))
        if chunked is not False
        else Setting(value=length, source="log"),
        chunked_prefill=None if chunked is None else Setting(value=chunked, source="log"),
        multimodal_item_tokens=item,
        gpu_memory_utilization=draw(maybe(st.floats(0.05, 0.99))),
        kv_pool_bytes=draw(maybe(st.integers(1 << 20, 1 << 40))),
    )


def value(setting: Setting | None) -> int | None:
    return None if setting is None else int(setting.value)


@given(settings(), st.sampled_from(CAUSES), maybe(st.integers(1, 5000)), maybe(st.integers(1, 300_000)))
def test_a_step_keeps_every_bound(present, why, running, scheduled):
    now = situation(present, modes=MODES, running_requests=running, scheduled_tokens=scheduled)
    for it in plan(why, now):
        flags = dict(it.delta.flags)
        seqs = int(flags.get("--max-num-seqs", value(present.max_num_seqs)))
        tokens = int(flags.get("--max-num-batched-tokens", value(present.max_num_batched_tokens)))
        assert 1 <= seqs <= value(present.max_num_seqs)
        assert tokens <= value(present.max_num_batched_tokens)
        assert tokens >= min(512, value(present.max_num_batched_tokens))
        assert tokens >= seqs
        if present.chunked_prefill is not None and present.chunked_prefill.value is False:
            assert tokens >= value(present.max_model_len)
        if present.multimodal_item_tokens is not None:
            assert tokens >= value(present.multimodal_item_tokens)
        if "--gpu-memory-utilization" in flags:
            assert 0.05 <= float(flags["--gpu-memory-utilization"]) < present.gpu_memory_utilization.value
        if "--kv-cache-memory-bytes" in flags:
            assert 0 < int(flags["--kv-cache-memory-bytes"]) <= value(present.kv_pool_bytes)
        if it.action == "oom-reduce-batch":
            assert flags and it.change


def test_at_the_floors_no_batch_is_offered():
    low = EffectiveSettings(
        max_num_seqs=Setting(value=1, source="log"), max_num_batched_tokens=Setting(value=512, source="log")
    )
    actions = [it.action for it in plan(CAUSES[0], situation(low, vllm_version="0.32.0+cpu"))]
    assert actions == ["restart"]
