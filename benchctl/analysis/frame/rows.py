"""A generation in the frame: a Line of sums, amounts by name, and figures that need the row's lists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, compress
from sys import intern
from typing import NamedTuple

from benchctl.exact_match import is_right
from benchctl.records.schema import Row, Run, SuiteInfo, Totals

COPIES = 3
LOOP_TOKENS = 16
LONGEST_PHRASE = 90  # tokens, as in the authors' code
POSITIONS = 15  # deeper positions are not counted; the histogram's last bar holds this many accepted tokens or more
POSITION = "position_"  # prefix of the columns of `step_counts`
BANDWIDTH = "memory_bandwidth_mb_s"  # a fact of the machine
AUTOREGRESSIVE = "autoregressive"  # the header's bytes per step are those of this method


def loops(token_ids: Sequence[int], *, ended: bool) -> bool:
    """Whether an answer ends in at least COPIES of one phrase, the first perhaps cut, of LOOP_TOKENS tokens in all.

    With `ended` the last token is a stop token, which belongs to no phrase. Source: Holtzman et al., The Curious
    Case of Neural Text Degeneration, 2019, arXiv 1904.09751, who ask for three copies of a phrase of at least two
    words. Tokens are shorter than words, so we also ask for a minimum length of the whole repetition.
    Example: 9 and eight times 4 5 is a loop; 9 and seven times 4 5 is too short.

    >>> [loops([9, *[4, 5] * times], ended=False) for times in (7, 8)]
    [False, True]
    """
    ids = token_ids[:-1] if ended else token_ids
    if len(ids) < LOOP_TOKENS:
        return False
    longest = min(LONGEST_PHRASE, len(ids) // COPIES)
    if ids[-1] not in ids[-1 - longest : -1]:
        return False  # the usual case, decided in a tenth of the time
    return any(
        all(ids[-at] == ids[-at - phrase] for at in range(1, max(LOOP_TOKENS, COPIES * phrase) - phrase + 1))
        for phrase in range(1, longest + 1)
        if ids[-1] == ids[-1 - phrase]
    )


def step_counts(row: Row) -> Mapping[str, int]:
    """In how many steps each draft position was accepted and tested: `accepted_1`, `tested_1` .. to the deepest.

    A position is tested if all positions before it were accepted. The loop may cut accepted tokens off at a stop token
    or at the limit. The position after the last token kept was then neither accepted nor rejected: it is not tested.

    Example: steps that drafted 3 tokens and accepted 3, 1 and 0 of them tested the first position three times, the
    second twice and the third once, and accepted them 2, 1 and 1 times.
    """
    deepest = min(max(row.drafted, default=0), POSITIONS)
    if not deepest:
        return {}
    accepted, tested = [0] * (deepest + 1), [0] * (deepest + 1)
    for (drafted, kept), steps in Counter(zip(row.drafted, row.accepted, strict=True)).items():
        accepted[min(kept, deepest)] += steps
        tested[min(drafted, kept + 1, deepest)] += steps
    cut = row.accepted[-1] + 1
    if row.committed[-1] < cut <= min(row.drafted[-1], deepest):
        tested[cut], tested[cut - 1] = tested[cut] - 1, tested[cut - 1] + 1
    return {
        f"{kind}_{position}": steps
        for kind, exactly in (("accepted", accepted), ("tested", tested))
        # from how many steps reached exactly 0, 1, 2 .. positions to how many reached at least 1, 2 .. positions
        for position, steps in enumerate(reversed(list(accumulate(exactly[:0:-1]))), 1)
    }


def least_read_s(row: Row, run: Run) -> float | None:
    """The least time in seconds that the machine needs to read what all steps of a baseline's row read.

    Each step reads the weights and the keys and values of the text so far. None for methods, whose steps read other
    things, for batches, and where the header lacks the sizes or the bandwidth.

    Example: a prompt of 3 tokens and 2 steps, 100 bytes of weights, 10 bytes of keys and values per token, 1 MB/s: the
    steps see texts of 4 and 5 tokens, so they read 290 bytes in 290 us.
    """
    bandwidth_mb_s = run.machine.get(BANDWIDTH)
    if not isinstance(bandwidth_mb_s, int | float) or bandwidth_mb_s <= 0 or not run.step_bytes:
        return None
    if row.label.partition("[")[0] != AUTOREGRESSIVE or row.batch or row.error is not None or row.totals is not None:
        return None
    steps = len(row.step_s)
    text_tokens = steps * row.prompt_tokens + steps * (steps + 1) // 2
    return (steps * run.step_bytes + text_tokens * run.cache_token_bytes) / (bandwidth_mb_s * 1e6)


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
    `right_answers` 1 where it also ends with that. `invalid` is the reason why its times are not to be trusted, or
    empty. In addition, `round_invalid` is true if any generation of its round, of any label and mode, has such a reason
    (see frame/build.py). `loops` is 1 where the answer ends in a loop, see `loops`. `energy_j` of a batch is shared as
    its time is; `least_read_s` is the baseline's bound, see `least_read_s`. `passes` are those of the target, one per
    step in files that do not count them. Generations with equal `answer_id` have equal token ids; with equal `steps_id`
    they also came to these in equal steps. `cpu_s` of a batch is shared as its time is.
    """

    file: int
    suite: str
    prompt_id: str
    batch: str
    turn: int
    label: str
    repeat: int
    session: int
    prompt_tokens: int
    new_tokens: int | None
    steps: int | None
    passes: int | None
    committed_tokens: int | None
    drafted_tokens: int | None
    accepted_tokens: int | None
    drafting_steps: int
    draft_rows: int
    depth_layers: int
    full_layers: int
    checked_answers: int
    right_answers: int
    loops: int | None
    ttft_s: float | None
    decode_s: float | None
    whole_s: float | None
    whole_decode_s: float | None
    peak_memory_bytes: int | None
    reserved_memory_bytes: int | None
    energy_j: float | None
    least_read_s: float | None
    started_s: float | None
    cpu_s: float | None
    answer_id: int
    steps_id: int
    stop_reason: str | None
    verdict: str | None
    first_divergence: int | None
    invalid: str
    error: str | None


