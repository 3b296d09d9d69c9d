"""What `python -m benchmarks` measures, section by section; each in processes of its own, so that thread counts and
memory peaks do not mix."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.runs import help_seconds

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


@dataclass(frozen=True)
class Asked:
    """Of the command line: sizes that were not given are those of each section."""

    out: Path
    threads: tuple[int, ...]
    prompts: int | None = None
    max_new_tokens: int | None = None
    labels: tuple[str, ...] = ()

    def sizes(self, prompts: int, max_new_tokens: int) -> dict[str, int]:
        """These, but what was asked for goes first."""
        return {
            "prompts": self.prompts or prompts,
            "max_new_tokens": self.max_new_tokens or max_new_tokens,
        }


Figures = dict[str, Any]


def library(asked: Asked) -> Figures:
    sizes = asked.sizes(prompts=6, max_new_tokens=96)
    return {"library": [row for n in asked.threads for row in _child("speed", threads=n, **sizes)]}


def exact(asked: Asked) -> Figures:
    sizes = asked.sizes(prompts=6, max_new_tokens=96)
    return {
        "exact": [
            _child(
                "runs",
                out=_fresh(asked.out / f"exact-threads-{n}.jsonl"),
                methods=EXACT_METHODS,
                benches=SUITES,
                limit=sizes["prompts"],
                threads=n,
                max_new_tokens=sizes["max_new_tokens"],
            )
            for n in asked.threads
        ]
    }


def default(asked: Asked) -> Figures:
    found = _child(
        "runs",
        out=_fresh(asked.out / "default.jsonl"),
        methods=["all"],
        benches=["koala"],
        limit=None,
        threads=1,
        max_new_tokens=128,
    )
    return {"help_seconds": help_seconds(), "default": found}


def trainer(asked: Asked) -> Figures:
    ratio = _child("training", threads=max(asked.threads), **TRAINING)
    return {"trainer_ratio": ratio, "trainer_goal": {"ratio": TRAINER_GOAL, "met": ratio["low"] >= TRAINER_GOAL}}


def costs(asked: Asked) -> Figures:
    """On the fewest threads asked for: what a step does beside its rows weighs most there."""
    sizes = asked.sizes(prompts=2, max_new_tokens=64)
    return {"costs": _child("costs", labels=asked.labels, threads=min(asked.threads), **sizes)}


SECTIONS: Mapping[str, Callable[[Asked], Figures]] = {
    "library": library,
    "exact": exact,
    "default": default,
    "trainer": trainer,
    "costs": costs,
}


def _child(module: str, **arguments: Any) -> Any:
    command = [sys.executable, "-m", f"benchmarks.{module}", json.dumps(arguments)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def _fresh(path: Path) -> str:
    """Only its own earlier run goes: --out may be a folder with measurements of somebody else."""
    path.unlink(missing_ok=True)
    return str(path)
