"""What is written beside the weights: training.json with the facts, README.md with the card."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from benchctl.training.card import Card, Sample, render_card
from benchctl.training.models import parameter_count
from benchctl.training.objective import HeldOut
from benchctl.training.own_text import greedy_answers
from benchctl.training.recipe import Corpus
from benchctl.training.tokenizer import user_turn
from benchctl.training.trainer import Trainer, TrainSettings

SAMPLE_PROMPTS = (
    "What is the capital of France?",
    "Write a short story about a cat.",
    "Explain why the sky is blue.",
    "Give me three tips for staying healthy.",
    "What is 7 + 5?",
    "Take on the role of a pirate. Tell me about your ship.",
)
SAMPLE_TOKENS = 160


@dataclass(frozen=True)
class Outcome:
    """A finished run, as far as its card needs to know it."""

    name: str
    parameters: int
    shape: str
    command: str
    tokens: int
    steps: int
    minutes: float
    acceptance: float | None
    held_out: dict[str, HeldOut]


def outcome_of(
    folder: Path, model: LlamaForCausalLM, trainer: Trainer, command: str, acceptance: float | None = None
) -> Outcome:
    """Measures the finished model and gathers the facts of its run."""
    config = model.config
    shape = (
        f"Llama layout: {config.num_hidden_layers} layers of {config.hidden_size}, "
        f"{config.num_attention_heads} heads, {config.num_key_value_heads} key/value heads, "
        f"MLP {config.intermediate_size}, vocabulary {config.vocab_size}, "
        f"context {config.max_position_embeddings} tokens, tied embeddings, bfloat16."
    )
    position = trainer.position
    return Outcome(
        folder.name,
        parameter_count(model),
        shape,
        command,
        position.tokens,
        position.step,
        position.elapsed_s / 60,
        acceptance,
        trainer.held_out(),
    )


def write_record(folder: Path, outcome: Outcome, settings: TrainSettings, corpus: Corpus) -> None:
    """Writes training.json: the settings that made the weights, the data's hashes and what was reached."""
    record = {"outcome": asdict(outcome), "settings": asdict(settings), "data_sha256": corpus.hashes}
    (folder / "training.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def write_card(folder: Path, outcome: Outcome, samples: Sequence[Sample], corpus: Corpus) -> None:
    """Writes README.md."""
    card = Card(
        name=outcome.name,
        parameters=outcome.parameters,
        shape=outcome.shape,
        recipe=_recipe(outcome),
        command=outcome.command,
        held_out=outcome.held_out,
        samples=samples,
        records=corpus.train,
        data_sha256=corpus.hashes,
        limits=_limits(outcome),
    )
    (folder / "README.md").write_text(render_card(card), encoding="utf-8")


def greedy_samples(model: LlamaForCausalLM, tokenizer: Tokenizer) -> list[Sample]:
    """The model's greedy answers to a few fixed prompts."""
    heads = [tokenizer.encode(user_turn(prompt)).ids for prompt in SAMPLE_PROMPTS]
    answers = greedy_answers(model, tokenizer, heads, SAMPLE_TOKENS)
    return [Sample(prompt, tokenizer.decode(answer)) for prompt, answer in zip(SAMPLE_PROMPTS, answers, strict=True)]


def _recipe(outcome: Outcome) -> str:
    text = (
        f"From scratch on a CPU: {outcome.steps:,} optimiser steps over {outcome.tokens:,} tokens in "
        f"{outcome.minutes:.0f} minutes; Muon for the weight matrices, AdamW for the rest, linear warm-up and a cosine "
        "to zero, bfloat16 autocast."
    )
    if outcome.acceptance is None:
        return f"{text} Rows grow from 256 to 512 and 1,024 tokens; the late stages read mostly chats."
    return (
        f"{text} The loss is the divergence from the target's distribution, first on the corpus, then on the "
        f"target's own greedy answers. On answers to unseen prompts it drafts {outcome.acceptance:.1%} of the "
        "target's greedy tokens right."
    )


def _limits(outcome: Outcome) -> str:
    if outcome.acceptance is not None:
        return "It proposes tokens for the target that it was distilled from; on its own it writes poor text."
    return (
        "A small real model for measuring decoding methods offline: it writes simple English and usually ends its "
        "answers with `<|end|>`. It knows very little: its facts and its arithmetic are mostly wrong, and its greedy "
        "text often repeats itself."
    )
