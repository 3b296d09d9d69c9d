"""What is written next to the weights: training.json with the facts, README.md with the card."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from benchctl.decoding.model.families import family_of
from benchctl.training.checkpoint import writing
from benchctl.training.data.reading import Corpus
from benchctl.training.jobs import CHECKPOINTS, RECORD
from benchctl.training.modules.objective import HeldOut
from benchctl.training.train_options import Provenance
from benchctl.training.trainer import Trainer


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
    measured = {
        name: _table(
            ("measure", "value", "out of"), [(key, f"{t.share:.3f}", f"{t.of:,.0f}") for key, t in held.items()]
        )
        for name, held in result.held_out.items()
    }
    parts = [
        f"# {name}",
        f"{result.parameters:,} parameters. {result.shape}",
        "## What it is for",
        result.purpose,
        f"```\n{result.use}\n```",
        "## How it was trained",
        result.method,
        f"```\n{command}\n```",
        "## Measured on held-out text",
        *(f"{name}:\n\n{table}" for name, table in measured.items()),
        *(["## Greedy samples", *samples] if samples else []),
        "## What it has read",
        *_sources(corpus),
        "Training data, sha256:",
        _table(("file", "sha256"), sorted(corpus.hashes.items())),
    ]
    return "\n\n".join(parts) + "\n"


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


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}".rstrip() for line in text.splitlines())


def write_result(
    folder: Path, result: Result, run: Trainer, corpus: Corpus, target: str, provenance: Provenance
) -> None:
    """Writes training.json and README.md. `target` is the name of the target that the result is for, if any."""
    position, settings, name = run.position, run.settings, folder.resolve().name
    outcome = {
        "part": result.part,
        "parameters": result.parameters,
        "steps": position.step,
        "tokens": position.tokens,
        "tokens_are": result.tokens,
        "minutes": round(position.elapsed_s / 60, 1),
        "held_out": {name: {key: tally.share for key, tally in held.items()} for name, held in result.held_out.items()},
        "losses": run.log.losses(),
    }
    facts: dict[str, Any] = {
        "outcome": outcome,
        "settings": asdict(settings),
        "data_sha256": dict(corpus.hashes),
        "provenance": asdict(provenance),
    }
    optimizer = {"muon": "Muon for the weight matrices, AdamW for the rest", "adamw": "AdamW"}[settings.optimizer.name]
    minutes = position.elapsed_s / 60
    took = f"{minutes:.0f}" if minutes >= 1 else f"{minutes:.1f}"
    length = (
        f"{position.step:,} optimiser steps over {position.tokens:,} {result.tokens} in {took} "
        f"minutes on {settings.device}; {optimizer}, linear warm-up over {settings.warmup:.0%}, then the rate falls to "
        f"zero ({settings.schedule}){', bfloat16 autocast' if settings.bf16 else ''}."
    )
    use = result.use.format(folder=name, model=target)
    card = render_card(name, replace(result, use=use, method=f"{length} {result.method}"), provenance.command, corpus)
    with writing(folder / CHECKPOINTS, "the record"):
        (folder / RECORD).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        (folder / "README.md").write_text(card, encoding="utf-8")


def trained_before(start: str, folder: Path) -> str:
    """A sentence on what a training starts from, such as "It began as m": how that was trained, if its folder tells."""
    record = folder / RECORD
    facts = json.loads(record.read_text(encoding="utf-8")) if record.is_file() else {}
    if "outcome" not in facts:  # a model of somebody else's
        return f"{start}, trained before."
    outcome, command = facts["outcome"], facts.get("provenance", {}).get("command", "")
    length = f"{outcome['steps']:,} steps over {outcome['tokens']:,} tokens in {outcome['minutes']:.0f} minutes"
    return f"{start}, trained before: {length}{f', by `{command}`' if command else ''}."


def model_shape(config: Any) -> str:
    """The sizes of a model in a sentence."""
    mlp, family = f"MLP {config.intermediate_size}", family_of(config)
    if chosen := family.experts_per_token(config):
        sparse = sum(family.has_experts(config, index) for index in range(config.num_hidden_layers))
        width = getattr(config, "moe_intermediate_size", config.intermediate_size)
        experts = f"{config.num_experts} experts of {width}, {chosen} for each token"
        mlp = experts if sparse == config.num_hidden_layers else f"{mlp}, or in {sparse} of the layers {experts}"
    return (
        f"{config.model_type} layout: {config.num_hidden_layers} layers of {config.hidden_size}, "
        f"{config.num_attention_heads} heads, {config.num_key_value_heads} key/value heads, "
        f"{mlp}, vocabulary {config.vocab_size}, "
        f"context {config.max_position_embeddings} tokens, "
        f"{'tied' if config.tie_word_embeddings else 'untied'} embeddings, bfloat16."
    )
