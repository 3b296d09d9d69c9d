"""The model card: what a model is, what it has read under which licence, how it was made and how well it does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchctl.training.corpus import Record
from benchctl.training.objective import HeldOut
from benchctl.training.sources import rule_for


@dataclass(frozen=True)
class Sample:
    """A prompt and the model's greedy answer."""

    prompt: str
    answer: str


@dataclass(frozen=True)
class Card:
    """Everything a card says. `shape` and `recipe` are sentences; `command` is what makes the model again."""

    name: str
    parameters: int
    shape: str
    recipe: str
    command: str
    held_out: Mapping[str, HeldOut]
    samples: Sequence[Sample]
    records: Sequence[Record]
    data_sha256: Mapping[str, str]
    limits: str


def render_card(card: Card) -> str:
    """The card as Markdown."""
    parts = [
        f"# {card.name}",
        f"{card.parameters:,} parameters. {card.shape}",
        "## What it is for",
        card.limits,
        "## How it was trained",
        card.recipe,
        f"```\n{card.command}\n```",
        "## Held-out loss",
        _table(("set", "nats per token", "bits per byte", "tokens"), _losses(card.held_out)),
        "## Greedy samples",
        "\n\n".join(f"**{sample.prompt}**\n\n{_quoted(sample.answer)}" for sample in card.samples),
        "## What it has read",
        "Weight: how often a document is read in one pass of the main and of the late stage.",
        _table(("source", "documents", "weights", "licence"), _sources(card.records)),
        "Training files, sha256:",
        _table(("file", "sha256"), sorted(card.data_sha256.items())),
    ]
    return "\n\n".join(parts) + "\n"


def _losses(held_out: Mapping[str, HeldOut]) -> list[tuple[str, ...]]:
    return [
        (name, f"{measured.nats_per_token:.3f}", f"{measured.bits_per_byte:.3f}", f"{measured.tokens:,}")
        for name, measured in held_out.items()
    ]


def _sources(records: Sequence[Record]) -> list[tuple[str, ...]]:
    counts = Counter(record.source for record in records)
    rules = {source: rule_for(source) for source in sorted(counts)}
    return [
        (source, f"{counts[source]:,}", f"{rule.main:g} / {rule.late:g}", rule.licence)
        for source, rule in rules.items()
    ]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}".rstrip() for line in text.splitlines())
