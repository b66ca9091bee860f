"""Why memory ran out is decided by the numbers, never by the message's own hint."""

from __future__ import annotations

import pytest

from agent.model import Context, GpuProcess, GpuReading, Mechanism, MemoryFacts
from tests.diagnosis.logs import causes

GIB = 1 << 30
HINT = " If reserved but unallocated memory is large try setting expandable_segments:True to avoid it."


def oom(
    requested: str,
    total: str,
    free: str,
    *,
    own: str = "",
    others: tuple[tuple[int, str], ...] = (),
    allocated: str = "",
    reserved: str = "",
) -> str:
    text = f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {requested}. GPU 0 has a total"
    text += f" capacity of {total} of which {free} is free."
    text += f" Including non-PyTorch memory, this process has {own} memory in use." if own else ""
    text += "".join(f" Process {pid} has {used} memory in use." for pid, used in others)
    text += f" Of the allocated memory {allocated} is allocated by PyTorch," if allocated else ""
    text += f" and {reserved} is reserved by PyTorch but unallocated." if reserved else ""
    return text + HINT


ERROR = "(EngineCore pid=9) ERROR 05-12 16:48:53 [core.py:1131] "
SERVING = f"INFO:     Application startup complete.\n{ERROR}"
LOADING = f"{ERROR}  File x, line 1, in create_weights\n{ERROR}"
H200, H100, ADA = "139.80 GiB", "79.11 GiB", "23.56 GiB"


@pytest.mark.parametrize(
    ("message", "mechanism"),
    [
        # One card of its own making, cured by expandable segments at the same batch.
        (oom("1024.00 MiB", H200, "887.12 MiB", own="138.92 GiB", allocated="136.4 GiB", reserved="1.76 GiB"),
         Mechanism.FRAGMENTATION),
        # The reserve is larger than the request, but it is the allocator's ordinary slack.
        (oom("50.00 MiB", ADA, "21.75 MiB", own="23.50 GiB", allocated="22.88 GiB", reserved="275.38 MiB"),
         Mechanism.BATCH),
        (oom("2.00 GiB", H100, "1.02 GiB", own="78.09 GiB", allocated="77.15 GiB", reserved="312.50 MiB"),
         Mechanism.BATCH),
        # Somebody else holds the card.
        (oom("220.00 MiB", H200, "3.56 MiB", own="40.42 GiB", others=((3095, "99.36 GiB"),),
             allocated="39.57 GiB", reserved="117.70 MiB"), Mechanism.NEIGHBOUR),
        # A neighbour above the floor and a reserve that covers the request: the larger of the two is named.
        (oom("220.00 MiB", H200, "3.56 MiB", own="136.00 GiB", others=((3095, "3.50 GiB"),),
             allocated="126.00 GiB", reserved="9.00 GiB"), Mechanism.FRAGMENTATION),
        # A desktop's few hundred MiB are no neighbour.
        (oom("2.00 GiB", "31.35 GiB", "93.06 MiB", own="30.33 GiB", others=((77, "700.00 MiB"),),
             allocated="29.39 GiB", reserved="309.08 MiB"), Mechanism.BATCH),
        # A neighbour, but the request had not fitted without it either.
        (oom("90.00 GiB", H100, "1.00 GiB", own="70.00 GiB", others=((77, "8.00 GiB"),),
             allocated="69.00 GiB", reserved="0.20 GiB"), Mechanism.BATCH),
        # In a container torch lists itself under its pid on the host.
        (oom("128.00 MiB", "79.33 GiB", "16.00 MiB", others=((259237, "79.29 GiB"),),
             allocated="69.59 GiB", reserved="118.89 MiB"), Mechanism.BATCH),
        (oom("128.00 MiB", "79.33 GiB", "16.00 MiB", others=((5, "40.00 GiB"), (6, "39.20 GiB")),
             allocated="38.00 GiB", reserved="118.89 MiB"), Mechanism.NEIGHBOUR),
        # No process is named, but a third of the card is missing.
        (oom("2.00 GiB", H100, "1.00 GiB", own="50.00 GiB", allocated="49.00 GiB", reserved="0.20 GiB"),
         Mechanism.NEIGHBOUR),
        # Numbers missing: unknown.
        (oom("2.00 GiB", H100, "1.02 GiB"), None),
        ("torch.AcceleratorError: CUDA error: out of memory", None),
    ],
)  # fmt: skip
def test_mechanism_follows_the_numbers(message: str, mechanism: Mechanism | None) -> None:
    assert causes(SERVING + message + "\n")[0].finding.mechanism is mechanism


