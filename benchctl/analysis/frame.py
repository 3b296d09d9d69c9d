"""Records as a table: one line per generation, with sums of the per-step lists and the unit in each column's name."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import pandas as pd

from benchctl.analysis.exact_match import is_right
from benchctl.recordfile import RunFile, read
from benchctl.records import Row, Run, SuiteInfo
from benchctl.rowkeys import RowKey, batch_keys

COUNTER = "counter_"  # what the columns of counters begin with
# Answers to the same turn, measured in turns by the same process: only these are compared with each other.
_PAIRED = ["file", "suite", "prompt_id", "turn", "repeat", "session"]


@dataclass(frozen=True)
class Line:
    """A generation in the frame. `file` numbers the files; times are None where it failed.

    `ttft_s` and `decode_s`, the time after the first token, are as the answer's reader sees them. `whole_s`, prefill
    included, and `whole_decode_s` are the machine's: they sum to the time spent, so an answer of a batch has its equal
    share of the batch's. `batch` names what was decoded together, by its first prompt: the prompt itself without
    batches. `depth_layers` sums the layers run over all tokens; `full_layers` is what these tokens take at full depth.
    `checked_answers` is 1 where the prompt came with an exact answer and the generation did not fail, and
    `right_answers` 1 where it also ends with that.
    """

    file: int
    suite: str
    prompt_id: str
    batch: str
    turn: int
    label: str
    repeat: int
    session: int
    order: int
    prompt_tokens: int
    new_tokens: int
    steps: int
    committed_tokens: int
    drafted_tokens: int
    accepted_tokens: int
    depth_layers: int
    full_layers: int
    checked_answers: int
    right_answers: int
    ttft_s: float | None
    decode_s: float | None
    whole_s: float | None
    whole_decode_s: float | None
    peak_memory_bytes: int | None
    stop_reason: str | None
    verdict: str | None
    first_divergence: int | None
    margin: float | None
    noise: float | None
    error: str | None


def load(paths: Sequence[Path | str], *, warm_up: bool = False) -> pd.DataFrame:
    """The generations of results files, see `to_frame`. Raises UserError for a file that cannot be read."""
    return to_frame([read(path) for path in paths], warm_up=warm_up)


def to_frame(files: Sequence[RunFile], *, warm_up: bool = False) -> pd.DataFrame:
    """A Line per generation of `files`, in the order of files and rows, warm-up left out unless asked for.

    Beside its fields there is a column `counter_...` for every counter that any of the rows has, empty for the others.
    """
    rows = [(number, row) for number, file in enumerate(files) for row in file.rows if warm_up or row.repeat >= 0]
    steps = [_longest_steps(file.rows) for file in files]
    lines = [_line(number, row, files[number].run, steps[number][batch_keys(row)]) for number, row in rows]
    # By columns: pandas would take the dataclasses themselves, but copies each deeply.
    columns = {field.name: [getattr(line, field.name) for line in lines] for field in fields(Line)}
    for name in dict.fromkeys(name for _, row in rows for name in row.counters):
        columns[COUNTER + name] = [row.counters.get(name) for _, row in rows]
    return pd.DataFrame(columns)


def pair(frame: pd.DataFrame, label: str, baseline: str) -> pd.DataFrame:
    """The generations of `label` that did not fail, each with the baseline's answer to the same turn, if that did not.

    The baseline's columns end in `_baseline`. Every figure is taken over these pairs, so that all figures of a method,
    and the baseline's times, speak of the same prompts.
    """
    whole = frame[frame["error"].isna()]
    answers, baselines = whole[whole["label"] == label], whole[whole["label"] == baseline]
    return answers.merge(baselines, on=_PAIRED, suffixes=("", "_baseline"))


def _longest_steps(rows: Sequence[Row]) -> dict[tuple[RowKey, ...], float]:
    """Seconds of all steps of each batch: of those that its longest answer took."""
    found: dict[tuple[RowKey, ...], float] = {}
    for row in rows:
        found[batch_keys(row)] = max(found.get(batch_keys(row), 0.0), sum(row.step_s))
    return found


def _line(number: int, row: Row, run: Run, batch_decode_s: float) -> Line:
    share = 1 / max(len(row.batch), 1)
    exact_answer = "" if row.error else _suite(run, row.suite).exact_answer(row.prompt_id, row.turn)
    return Line(
        file=number,
        suite=row.suite,
        prompt_id=row.prompt_id,
        batch=row.batch[0] if row.batch else row.prompt_id,
        turn=row.turn,
        label=row.label,
        repeat=row.repeat,
        session=row.session,
        order=row.order,
        prompt_tokens=row.prompt_tokens,
        new_tokens=len(row.token_ids),
        steps=len(row.step_s),
        committed_tokens=sum(row.committed),
        drafted_tokens=sum(row.drafted),
        accepted_tokens=sum(row.accepted),
        depth_layers=sum(row.layers),
        full_layers=run.target.layers * len(row.layers),
        checked_answers=int(exact_answer != ""),
        right_answers=int(exact_answer != "" and is_right(row.text, exact_answer)),
        ttft_s=row.ttft_s,
        decode_s=None if row.ttft_s is None else sum(row.step_s),
        whole_s=None if row.ttft_s is None else (row.ttft_s + batch_decode_s) * share,
        whole_decode_s=None if row.ttft_s is None else batch_decode_s * share,
        peak_memory_bytes=row.peak_memory_bytes,
        stop_reason=row.stop_reason,
        verdict=row.verdict,
        first_divergence=row.first_divergence,
        margin=row.margin,
        noise=row.noise,
        error=row.error,
    )


def _suite(run: Run, name: str) -> SuiteInfo:
    return next(suite for suite in run.suites if suite.name == name)
