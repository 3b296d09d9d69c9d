"""Small things that the training tests share: a text to learn, a tokenizer of it, a tiny model, a clock that ticks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from benchctl.training.corpus import Record
from benchctl.training.models import ModelShape, build_model
from benchctl.training.packing import PackedCorpus, tokenize
from benchctl.training.recipe import held_out_batches, token_bytes
from benchctl.training.schedule import Budget, Stage
from benchctl.training.sources import MAIN
from benchctl.training.tokenizer import train_tokenizer
from benchctl.training.trainer import Data, TrainSettings

COLORS = ("red", "green", "blue", "white", "black")
ANIMALS = ("dog", "cat", "bird", "fish", "horse", "cow")
CHATS = [
    Record("unit", f"Who is {color}?", f"The {animal} is {color}, and the {animal} sleeps in the {color} house.")
    for color in COLORS
    for animal in ANIMALS
]
TEXTS = [
    Record("unit", None, f"Once the {a} met the {b}. The {b} and the {a} went home.") for a in ANIMALS for b in ANIMALS
]
TINY = ModelShape(layers=2, hidden=32, heads=2, kv_heads=1, mlp=64, positions=64)
STAGES = (Stage(0.5, 32, 2), Stage(1.0, 64, 1))


@dataclass(frozen=True)
class Fixture:
    """A tokenizer and the data that it made."""

    tokenizer: Tokenizer
    data: Data


def small_fixture() -> Fixture:
    """Everything but the model."""
    records = CHATS + TEXTS
    tokenizer = train_tokenizer([record.text for record in records], vocabulary=320)
    documents = tokenize(records, tokenizer)
    packed = [PackedCorpus(documents, tokenizer, s.row_tokens, 0, index, MAIN) for index, s in enumerate(STAGES)]
    held_out = {"unit": held_out_batches(records[::7], tokenizer)}
    return Fixture(tokenizer, Data(packed, held_out, token_bytes(tokenizer)))


def tiny_model(tokenizer: Tokenizer, seed: int = 0) -> LlamaForCausalLM:
    """A model of two layers."""
    return build_model(TINY, tokenizer, seed)


def small_settings(steps: int, checkpoint_s: float = 1e9) -> TrainSettings:
    """Few steps in float32."""
    return TrainSettings(Budget(steps=steps), STAGES, batch_tokens=128, bf16=False, checkpoint_s=checkpoint_s)


def ticking_clock() -> Callable[[], float]:
    """A clock that moves one second with every look."""
    ticks = count()
    return lambda: float(next(ticks))


def write_lines(path: Path, *lines: bytes) -> Path:
    """A file of these lines."""
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path
