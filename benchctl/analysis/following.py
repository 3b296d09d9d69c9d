"""What a run that still goes on has shown so far, at little cost: the processor that looks is the one that measures."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from benchctl.analysis.frame.build import pair, to_frame
from benchctl.analysis.frame.fidelity import Fidelity, Round, broken, claims_exact, fidelity, round_of
from benchctl.analysis.metrics.drafting import ACCEPTANCE_RATE
from benchctl.analysis.metrics.faithfulness import TOKEN_AGREEMENT
from benchctl.analysis.metrics.speed import SPEEDUP
from benchctl.analysis.stats.estimates import Estimate, estimates
from benchctl.records.schema import MethodInfo, Row, Run
from benchctl.records.writer import RunFile, scan

_Prompt = tuple[str, str]  # its suite and id


@dataclass(frozen=True)
class MethodSoFar:
    """A method over the rounds that are whole; `generations` counts those that its figures rest on."""

    label: str
    is_baseline: bool
    generations: int
    speedup: Estimate
    acceptance_rate: Estimate
    token_agreement: Estimate
    fidelity: Fidelity
    broken_claim: int


@dataclass(frozen=True)
class SoFar:
    """Where a run stands. `done` of `prompts` are measured, parts of them included; where a suite has not been reached
    its prompts count like the others, however many turns they have. `measured_s` is what that took within generations.
    """

    run: Run
    generations: int
    done: float
    prompts: int
    measured_s: float
    failed: int
    last_error: str
    disturbed_rounds: int
    methods: tuple[MethodSoFar, ...]


@dataclass
class _Seen:
    """What was read of a run: frames of its whole rounds, the rows since, and counts over all rows; `generations` and
    `turns` by suite and prompt, of which `last` are in progress."""

    run: Run
    rows: int = 0
    pending: list[Row] = field(default_factory=list)
    frames: list[pd.DataFrame] = field(default_factory=list)
    generations: Counter[_Prompt] = field(default_factory=Counter)
    turns: dict[_Prompt, int] = field(default_factory=dict)
    last: frozenset[_Prompt] = frozenset()
    measured_s: float = 0.0
    failed: int = 0
    last_error: str = ""

    def count(self, row: Row) -> None:
        self.rows += 1
        if row.error is not None:
            self.failed, self.last_error = self.failed + 1, row.error
        if row.totals is None and row.ttft_s is not None:
            self.measured_s += (row.ttft_s + sum(row.step_s)) / max(len(row.batch), 1)
        if 0 <= row.repeat < self.run.repeats:  # neither warm-up nor a round measured again
            prompt = (row.suite, row.prompt_id)
            self.generations[prompt] += 1
            self.turns[prompt] = max(self.turns.get(prompt, 0), row.turn + 1)
            self.last = frozenset((row.suite, each) for each in row.batch or (row.prompt_id,))

    def done(self, *, ended: bool) -> float:
        """Prompts, parts of them included. A prompt has the turns that it was seen with; one in progress may have as
        many as any of its suite."""
        labels = sum(not method.unsupported for method in self.run.methods)
        of_a_turn = labels * len(self.run.modes) * self.run.repeats
        turns = self.turns | ({} if ended else dict.fromkeys(self.last, self._most_turns()))
        return sum(count / (turns[prompt] * of_a_turn) for prompt, count in self.generations.items())

    def _most_turns(self) -> int:
        """Of a prompt of the suite in progress."""
        suites = {suite for suite, _ in self.last}
        return max((turns for (suite, _), turns in self.turns.items() if suite in suites), default=1)


class Follower:
    """Parses what was appended to a results file since the last look, and never again what it has parsed."""

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)
        self._seen: _Seen | None = None

    def look(self, *, ended: bool = False) -> SoFar:
        """Where the run stands. Figures leave out its last round, which may not be whole, unless it has `ended`.

        Raises what recordfile.scan raises.
        """
        file = scan(self._path)
        seen = self._seen
        if seen is None or seen.run != file.run or len(file.rows) < seen.rows:
            seen = self._seen = _Seen(file.run)  # also where another run was begun in its place
        _take(seen, file, ended)
        return _so_far(seen, ended)


def _take(seen: _Seen, file: RunFile, ended: bool) -> None:
    for row in file.rows[seen.rows :]:
        seen.count(row)
        seen.pending.append(row)
    keep = 0 if ended else _of_last_round(seen.pending)
    whole, seen.pending = seen.pending[: len(seen.pending) - keep], seen.pending[len(seen.pending) - keep :]
    if whole:
        seen.frames.append(to_frame([RunFile(file.path, file.run, whole)]))


def _so_far(seen: _Seen, ended: bool) -> SoFar:
    frame = pd.concat(seen.frames, ignore_index=True) if seen.frames else to_frame([])
    return SoFar(
        run=seen.run,
        generations=seen.generations.total(),
        done=seen.done(ended=ended),
        prompts=sum(suite.prompts for suite in seen.run.suites),
        measured_s=seen.measured_s,
        failed=seen.failed,
        last_error=seen.last_error,
        disturbed_rounds=len(frame.loc[frame["round_invalid"], list(Round._fields)].drop_duplicates()),
        methods=tuple(_method(frame, method, seen.run) for method in seen.run.methods if not method.unsupported),
    )


def _of_last_round(rows: list[Row]) -> int:
    """How many rows at the end are of one round."""
    last = round_of(0, rows[-1]) if rows else None
    return next((count for count, row in enumerate(reversed(rows)) if round_of(0, row) != last), len(rows))


def _method(frame: pd.DataFrame, method: MethodInfo, run: Run) -> MethodSoFar:
    pairs = pair(frame, method.label, run.baseline)
    speedup, rate, agreement = estimates(pairs, (SPEEDUP, ACCEPTANCE_RATE, TOKEN_AGREEMENT))
    found = fidelity(frame[frame["label"] == method.label], {0: run.repeats})
    claims = claims_exact(method.exactness, run.temperature)
    return MethodSoFar(
        label=method.label,
        is_baseline=method.label == run.baseline,
        generations=len(pairs),
        speedup=speedup,
        acceptance_rate=rate,
        token_agreement=agreement,
        fidelity=found,
        broken_claim=broken(found, run.dtype) if claims else 0,
    )
