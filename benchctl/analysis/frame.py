"""Records as a table: one line per generation, with sums of the per-step lists and the unit in each column's name."""

from collections.abc import Iterable, Iterator, Sequence, Set
from itertools import compress
from pathlib import Path
from sys import intern
from typing import NamedTuple

import pandas as pd

from benchctl.analysis.acceptance import POSITION, step_counts
from benchctl.analysis.bandwidth import least_read_s
from benchctl.analysis.degeneration import loops
from benchctl.analysis.rounds import Round, round_of
from benchctl.exact_match import is_right
from benchctl.recordfile import RunFile, read
from benchctl.records import Mode, Row, Run, SuiteInfo, Totals

COUNTER = "counter_"  # what the columns of counters begin with
FIDELITY = "fidelity_"  # and those of sums about an answer's fidelity
CONDITION = "condition_"  # and those of what the machine showed
PHASE = "phase_"  # and those of the phases of profiled steps
# Answers to the same turn, measured in turns by the same process: only these are compared with each other.
_PAIRED = ["file", "suite", "prompt_id", "turn", "repeat", "session"]
_ANSWERED = ["suite", "prompt_id", "turn"]


class Line(NamedTuple):  # a hundred thousand of these take a tenth of the time that as many dataclasses take
    """A generation in the frame. `file` numbers the files; times are None where it failed, as is whatever an imported
    file does not tell.

    `ttft_s` and `decode_s`, the time after the first token, are as the answer's reader sees them. `whole_s`, prefill
    included, and `whole_decode_s` are the machine's: they sum to the time spent, so an answer of a batch has its equal
    share of the batch's. `batch` names what was decoded together, by its first prompt: the prompt itself without
    batches. `depth_layers` sums the layers run over all tokens; `full_layers` is what these tokens take at full depth.
    Of `drafting_steps` steps with a draft the target read `draft_rows` rows besides their roots.
    `checked_answers` is 1 where the prompt came with an exact answer and the generation did not fail, and
    `right_answers` 1 where it also ends with that. `invalid` says why its times are not to be trusted, or is empty;
    beside these fields `round_invalid` says whether that is so of any generation of its round, of whatever label and
    mode (see rounds.py). `loops` is 1 where the answer ends in a loop, see degeneration.py. `energy_j` of a batch is
    shared as its time is; `least_read_s` is the baseline's bound, see bandwidth.py.
    """

    file: int
    suite: str
    prompt_id: str
    batch: str
    turn: int
    label: str
    repeat: int
    session: int
    mode: str
    order: int
    prompt_tokens: int
    new_tokens: int | None
    steps: int | None
    committed_tokens: int | None
    drafted_tokens: int
    accepted_tokens: int | None
    drafting_steps: int
    draft_rows: int
    depth_layers: int
    full_layers: int
    checked_answers: int
    right_answers: int
    loops: int | None
    text: str | None
    ttft_s: float | None
    decode_s: float | None
    whole_s: float | None
    whole_decode_s: float | None
    peak_memory_bytes: int | None
    reserved_memory_bytes: int | None
    energy_j: float | None
    least_read_s: float | None
    stop_reason: str | None
    verdict: str | None
    first_divergence: int | None
    margin: float | None
    noise: float | None
    invalid: str
    error: str | None


def load(paths: Sequence[Path | str], *, warm_up: bool = False, mode: Mode = "free") -> pd.DataFrame:
    """The generations of results files, see `to_frame`. Raises UserError for a file that cannot be read."""
    return to_frame([read(path) for path in paths], warm_up=warm_up, mode=mode)


def to_frame(files: Sequence[RunFile], *, warm_up: bool = False, mode: Mode = "free") -> pd.DataFrame:
    """The generations of one mode: see `to_frames`."""
    return to_frames(files, [mode], warm_up=warm_up)[mode]