def test_at_load_a_full_card_is_full() -> None:
    message = oom("84.00 MiB", "31.35 GiB", "93.06 MiB", own="30.33 GiB", allocated="29.39 GiB", reserved="309.08 MiB")
    finding = causes(LOADING + message + "\n")[0].finding
    assert (finding.fault, finding.mechanism) == ("oom-load", Mechanism.FULL)


def test_the_text_of_old_torch_is_read() -> None:
    text = (
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB (GPU 3; "
        "23.69 GiB total capacity; 20.00 GiB already allocated; 1.00 GiB free; "
        "22.00 GiB reserved in total by PyTorch)"
    )
    cause = causes(SERVING + text + "\n")[0]
    assert isinstance(cause.facts, MemoryFacts)
    assert (cause.facts.gpu, cause.facts.total_bytes) == (3, round(23.69 * GIB))
    assert cause.facts.reserved_unallocated_bytes == 2 * GIB
    assert cause.finding.mechanism is Mechanism.FRAGMENTATION


def test_a_left_over_engine_is_an_orphan() -> None:
    card = GpuReading(
        index=0, uuid="GPU-1", name="NVIDIA H200", total_bytes=140 * GIB, used_bytes=139 * GIB,
        free_bytes=GIB, processes=(GpuProcess(pid=3095, used_bytes=99 * GIB, name="VLLM::EngineCor"),),
    )  # fmt: skip
    message = oom("220.00 MiB", H200, "3.56 MiB", own="40.4 GiB", allocated="39.57 GiB", reserved="117.7 MiB",
                  others=((3095, "99.36 GiB"),))  # fmt: skip
    finding = causes(SERVING + message + "\n", Context(gpus=(card,)))[0].finding
    assert finding.mechanism is Mechanism.ORPHAN
    assert "end-orphans" in [remedy.action for remedy in finding.remedies]


def test_a_process_of_this_server_is_no_neighbour() -> None:
    ours = "(Worker_TP1 pid=3095) INFO 05-12 16:40:00 [gpu_worker.py:298] Available KV cache memory: 11.17 GiB\n"
    message = oom("220.00 MiB", H200, "3.56 MiB", own="100.0 GiB", allocated="99.0 GiB", reserved="0.20 GiB",
                  others=((3095, "39.00 GiB"),))  # fmt: skip
    cause = causes(ours + SERVING + message + "\n")[0]
    assert isinstance(cause.facts, MemoryFacts) and cause.facts.neighbours == ()


def test_the_batch_remedy_halves_the_batch_that_the_log_states() -> None:
    log = (
        "(APIServer pid=1) INFO 11-30 16:14:21 [scheduler.py:252] "
        "Chunked prefill is enabled with max_num_batched_tokens=8192.\n"
        "(APIServer pid=1) INFO 11-30 16:13:54 [api_utils.py:273] non-default args: {'max_num_seqs': 64}\n"
    )
    message = oom("2.00 GiB", "79.11 GiB", "1.02 GiB", own="78.09 GiB", allocated="77.15 GiB", reserved="312.50 MiB")
    finding = causes(log + SERVING + message + "\n")[0].finding
    assert finding.remedies[0].change.startswith("--max-num-batched-tokens 4096 --max-num-seqs 32")
