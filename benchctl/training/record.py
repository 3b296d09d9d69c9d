"""What is written next to the weights: training.json with the facts, README.md with the card."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from benchctl.decoding.model.families import experts_per_token
from benchctl.training.checkpoint import writing
from benchctl.training.data.reading import Corpus
from benchctl.training.jobs import CHECKPOINTS, RECORD, Finished
from benchctl.training.modules.objective import HeldOut
from benchctl.training.train_options import Provenance


@dataclass(frozen=True)
class Result:
    """What a job has made, for its record. `part` is what was trained; `shape`, `purpose`, `method` are sentences.

    `held_out` are the measures at the end of the training with those taken once afterwards. `use` is a command line
    that runs the result, with {folder} and {model} where the folder and the target are named. `samples` are prompts and
    the model's greedy answers. `tokens` is what those that were read are called.
    """

    part: str
    parameters: int
    shape: str
    purpose: str
    method: str
    use: str
    held_out: Mapping[str, HeldOut]
    samples: Mapping[str, str] = field(default_factory=dict)
    tokens: str = "tokens"


def render_card(name: str, result: Result, command: str, corpus: Corpus) -> str:
    """The card as Markdown. `command` makes the result again; `corpus` was read, or its prompts were answered."""
    samples = [f"**{prompt}**\n\n{_quoted(answer)}" for prompt, answer in result.samples.items()]
    parts = [
        f"# {name}",
        f"{result.parameters:,} parameters. {result.shape}",
        "## What it is for",
        result.purpose,
        _code(result.use),
        "## How it was trained",
        result.method,
        _code(command),
        "## Measured on held-out text",
        *(f"{name}:\n\n{_measures(held)}" for name, held in result.held_out.items()),
        *(["## Greedy samples", *samples] if samples else []),
        "## What it has read",
        *_sources(corpus),
        "Training data, sha256:",
        _table(("file", "sha256"), sorted(corpus.hashes.items())),
    ]
    return "\n\n".join(parts) + "\n"


def _measures(held: HeldOut) -> str:
    rows = [(name, f"{tally.share:.3f}", f"{tally.of:,.0f}") for name, tally in held.items()]
    return _table(("measure", "value", "out of"), rows)


def _sources(corpus: Corpus) -> list[str]:
    """The table of sources; with a recipe also their weights and licences."""
    counts = sorted(Counter(record.source for record in corpus.train).items())
    if corpus.recipe is None:
        return [_table(("source", "documents"), [(source, f"{count:,}") for source, count in counts])]
    rows = [(source, f"{count:,}", *corpus.recipe.card_columns(source)) for source, count in counts]
    return [
        "Weight: how often the reference recipe reads a document in one pass of the main and of the late stage.",
        _table(("source", "documents", "weights", "licence"), rows),
    ]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _code(command: str) -> str:
    return f"```\n{command}\n```"


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}".rstrip() for line in text.splitlines())


def write_result(
    folder: Path, result: Result, run: Finished, corpus: Corpus, target: str, provenance: Provenance
) -> None:
    """Writes training.json and README.md. `target` is the name of the target that the result is for, if any."""
    position = run.trainer.position
    outcome = {
        "part": result.part,
        "parameters": result.parameters,
        "steps": position.step,
        "tokens": position.tokens,
        "tokens_are": result.tokens,
        "minutes": round(position.elapsed_s / 60, 1),
        "held_out": {name: {key: tally.share for key, tally in held.items()} for name, held in result.held_out.items()},
        "losses": run.trainer.log.losses(),
    }
    facts: dict[str, Any] = {
        "outcome": outcome,
        "settings": asdict(run.settings),
        "data_sha256": dict(corpus.hashes),
        "provenance": asdict(provenance),
    }
    recorded = replace(
        result,
        use=result.use.format(folder=folder.resolve().name, model=target),
        method=f"{_length(run, result.tokens)} {result.method}",
    )
    card = render_card(folder.resolve().name, recorded, provenance.command, corpus)
    with writing(folder / CHECKPOINTS, "the record"):
        (folder / RECORD).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        (folder / "README.md").write_text(card, encoding="utf-8")


def trained_before(name: str, folder: Path) -> str:
    """A sentence on a model that a training begins as: how it was trained, as far as its folder records it."""
    record = folder / RECORD
    facts = json.loads(record.read_text(encoding="utf-8")) if record.is_file() else {}
    if "outcome" not in facts:  # a model of somebody else's
        return f"It began as {name}, trained before."
    outcome, command = facts["outcome"], facts.get("provenance", {}).get("command", "")
    length = f"{outcome['steps']:,} steps over {outcome['tokens']:,} tokens in {outcome['minutes']:.0f} minutes"
    return f"It began as {name}, trained before: {length}{f', by `{command}`' if command else ''}."


def model_shape(config: Any) -> str:
    """The sizes of a model in a sentence."""
    mlp = f"MLP {config.intermediate_size}"
    if chosen := experts_per_token(config):
        mlp = f"{config.num_experts} experts of {config.intermediate_size}, {chosen} for each token"
    return (
        f"{config.model_type} layout: {config.num_hidden_layers} layers of {config.hidden_size}, "
        f"{config.num_attention_heads} heads, {config.num_key_value_heads} key/value heads, "
        f"{mlp}, vocabulary {config.vocab_size}, "
        f"context {config.max_position_embeddings} tokens, "
        f"{'tied' if config.tie_word_embeddings else 'untied'} embeddings, bfloat16."
    )


def _length(run: Finished, tokens: str) -> str:
    position, settings = run.trainer.position, run.settings
    optimizer = {"muon": "Muon for the weight matrices, AdamW for the rest", "adamw": "AdamW"}[settings.optimizer.name]
    minutes = position.elapsed_s / 60
    return (
        f"{position.step:,} optimiser steps over {position.tokens:,} {tokens} in {minutes:.0f} minutes on "
        f"{settings.device}; {optimizer}, linear warm-up over {settings.warmup:.0%}, then a {settings.schedule} to "
        f"zero{', bfloat16 autocast' if settings.bf16 else ''}."
    )
