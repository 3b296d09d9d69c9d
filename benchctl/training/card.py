"""The card: what a model or a method's modules are, what they have read under which licence, and how well they do."""

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
    """Everything a card says. `shape`, `purpose` and `recipe` are sentences; `command` makes the result again.

    `use` is the command line that runs it. `records` are what was read, or whose prompts were answered; `weighed`:
    each source as often as sources.py says.
    """

    name: str
    parameters: int
    shape: str
    purpose: str
    use: str
    recipe: str
    command: str
    held_out: Mapping[str, HeldOut]
    samples: Sequence[Sample]
    records: Sequence[Record]
    data_sha256: Mapping[str, str]
    weighed: bool


def render_card(card: Card) -> str:
    """The card as Markdown."""
    parts = [
        f"# {card.name}",
        f"{card.parameters:,} parameters. {card.shape}",
        "## What it is for",
        card.purpose,
        _code(card.use),
        "## How it was trained",
        card.recipe,
        _code(card.command),
        "## Measured on held-out text",
        *(f"{name}:\n\n{_measures(held)}" for name, held in card.held_out.items()),
    ]
    if card.samples:
        parts += ["## Greedy samples", "\n\n".join(f"**{s.prompt}**\n\n{_quoted(s.answer)}" for s in card.samples)]
    parts += [
        "## What it has read",
        *_read(card),
        "Training data, sha256:",
        _table(("file", "sha256"), sorted(card.data_sha256.items())),
    ]
    return "\n\n".join(parts) + "\n"


def _measures(held: HeldOut) -> str:
    rows = [(name, f"{tally.share:.3f}", f"{tally.of:,.0f}") for name, tally in held.items()]
    return _table(("measure", "value", "out of"), rows)


def _read(card: Card) -> list[str]:
    """The table of sources; what the weights are, where there are any."""
    counts = Counter(record.source for record in card.records)
    rules = {source: rule_for(source) for source in sorted(counts)}
    if not card.weighed:
        rows = [(source, f"{counts[source]:,}", rule.licence) for source, rule in rules.items()]
        return [_table(("source", "documents", "licence"), rows)]
    weighed = [
        (source, f"{counts[source]:,}", f"{rule.main:g} / {rule.late:g}", rule.licence)
        for source, rule in rules.items()
    ]
    return [
        "Weight: how often the reference recipe reads a document in one pass of the main and of the late stage.",
        _table(("source", "documents", "weights", "licence"), weighed),
    ]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _code(command: str) -> str:
    return f"```\n{command}\n```"


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}".rstrip() for line in text.splitlines())
