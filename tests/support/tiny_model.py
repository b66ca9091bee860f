"""Make the tiny model that the real-vLLM tests serve: about 100,000 random parameters and a tokenizer of
its own.

In: a folder. Out: the folder filled with a Llama checkpoint that vLLM loads without any network. Never
downloads. It runs inside vLLM's own virtual environment (torch, transformers and tokenizers are there), so
nothing of the agent is imported. The folder is filled under another name and renamed at the end: a
half-made model is never served.

Usage: ``python tiny_model.py FOLDER``
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

CONTEXT = 2048
VOCABULARY = 512
SPECIAL = ("<pad>", "<s>", "</s>", "<|user|>", "<|assistant|>", "<|system|>")
TEXT = (
    "A server that answers slowly is not a dead server, and a card that is full is not a broken card.",
    "One request in, one answer out; count the tokens, the seconds and the bytes: 0123456789.",
)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def save_tokenizer(folder: Path) -> None:
    """Train a byte-level BPE tokenizer on a few sentences and save it with a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    raw.train_from_iterator(
        TEXT * 40,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=list(SPECIAL),
            initial_alphabet=alphabet,
            show_progress=False,
        ),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, bos_token="<s>", eos_token="</s>", pad_token="<pad>", model_max_length=CONTEXT
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)


def save_weights(folder: Path) -> None:
    """Save a two-layer Llama with random bfloat16 weights (seeded: every machine makes the same model)."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(shape).to(torch.bfloat16).save_pretrained(folder, safe_serialization=True)


def main(argv: list[str]) -> int:
    """Fill the folder ``argv[0]``; exit 0 also where it was there already."""
    if len(argv) != 1:
        sys.stderr.write("usage: tiny_model.py FOLDER\n")
        return 64
    target = Path(argv[0])
    if (target / "config.json").is_file():
        return 0
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        save_tokenizer(draft)
        save_weights(draft)
        draft.chmod(0o755)
        draft.rename(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
