"""The one table of actions: default mode, what each changes, what it needs, costs, how it is undone and
proven.

In: nothing. Out: :data:`ACTIONS`, read by the configuration (defaults, allowed names), by remediation and
by the page ``docs/actions.md``, which :func:`actions_page` writes and a test holds to this table. A mode
is `auto` only where the action keeps the API and the outputs of the server as they are; what changes them
asks a person.
"""

from __future__ import annotations

import msgspec

from agent.model import Mode


class ActionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """One action as people read it. ``bounds`` says how far it may go."""

    name: str
    mode: Mode
    changes: str
    precondition: str
    bounds: str
    cost: str
    undo: str
    proof: str


ACTIONS: tuple[ActionPolicy, ...] = (
    ActionPolicy(
        name="restart",
        mode=Mode.AUTO,
        changes="starts the server again with the same command and the overrides in force",
        precondition="the server is dead or hung and its fault may pass by a restart",
        bounds="budget and backoff per fault and server; never after a usage error",
        cost="one start of the server; requests in flight are lost already",
        undo="nothing to undo",
        proof="serving, a request answered, the fault's line absent",
    ),
    ActionPolicy(
        name="oom-expandable-segments",
        mode=Mode.AUTO,
        changes="sets expandable_segments:True in PYTORCH_CUDA_ALLOC_CONF; the batch stays",
        precondition="reserved but unallocated memory covers the request; vLLM allows it "
        "(no KV connector, no sleep mode)",
        bounds="once per incident; other parts of the variable stay as the operator set them",
        cost="one restart",
        undo="`agent overrides clear`",
        proof="serving, a request answered, no out-of-memory line",
    ),
    ActionPolicy(
        name="oom-reduce-batch",
        mode=Mode.AUTO,
        changes="lowers --max-num-seqs and --max-num-batched-tokens, and holds the KV pool at its size "
        "(or lowers --gpu-memory-utilization)",
        precondition="out of memory at the present batch, and the batch is above its floors",
        bounds="floors 1 sequence and 512 tokens a step; at most 4 steps; tokens stay at or above sequences, "
        "and at or above --max-model-len without chunked prefill",
        cost="one restart a step; less throughput at the peak",
        undo="`agent overrides clear`",
        proof="serving, a request answered, no out-of-memory line",
    ),
    ActionPolicy(
        name="oom-fit-neighbour",
        mode=Mode.AUTO,
        changes="lowers --gpu-memory-utilization to what a neighbour leaves free on the card",
        precondition="another process holds the memory, and weights with one full-length request still fit",
        bounds="between 0.05 and the operator's value",
        cost="one restart; a smaller KV pool",
        undo="`agent overrides clear`",
        proof="serving, a request answered, no out-of-memory line",
    ),
    ActionPolicy(
        name="wait-for-memory",
        mode=Mode.AUTO,
        changes="nothing; holds the start until the card has the memory that the server needs",
        precondition="another process holds memory of the card at start",
        bounds="bounded wait, then the next remedy",
        cost="the time waited",
        undo="nothing to undo",
        proof="serving, a request answered",
    ),
    ActionPolicy(
        name="kv-fit-length",
        mode=Mode.APPROVE,
        changes="sets --max-model-len to the length that vLLM prints as possible",
        precondition="the KV cache is too small for the configured length",
        bounds="never above the configured length; rounded down to a block",
        cost="one restart; longer requests are refused",
        undo="`agent overrides clear`",
        proof="serving, a request answered",
    ),
    ActionPolicy(
        name="kv-raise-utilization",
        mode=Mode.APPROVE,
        changes="raises --gpu-memory-utilization and lowers the batch in the same step",
        precondition="weights and activation peak leave no KV pool, and the card has the room",
        bounds="at most 0.97, and never alone: that only moves the fault into the warm-up",
        cost="one restart; less of the card for others",
        undo="`agent overrides clear`",
        proof="serving, a request answered",
    ),
    ActionPolicy(
        name="enforce-eager",
        mode=Mode.APPROVE,
        changes="adds --enforce-eager: no CUDA graphs",
        precondition="memory ran out while graphs were captured",
        bounds="once per incident",
        cost="one restart; slower decoding; outputs may differ in the last bits",
        undo="`agent overrides clear`",
        proof="serving, a request answered",
    ),
    ActionPolicy(
        name="ptxas-path",
        mode=Mode.AUTO,
        changes="sets (or unsets) TRITON_PTXAS_PATH or TRITON_PTXAS_BLACKWELL_PATH",
        precondition="an assembler in a root-owned folder has assembled a stub for this architecture",
        bounds="root-owned folders only; one candidate at a time; rolled back if it does not cure",
        cost="one restart",
        undo="`agent overrides clear`",
        proof="serving, a request answered, the assembler's line absent",
    ),
    ActionPolicy(
        name="end-orphans",
        mode=Mode.AUTO,
        changes="ends left-over processes of the dead server",
        precondition="they are in the launcher's own subtree and the server is gone",
        bounds="never a process outside the launcher's subtree",
        cost="none to a living server",
        undo="cannot be undone; the processes served nobody",
        proof="the processes are gone and the memory is back",
    ),
)


def default_modes() -> dict[str, Mode]:
    """Action name to default mode."""
    return {policy.name: policy.mode for policy in ACTIONS}


_HEAD = """\
# Actions

What the agent may do to a server. The modes are defaults; `actions:` in the configuration changes them:
`off` (not even proposed), `dry-run` (proposed, never done), `approve` (done after `agent approve ID`),
`auto` (done, within budget, backoff and breaker). `agent freeze` stops all of them at once.

"""


def actions_page() -> str:
    """The text of ``docs/actions.md``."""
    columns = ("changes", "precondition", "bounds", "cost", "undo", "proof")
    rows = ["| action | default mode | " + " | ".join(columns) + " |", "|" + " --- |" * (len(columns) + 2)]
    for policy in ACTIONS:
        cells = [
            f"`{policy.name}`",
            f"`{policy.mode.value}`",
            *(getattr(policy, column) for column in columns),
        ]
        rows.append("| " + " | ".join(cells) + " |")
    return _HEAD + "\n".join(rows) + "\n"