def named_amounts(row: Row) -> Iterator[tuple[str, float | None]]:
    """The amounts of a row that have names: the name of the column, and the amount."""
    phases = {name: sum(seconds) for name, seconds in row.phases.items()}
    amounts_of = {COUNTER: row.counters, FIDELITY: row.fidelity, CONDITION: row.conditions}
    amounts_of |= {POSITION: step_counts(row), PHASE: phases}
    return ((prefix + name, amount) for prefix, amounts in amounts_of.items() for name, amount in amounts.items())


_AS_IN_ROW = (
    *("turn", "repeat", "session", "prompt_tokens", "ttft_s", "peak_memory_bytes"),
    *("reserved_memory_bytes", "stop_reason", "verdict", "first_divergence", "invalid", "error"),
)


def line_of(number: int, row: Row, run: Run, suite: SuiteInfo, batch_decode_s: float) -> Line:
    """The line of a row of file `number`; its batch took `batch_decode_s` after the first token."""
    share = 1 / max(len(row.batch), 1)
    exact_answer = "" if row.error else suite.exact_answer(row.prompt_id, row.turn)
    line = Line(
        **{name: getattr(row, name) for name in _AS_IN_ROW},
        file=number,
        suite=suite.name,
        prompt_id=(prompt_id := intern(row.prompt_id)),
        batch=intern(row.batch[0]) if row.batch else prompt_id,
        label=intern(row.label),
        new_tokens=len(row.token_ids),
        steps=len(row.step_s),
        passes=sum(row.passes) if row.passes else len(row.step_s),
        committed_tokens=sum(row.committed),
        drafted_tokens=sum(row.drafted),
        accepted_tokens=sum(row.accepted),
        drafting_steps=(drafting_steps := len(row.drafted) - row.drafted.count(0)),
        draft_rows=max(sum(compress(row.rows, row.drafted)) - drafting_steps, 0),  # an engine's rows are not known
        depth_layers=sum(row.layers),
        full_layers=run.target.layers * len(row.layers),
        checked_answers=int(exact_answer != ""),
        right_answers=int(exact_answer != "" and is_right(row.text, exact_answer)),
        loops=int(loops(row.token_ids, ended=row.stop_reason == "stop")),
        decode_s=None if row.ttft_s is None else row.decode_s if row.batch else batch_decode_s,
        whole_s=None if row.ttft_s is None else (row.ttft_s + batch_decode_s) * share,
        whole_decode_s=None if row.ttft_s is None else batch_decode_s * share,
        energy_j=None if row.energy_j is None else row.energy_j * share,
        least_read_s=least_read_s(row, run),
        started_s=row.started_s,
        cpu_s=None if row.cpu_s is None else row.cpu_s * share,
        answer_id=hash(row.token_ids),
        steps_id=hash((row.token_ids, row.committed, row.drafted, row.accepted, row.rows, row.passes, row.layers)),
    )
    if row.arrived_s:  # whether an engine's chunks are steps may differ from one answer to the next; its sums may not
        sums = row.totals or Totals(steps=len(row.step_s), drafted=sum(row.drafted), accepted=sum(row.accepted))
        line = line._replace(steps_id=hash((row.token_ids, sums.steps, sums.drafted, sums.accepted)))
    if (totals := row.totals) is None:
        return line
    line = line._replace(
        new_tokens=totals.new_tokens,
        steps=totals.steps,
        passes=totals.steps,
        loops=line.loops if row.token_ids else None,
    )
    if row.ttft_s is not None:  # a chunk of an engine may hold several tokens; imported files do not show chunks
        first = row.arrived_tokens[0] if row.arrived_tokens else 1
        return line._replace(
            committed_tokens=None if totals.new_tokens is None else totals.new_tokens - first,
            drafted_tokens=totals.drafted,
            accepted_tokens=totals.accepted,
        )
    # The sums of a published file: there the first step includes the token that prefill yields here.
    is_counted = totals.new_tokens is not None and totals.steps is not None
    return line._replace(
        committed_tokens=totals.new_tokens,
        accepted_tokens=(totals.new_tokens or 0) - (totals.steps or 0) if is_counted else None,
        whole_s=totals.wall_s,
    )
