"""Which cards are the server's own: what CUDA and the container runtime make of their variables.

In: the cards as a driver lists them, the server's environment. Out: the chosen ones in CUDA's order, each with its
MIG instance where it is one, and a note where the choice is a guess. Never asks a driver.

Rules: ``CUDA_VISIBLE_DEVICES`` holds indices, UUIDs or their unique beginnings, or MIG UUIDs (new and old spelling),
and CUDA stops at the first entry that it does not know (CUDA C++ Programming Guide, "CUDA Environment Variables").
Without it ``NVIDIA_VISIBLE_DEVICES`` counts, where the driver shows more cards than it names; inside a container the
driver mostly shows the named ones alone and numbers them anew. vLLM takes an index as NVML's (vllm/platforms/cuda.py),
which holds for equal cards or ``CUDA_DEVICE_ORDER=PCI_BUS_ID``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

NO_LIST = frozenset({"", "all", "void", "none"})


@dataclass(frozen=True)
class Instance:
    """A MIG device: its UUID, and the numbers of its GPU and compute instance."""

    uuid: str
    gpu_instance: int | None = None
    compute_instance: int | None = None


@dataclass(frozen=True)
class Card:
    """A card as the driver lists it; ``uuid`` is empty where the driver did not tell."""

    index: int
    uuid: str
    name: str
    instances: tuple[Instance, ...] = ()


@dataclass(frozen=True)
class Chosen:
    """A card, or one instance of it, that the server may use."""

    card: Card
    instance: Instance | None = None

    @property
    def uuid(self) -> str:
        return self.instance.uuid if self.instance else self.card.uuid


def choose(cards: Sequence[Card], env: Mapping[str, str]) -> tuple[tuple[Chosen, ...], str | None]:
    """The server's own NVIDIA devices, and why that is uncertain where it is."""
    setting = env.get("CUDA_VISIBLE_DEVICES")
    if setting is not None:
        chosen = _until_unknown(cards, setting)
        return chosen, _short_note(setting, len(chosen)) or _order_note(cards, setting, env)
    listed = env.get("NVIDIA_VISIBLE_DEVICES", "").strip()
    if listed.lower() in NO_LIST:
        return _everything(cards), None
    return _runtime_list(cards, listed), None


def choose_amd(cards: Sequence[Card], env: Mapping[str, str]) -> tuple[Chosen, ...]:
    """The same for ROCm: ``ROCR_VISIBLE_DEVICES`` first, then HIP's variable counts among what that left."""
    left = list(cards)
    for names in (("ROCR_VISIBLE_DEVICES",), ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")):
        setting = next((env[name] for name in names if name in env), None)
        if setting is not None:
            left = _by_position(left, setting)
    return tuple(Chosen(card) for card in left)


def _by_position(cards: Sequence[Card], setting: str) -> list[Card]:
    found: list[Card] = []
    for word in _words(setting):
        if word.isdigit():
            match = list(cards[int(word) : int(word) + 1])
        else:
            match = [card for card in cards if word and card.uuid.lower().startswith(word.lower())]
        if len(match) != 1:
            break
        found += match
    return found


def _everything(cards: Sequence[Card]) -> tuple[Chosen, ...]:
    return tuple(one for card in cards for one in _devices(card))


def _devices(card: Card) -> list[Chosen]:
    return [Chosen(card, instance) for instance in card.instances] or [Chosen(card)]


def _until_unknown(cards: Sequence[Card], setting: str) -> tuple[Chosen, ...]:
    found: list[Chosen] = []
    for word in _words(setting):
        match = _match(cards, word)
        if len(match) != 1 or match[0] in found:
            break
        found += match
    return tuple(found)


def _match(cards: Sequence[Card], word: str) -> list[Chosen]:
    """What one entry names; a card with MIG stands for its first instance, as CUDA takes it."""
    if word.isdigit():
        return [_devices(card)[0] for card in cards if card.index == int(word)]
    if word.upper().startswith("MIG-"):
        return [
            Chosen(card, instance)
            for card in cards
            for instance in card.instances
            if _names_instance(word.lower(), card, instance)
        ]
    return [_devices(card)[0] for card in cards if word and card.uuid.lower().startswith(word.lower())]


def _names_instance(word: str, card: Card, instance: Instance) -> bool:
    """``MIG-<uuid>`` and its beginnings, or ``MIG-GPU-<uuid>/<gi>/<ci>`` of drivers before 470."""
    old = f"mig-{card.uuid}/{instance.gpu_instance}/{instance.compute_instance}".lower()
    return instance.uuid.lower().startswith(word) or word == old


def _runtime_list(cards: Sequence[Card], listed: str) -> tuple[Chosen, ...]:
    words = _words(listed)
    chosen = [one for word in words for one in _runtime_match(cards, word)]
    complete = len(cards) > len(words) and all(_runtime_match(cards, word) for word in words)
    return tuple(dict.fromkeys(chosen)) if complete else _everything(cards)


def _runtime_match(cards: Sequence[Card], word: str) -> list[Chosen]:
    """Here an index names the whole card, and ``0:1`` the second instance of the first card."""
    number, _, position = word.partition(":")
    if number.isdigit():
        devices = [one for card in cards if card.index == int(number) for one in _devices(card)]
        return devices[int(position) : int(position) + 1] if position.isdigit() else devices
    if word.upper().startswith("MIG-"):
        return _match(cards, word)
    return [one for card in cards if word and card.uuid.lower().startswith(word.lower()) for one in _devices(card)]


def _short_note(setting: str, found: int) -> str | None:
    """``-1`` and an empty entry mean "none"; any other entry was meant to be a card."""
    words = _words(setting)
    if found == len(words) or words[found] in ("", "-1"):
        return None
    return f"CUDA_VISIBLE_DEVICES names {words[found]}, which is no card that the driver lists (or one named before)"


def _order_note(cards: Sequence[Card], setting: str, env: Mapping[str, str]) -> str | None:
    by_index = any(word.isdigit() for word in _words(setting))
    mixed = len({card.name for card in cards}) > 1
    if by_index and mixed and env.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        return "cards of several kinds are chosen by index: set CUDA_DEVICE_ORDER=PCI_BUS_ID to number as the driver"
    return None


def _words(setting: str) -> list[str]:
    return [part.strip() for part in setting.split(",")]