def to_frames(
    files: Sequence[RunFile], modes: Iterable[Mode], *, warm_up: bool = False, texts: bool = False
) -> dict[Mode, pd.DataFrame]:
    """A Line per generation of `files`, in the order of files and rows, warm-up left out unless asked for.

    A frame for each mode, for what is forced or profiled takes other times than what runs freely: a figure that mixed
    them would be of neither. All are made as the rows are gone through once, which is what takes time. Nothing is of
    methods that are not among its run's: see comparison.over. Answers' texts are as large as all else together, so they
    are left out unless asked for.

    Beside its fields there is a column `counter_...` for every counter, `fidelity_...` for every sum about fidelity,
    `condition_...` for every condition, `position_...` for every count of a draft's positions (see acceptance.py) and
    `phase_...` for the seconds of every phase of its steps that any of the rows has, empty for the others.
    """
    columns: dict[Mode, _Columns] = {mode: _Columns() for mode in modes}
    doubted: set[Round] = set()
    for number, file in enumerate(files):
        suites = {suite.name: suite for suite in file.run.suites}
        labels = {method.label for method in file.run.methods}
        for batch in _batches(file.rows):
            batch_decode_s = max(sum(row.step_s) for row in batch)
            place = round_of(number, batch[0])
            if any(row.invalid for row in batch):
                doubted.add(place)
            for row in batch:
                if row.mode in columns and row.label in labels and (warm_up or row.repeat >= 0):
                    text = row.text if texts else None
                    line = _line(number, row, text, file.run, suites[row.suite], batch_decode_s)
                    columns[row.mode].add(line, row, place)
    return {mode: found.frame(doubted) for mode, found in columns.items()}


class _Columns:
    """The columns of a frame as they grow: lists of plain values, as a hundred thousand objects that hold others would
    be gone through by the garbage collector again and again."""

    def __init__(self) -> None:
        self._fields: tuple[list[object], ...] = tuple([] for _ in Line._fields)
        self._named: dict[str, list[float | None]] = {}
        self._rounds: list[Round] = []

    def add(self, line: Line, row: Row, place: Round) -> None:
        self._rounds.append(place)
        for column, value in zip(self._fields, line, strict=True):
            column.append(value)
        phases = {name: sum(seconds) for name, seconds in row.phases.items()}
        for prefix, amounts in (
            (COUNTER, row.counters),
            (FIDELITY, row.fidelity),
            (CONDITION, row.conditions),
            (POSITION, step_counts(row)),
            (PHASE, phases),
        ):
            for name, amount in amounts.items():
                # A column for each name that occurs, which is empty for the lines before that lacked it.
                named = self._named.setdefault(prefix + name, [])
                if (lacked := len(self._fields[0]) - 1 - len(named)) > 0:
                    named += [None] * lacked
                named.append(amount)

    def frame(self, doubted: Set[Round]) -> pd.DataFrame:
        count = len(self._fields[0])
        named = {name: values + [None] * (count - len(values)) for name, values in self._named.items()}
        invalid = pd.Series([place in doubted for place in self._rounds], dtype=bool)
        columns = dict(zip(Line._fields, self._fields, strict=True)) | named
        return pd.DataFrame(columns).assign(round_invalid=invalid)


def pair(frame: pd.DataFrame, label: str, baseline: str) -> pd.DataFrame:
    """The valid generations of `label`, each with the baseline's answer to the same turn, if that is valid too.

    The baseline's columns end in `_baseline`. Every figure is taken over these pairs, so that all figures of a method,
    and the baseline's times, speak of the same prompts. A generation that failed is not valid, nor is any of a round
    that was measured out of bounds, see rounds.py. Where the two never shared a session, as in files of other programs,
    each generation stands beside every one of the baseline's for that turn; see measured_apart.
    """
    whole = frame[frame["error"].isna() & ~frame["round_invalid"]]
    answers, baselines = whole[whole["label"] == label], whole[whole["label"] == baseline]
    if _share_a_session(frame, label, baseline):
        pairs = answers.merge(baselines, on=_PAIRED, suffixes=("", "_baseline"))
        return pairs.assign(file_baseline=pairs["file"], session_baseline=pairs["session"])
    return answers.merge(baselines, on=_ANSWERED, suffixes=("", "_baseline"))


