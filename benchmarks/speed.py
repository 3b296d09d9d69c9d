"""Our methods and transformers' take turns on the same prompts in one process; ratios with paired intervals."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from benchctl import bundled
from benchctl.analysis.stats.intervals import Interval, Levels, ratio_intervals
from benchctl.decoding.loop import DecodeRequest, decode
from benchctl.decoding.method import UsesDraftModel
from benchctl.decoding.model.target import Target
from benchctl.measuring.prompts.suites import load_suite
from benchctl.registry import build
from benchmarks.library import Answer, Library

Decoder = Callable[[Sequence[int], int], Answer]
DRAFT_TOKENS = 5
LOOKUP_TOKENS, LOOKUP_NGRAM = 10, 2


@dataclass(frozen=True)
class Comparison:
    """One of our methods against transformers' counterpart.

    ratio        their seconds / our seconds, sums over the same prompts, whole generations
    low, high    95% interval over prompts
    same_tokens  prompts on which both gave the same ids
    """

    ours: str
    theirs: str
    threads: int
    prompts: int
    ratio: float
    low: float
    high: float
    our_tokens_per_s: float
    their_tokens_per_s: float
    our_tokens_per_step: float
    their_tokens_per_pass: float
    same_tokens: int


@dataclass
class Arm:
    name: str
    decoder: Decoder
    seconds: list[float]
    answers: list[Answer]

    def take(self, prompt_ids: Sequence[int], max_new_tokens: int) -> None:
        begin = time.perf_counter()
        answer = self.decoder(prompt_ids, max_new_tokens)
        self.seconds.append(time.perf_counter() - begin)
        self.answers.append(answer)

    @property
    def tokens_per_s(self) -> float:
        return sum(len(answer.token_ids) for answer in self.answers) / sum(self.seconds)

    @property
    def tokens_per_pass(self) -> float:
        return sum(len(answer.token_ids) for answer in self.answers) / sum(answer.passes for answer in self.answers)


def measure(threads: int, prompts: int, max_new_tokens: int, model: str = "") -> list[dict[str, object]]:
    """Every pair on the embedded suites' prompts, order reversed from prompt to prompt.

    Of a ``model`` by name or folder, which may have no draft model, the baseline and its two forms.
    """
    torch.set_num_threads(threads)
    target_path, draft_path = (Path(bundled.resolve(model)), None) if model else _embedded()
    target, library = Target.load(target_path), Library(target_path, draft_path)
    pairs = _pairs(target, Target.load(draft_path), library) if draft_path else _forms(target, target_path, library)
    arms = list({id(arm): arm for pair in pairs for arm in pair}.values())
    texts = embedded_prompts(target, prompts)
    for arm in arms:
        arm.decoder(texts[0], 16)
    for index, prompt_ids in enumerate(texts):
        for arm in arms if index % 2 == 0 else reversed(arms):
            arm.take(prompt_ids, max_new_tokens)
    return [asdict(_compare(ours, theirs, threads)) for ours, theirs in pairs]


def _embedded() -> tuple[Path, Path]:
    model = bundled.default_target()
    return Path(bundled.resolve(model.name)), Path(bundled.resolve(model.draft))


def _pairs(target: Target, draft: Target, library: Library) -> list[tuple[Arm, Arm]]:
    ways = (
        ("autoregressive", "generate", library.plain()),
        (f"two_model[draft_tokens={DRAFT_TOKENS},confidence=0]", "assisted generation", library.assisted(DRAFT_TOKENS)),
        (
            f"prompt_lookup[draft_tokens={LOOKUP_TOKENS},max_ngram={LOOKUP_NGRAM},match=first]",
            "prompt lookup",
            library.prompt_lookup(LOOKUP_TOKENS, LOOKUP_NGRAM),
        ),
    )
    return [(Arm(label, _ours(label, target, draft), [], []), Arm(name, way, [], [])) for label, name, way in ways]


def _forms(target: Target, path: Path, library: Library) -> list[tuple[Arm, Arm]]:
    """The baseline against generate, and with float16 weights against itself."""
    ours = Arm("autoregressive", _ours("autoregressive", target), [], [])
    half = _ours("autoregressive", Target.load(path, weights="float16"))
    return [
        (ours, Arm("generate", library.plain(), [], [])),
        (Arm("autoregressive, float16 weights", half, [], []), ours),
    ]


def _ours(label: str, target: Target, draft: Target | None = None) -> Decoder:
    method = build(label)
    if isinstance(method, UsesDraftModel) and draft is not None:
        method.use_draft_model(draft)
    method.prepare(target)

    def run(prompt_ids: Sequence[int], max_new_tokens: int) -> Answer:
        done = decode(method, target, DecodeRequest(prompt_ids, max_new_tokens, clock=time.perf_counter))
        return Answer(done.token_ids, 1 + len(done.steps))

    return run


def embedded_prompts(target: Target, count: int) -> list[list[int]]:
    """``count`` prompts of each embedded suite, first turns, as the run would encode them."""
    suites = [
        load_suite(name, source="embedded", limit=count, notify=lambda text: None)
        for name in ("koala", "self-instruct", "wizardlm", "mt-bench")
    ]
    turns = [prompt.turns[0] for suite in suites for prompt in suite.prompts]
    return [target.tokenizer.encode_chat([{"role": "user", "content": turn}]) for turn in turns]


def _compare(ours: Arm, theirs: Arm, threads: int) -> Comparison:
    interval = paired_interval(theirs.seconds, ours.seconds)
    return Comparison(
        ours=ours.name,
        theirs=theirs.name,
        threads=threads,
        prompts=len(ours.seconds),
        ratio=sum(theirs.seconds) / sum(ours.seconds),
        low=interval.low,
        high=interval.high,
        our_tokens_per_s=ours.tokens_per_s,
        their_tokens_per_s=theirs.tokens_per_s,
        our_tokens_per_step=ours.tokens_per_pass,
        their_tokens_per_pass=theirs.tokens_per_pass,
        same_tokens=sum(a.token_ids == b.token_ids for a, b in zip(ours.answers, theirs.answers, strict=True)),
    )


def paired_interval(above: Sequence[float], below: Sequence[float]) -> Interval:
    """95% interval of sum(above) / sum(below), prompts or steps resampled in pairs."""
    zeros = np.zeros(len(above), dtype=np.int64)
    levels = Levels(zeros, np.arange(len(above)))
    found = ratio_intervals(np.array(above)[:, None], np.array(below)[:, None], levels)[0]
    assert found is not None, "five pairs or more always have an interval"
    return found


if __name__ == "__main__":
    print(json.dumps(measure(**json.loads(sys.argv[1]))))
