"""Measures benchctl itself on the embedded models: `python -m benchmarks`, or `make bench`.

Each part runs in a process of its own, so that thread counts and memory peaks do not mix. The figures go to a JSON
file, with the machine they were taken on; the runs behind them stay beside it as results files.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

SUITES = ("koala", "self-instruct", "wizardlm", "mt-bench")
EXACT_METHODS = (
    "two_model[draft_tokens=4]",
    "prompt_lookup",
    "prompt_lookup[draft_tokens=5,max_ngram=3,match=last]",
    "early_exit[mode=draft]",
)
# Half the layers of the reference target: overhead weighs twice as much as in a real run, and 40 seconds are enough.
TRAINING = {"steps": 16, "layers": 8}
TRAINER_GOAL = 0.8  # of the speed of a bare PyTorch loop


@click.command()
@click.option("--threads", multiple=True, type=click.IntRange(1), default=(1, 2), show_default=True)
@click.option("--prompts", default=6, show_default=True, type=click.IntRange(2), help="Prompts of each suite.")
@click.option("--max-new-tokens", default=96, show_default=True, type=click.IntRange(2))
@click.option("--out", default="results/bench", show_default=True, type=click.Path(path_type=Path), help="Folder.")
def main(threads: tuple[int, ...], prompts: int, max_new_tokens: int, out: Path) -> None:
    """Our loop against transformers' generate, exact methods against our own baseline, the trainer against a bare
    loop, and what the harness costs.

    \b
    Example:
      python -m benchmarks --threads 1 --prompts 4 --out results/bench
    """
    from benchctl.measuring.machine import machine_facts, versions
    from benchmarks.runs import help_seconds

    out.mkdir(parents=True, exist_ok=True)
    exact_runs = {n: out / f"exact-threads-{n}.jsonl" for n in threads}
    default_run = out / "default.jsonl"
    # Only its own earlier runs: --out may be a folder with measurements of somebody else.
    for old in (*exact_runs.values(), default_run):
        old.unlink(missing_ok=True)
    found: dict[str, Any] = {"machine": machine_facts("cpu"), "versions": versions(), "help_seconds": help_seconds()}
    sizes = {"max_new_tokens": max_new_tokens}
    found["library"] = [row for n in threads for row in _child("speed", threads=n, prompts=prompts, **sizes)]
    found["exact"] = [
        _child(
            "runs",
            out=str(path),
            methods=EXACT_METHODS,
            benches=SUITES,
            limit=prompts,
            threads=n,
            **sizes,
        )
        for n, path in exact_runs.items()
    ]
    found["default"] = _child(
        "runs",
        out=str(default_run),
        methods=["all"],
        benches=["koala"],
        limit=None,
        threads=1,
        max_new_tokens=128,
    )
    found["trainer_ratio"] = _child("training", threads=max(threads), **TRAINING)
    found["trainer_goal"] = {"ratio": TRAINER_GOAL, "met": found["trainer_ratio"]["low"] >= TRAINER_GOAL}
    (out / "figures.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    _show(found)
    print(f"Figures: {out / 'figures.json'}")


def _child(module: str, **arguments: Any) -> Any:
    command = [sys.executable, "-m", f"benchmarks.{module}", json.dumps(arguments)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def _show(found: dict[str, Any]) -> None:
    console = Console(width=120)
    table = Table("ours", "theirs", "threads", "ratio [95%]", "tokens/s", "theirs", "same text", title="transformers")
    for row in found["library"]:
        ratio = f"{row['ratio']:.2f}x [{row['low']:.2f}, {row['high']:.2f}]"
        speeds = (f"{row['our_tokens_per_s']:.0f}", f"{row['their_tokens_per_s']:.0f}")
        same = f"{row['same_tokens']}/{row['prompts']}"
        table.add_row(_plain(row["ours"]), row["theirs"], str(row["threads"]), ratio, *speeds, same)
    console.print(table)
    table = Table("method", "suite", "threads", "speed-up over autoregressive [95%]", title="exact methods")
    for part in found["exact"]:
        for suite in part["table"]["groups"][0]["suites"]:
            for method in suite["methods"]:
                speedup = method["metrics"]["speedup"]
                text = f"{speedup['value']:.2f}x [{speedup['low']:.2f}, {speedup['high']:.2f}]"
                table.add_row(_plain(method["label"]), suite["suite"], str(part["threads"]), text)
    console.print(table)
    trainer = found["trainer_ratio"]
    rates = f"{trainer['trainer_tokens_per_s']:.0f} and {trainer['bare_tokens_per_s']:.0f} tokens/s"
    ratio = f"{trainer['ratio']:.2f}x [{trainer['low']:.2f}, {trainer['high']:.2f}]"
    size = f"{trainer['layers']} layers, {trainer['threads']} threads, {trainer['steps']} steps"
    print(f"trainer against a bare PyTorch loop: {ratio}, {rates} ({size} each)")
    print(f"goal {TRAINER_GOAL}x: {against_goal(trainer['low'], trainer['high'], TRAINER_GOAL)}")
    default = found["default"]
    print(f"benchctl --help: {found['help_seconds']:.2f} s (median of 10)")
    print(f"default run: {default['seconds']:.0f} s, peak {default['peak_memory_bytes'] / 1e9:.2f} GB")
    print(f"outside steps: {default['harness_share']:.2%} of the measuring time")


def against_goal(low: float, high: float, goal: float) -> str:
    """What an interval says of a goal that is a least value: only one that lies above it as a whole has met it."""
    if low >= goal:
        return "met, by the whole interval"
    return "missed, by the whole interval" if high < goal else "open, the interval holds it; measure again or longer"


def _plain(label: str) -> str:
    """A label's brackets are no markup."""
    return label.replace("[", "\\[")


if __name__ == "__main__":
    main()