def measured_apart(pairs: pd.DataFrame) -> bool:
    """Whether these pairs set a session against another one, so that the difference between them is in every ratio."""
    same = (pairs["file"] == pairs["file_baseline"]) & (pairs["session"] == pairs["session_baseline"])
    return not bool(same.all())


def _share_a_session(frame: pd.DataFrame, label: str, baseline: str) -> bool:
    """Also where nothing of it came out well: a session whose baseline failed is not made up for by another's."""
    measured = frame[["label", "file", "session"]].drop_duplicates()
    sessions = [set(zip(rows["file"], rows["session"], strict=True)) for rows in
                (measured[measured["label"] == label], measured[measured["label"] == baseline])]  # fmt: skip
    return bool(sessions[0] & sessions[1]) or not all(sessions)


def _batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """What was decoded together: rows of a batch stand together, see Row."""
    waiting: list[Row] = []
    for row in rows:
        waiting.append(row)
        if len(waiting) >= len(row.batch):
            yield waiting
            waiting = []


def _line(number: int, row: Row, text: str | None, run: Run, suite: SuiteInfo, batch_decode_s: float) -> Line:
    share = 1 / max(len(row.batch), 1)
    exact_answer = "" if row.error else suite.exact_answer(row.prompt_id, row.turn)
    line = Line(
        file=number,
        suite=suite.name,
        prompt_id=(prompt_id := intern(row.prompt_id)),
        batch=intern(row.batch[0]) if row.batch else prompt_id,
        turn=row.turn,
        label=intern(row.label),
        repeat=row.repeat,
        session=row.session,
        mode=row.mode,
        order=row.order,
        prompt_tokens=row.prompt_tokens,
        new_tokens=len(row.token_ids),
        steps=len(row.step_s),
        committed_tokens=sum(row.committed),
        drafted_tokens=sum(row.drafted),
        accepted_tokens=sum(row.accepted),
        drafting_steps=(drafting_steps := len(row.drafted) - row.drafted.count(0)),
        draft_rows=sum(compress(row.rows, row.drafted)) - drafting_steps,
        depth_layers=sum(row.layers),
        full_layers=run.target.layers * len(row.layers),
        checked_answers=int(exact_answer != ""),
        right_answers=int(exact_answer != "" and is_right(row.text, exact_answer)),
        loops=int(loops(row.token_ids, ended=row.stop_reason == "stop")),
        text=text,
        ttft_s=row.ttft_s,
        decode_s=None if row.ttft_s is None else sum(row.step_s) if row.batch else batch_decode_s,
        whole_s=None if row.ttft_s is None else (row.ttft_s + batch_decode_s) * share,
        whole_decode_s=None if row.ttft_s is None else batch_decode_s * share,
        peak_memory_bytes=row.peak_memory_bytes,
        reserved_memory_bytes=row.reserved_memory_bytes,
        energy_j=None if row.energy_j is None else row.energy_j * share,
        least_read_s=least_read_s(row, run),
        stop_reason=row.stop_reason,
        verdict=row.verdict,
        first_divergence=row.first_divergence,
        margin=row.margin,
        noise=row.noise,
        invalid=row.invalid,
        error=row.error,
    )
    return line if row.totals is None else _imported(line, row.totals)


def _imported(line: Line, totals: Totals) -> Line:
    """With what a published file tells in sums: its first step also has the token that prefill yields here."""
    told = totals.new_tokens is not None and totals.steps is not None
    return line._replace(
        new_tokens=totals.new_tokens,
        steps=totals.steps,
        committed_tokens=totals.new_tokens,
        accepted_tokens=(totals.new_tokens or 0) - (totals.steps or 0) if told else None,
        loops=None,
        whole_s=totals.wall_s,
    )
