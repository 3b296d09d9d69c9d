"""What the frame holds of a generation: a Line of sums, and amounts by name."""

from collections.abc import Iterator
from itertools import compress
from sys import intern
from typing import NamedTuple

from benchctl.analysis.frame.row_figures import POSITION, least_read_s, loops, step_counts
from benchctl.exact_match import is_right
from benchctl.records.schema import Row, Run, SuiteInfo, Totals

COUNTER = "counter_"  # what the columns of counters begin with
FIDELITY = "fidelity_"  # and those of sums about an answer's fidelity
CONDITION = "condition_"  # and those of what the machine showed
PHASE = "phase_"  # and those of the phases of profiled steps


class Line(NamedTuple):
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


def named_amounts(row: Row) -> Iterator[tuple[str, float | None]]:
    """What a row holds by name: the name of its column, and the amount."""
    phases = {name: sum(seconds) for name, seconds in row.phases.items()}
    amounts_of = {
        COUNTER: row.counters,
        FIDELITY: row.fidelity,
        CONDITION: row.conditions,
        POSITION: step_counts(row),
        PHASE: phases,
    }
    return ((prefix + name, amount) for prefix, amounts in amounts_of.items() for name, amount in amounts.items())


def line_of(number: int, row: Row, text: str | None, run: Run, suite: SuiteInfo, batch_decode_s: float) -> Line:
    """The line of a row of file `number`; its batch took `batch_decode_s` after the first token."""
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
    """With the sums of a published file: there the first step includes the token that prefill yields here."""
    is_counted = totals.new_tokens is not None and totals.steps is not None
    return line._replace(
        new_tokens=totals.new_tokens,
        steps=totals.steps,
        committed_tokens=totals.new_tokens,
        accepted_tokens=(totals.new_tokens or 0) - (totals.steps or 0) if is_counted else None,
        loops=None,
        whole_s=totals.wall_s,
    )
