"""Synthetic results files of any size, with times that vary as measured ones do."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count, islice
from pathlib import Path

from tokenizers import Tokenizer

from benchctl.bundled import default_target, resolve
from benchctl.records.schema import Exactness, MethodInfo, Mode, ModelInfo, Row, Run, SuiteInfo, to_line

REPEATS = 5
LAYERS, VOCABULARY = 12, 4096
BASELINE, DRAFTING, EXITING = "autoregressive", "two_model", "early_exit"
_CLAIMS: dict[str, Exactness] = {BASELINE: "exact", DRAFTING: "exact", EXITING: "lossy"}
_REASONS: dict[Exactness, str] = {"exact": "", "lossy": "half its layers are not run"}
_TEXT = "so " * 200


def _token_text() -> Callable[[Sequence[int]], str]:
    """Ids to text of the embedded target."""
    tokenizer = Tokenizer.from_file(str(Path(resolve(default_target().name)) / "tokenizer.json"))
    return lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=True))


@dataclass(frozen=True)
class MadeUp:
    """Answers of `tokens` tokens, an odd number, by the baseline and by a method that commits two tokens a step, five
    repeats of each prompt in every mode. If they `differ`, there is also a method that leaves at half the layers and
    gives other answers; and texts are what the embedded target makes of the tokens, as a page about answers shows them.
    """

    modes: tuple[Mode, ...] = ("free",)
    tokens: int = 129
    differ: bool = False

    def write(self, path: Path, generations: int) -> None:
        """A results file of so many of these."""
        with path.open("wb") as file:
            file.write(to_line(self.run))
            for row in islice(self.rows(), generations):
                file.write(to_line(row))

    def rows(self) -> Iterator[Row]:
        """Prompt after prompt, without end."""
        chance = random.Random(0)
        tell = _token_text() if self.differ else None
        for number in count():
            ids = tuple(chance.randrange(VOCABULARY) for _ in range(self.tokens))
            usual = [replace(row, prompt_id=f"p{number}") for row in self._answers(ids, chance)]
            if tell:
                usual = [replace(row, text=tell(row.token_ids)) for row in usual]
            for repeat in range(REPEATS):
                for mode in self.modes:
                    for row in usual:
                        yield self._timed(row, mode, repeat, chance)

    def _answers(self, ids: tuple[int, ...], chance: random.Random) -> Iterator[Row]:
        """One by each method."""
        yield self._row(BASELINE, 1, ids)
        drafted = self._row(DRAFTING, 2, ids)
        yield replace(drafted, verdict="identical") if self.differ else drafted
        if self.differ:
            at = chance.randrange(1, self.tokens)
            others = (ids[at] ^ 1, *(chance.randrange(VOCABULARY) for _ in ids[at + 1 :]))
            left = replace(self._row(EXITING, 1, (*ids[:at], *others)), verdict="lossy", first_divergence=at)
            yield replace(left, layers=(LAYERS, *[LAYERS // 2] * (self.tokens - 1)), margin=0.5, noise=1e-6)

    def _timed(self, row: Row, mode: Mode, repeat: int, chance: random.Random) -> Row:
        times_s = tuple(round(chance.uniform(0.009, 0.011), 6) for _ in row.step_s)
        phases = {"verify": times_s, "host": (0.0,) * len(times_s)} if mode == "profile" else {}
        return replace(row, repeat=repeat, mode=mode, step_s=times_s, phases=phases)

    def _row(self, label: str, committed: int, ids: tuple[int, ...]) -> Row:
        steps = (self.tokens - 1) // committed
        drafted = 3 * (committed - 1)
        return Row(
            suite="made-up",
            prompt_id="",
            turn=0,
            label=label,
            repeat=0,
            session=0,
            order=0,
            prompt_tokens=30,
            token_ids=ids,
            text=_TEXT,
            stop_reason="length",
            ttft_s=0.02,
            step_s=(0.01,) * steps,
            committed=(committed,) * steps,
            drafted=(drafted,) * steps,
            accepted=(committed - 1,) * steps,
            rows=(drafted + 1,) * steps,
            layers=(LAYERS,) * self.tokens,
        )

    @cached_property
    def run(self) -> Run:
        """Theirs."""
        target = ModelInfo(
            name=default_target().name if self.differ else "made-up",
            family="llama",
            layers=LAYERS,
            hidden_size=256,
            parameters=9_000_000,
            vocabulary=VOCABULARY,
            context_tokens=30 + self.tokens,
            weights_sha256="a",
            tokenizer_sha256="b",
            chat_template_sha256="c",
        )
        claims = {label: claim for label, claim in _CLAIMS.items() if self.differ or claim == "exact"}
        return Run(
            name="large",
            created="2026-01-01T00:00:00+00:00",
            command=("python", "-m", "benchmarks.reading"),
            baseline=BASELINE,
            target=target,
            draft=None,
            suites=(SuiteInfo(name="made-up", source="file", origin="benchmarks", sha256="d", prompts=1),),
            methods=tuple(
                MethodInfo(label=label, name=label, options={}, exactness=claim, reason=_REASONS[claim])
                for label, claim in claims.items()
            ),
            dtype="float32",
            device="cpu",
            executor="eager",
            attention="sdpa",
            threads=1,
            temperature=0.0,
            top_p=1.0,
            top_k=0,
            seed=0,
            max_new_tokens=self.tokens,
            repeats=REPEATS,
            modes=self.modes,
            order="abba",
            machine={"cpu": "made up", "gpu": ""},
            versions={},
            commit="",
        )
