"""How much of a run its results file holds."""

from collections import defaultdict
from collections.abc import Iterable

from benchctl.records.reader import RowKey, row_key
from benchctl.records.schema import Row, Run

Generation = tuple[str, str, int, int]  # suite, prompt, turn and repeat


def finished_prompts(run: Run, generations: Iterable[Generation], modes: int) -> tuple[int, int]:
    """Prompts that every method answered in every planned repeat, in so many modes; and all prompts of the run.

    The turns of a prompt are known from its rows, so that of a prompt with several turns the last may be missing.
    """
    per_turn = run.repeats * modes * sum(not method.unsupported for method in run.methods)
    found, turns = defaultdict[tuple[str, str], int](int), defaultdict[tuple[str, str], set[int]](set)
    for suite, prompt, turn, repeat in generations:
        if 0 <= repeat < run.repeats:  # neither warm-up nor a round that was measured again
            found[suite, prompt] += 1
            turns[suite, prompt].add(turn)
    finished = sum(count >= len(turns[prompt]) * per_turn for prompt, count in found.items())
    return finished, sum(suite.prompts for suite in run.suites)


def unanswered(run: Run, rows: Iterable[Row]) -> tuple[dict[RowKey, str], set[str]]:
    """The errors of planned generations that failed in every try; and the labels that answered some generation."""
    answered, errors = set[RowKey](), dict[RowKey, str]()
    for row in rows:
        if row.repeat >= 0:
            key = row_key(row)._replace(repeat=row.repeat % run.repeats)
            if row.error is None:
                answered.add(key)
            else:
                errors[key] = row.error
    return {key: error for key, error in errors.items() if key not in answered}, {key.label for key in answered}


def tried_prompts(run: Run, rows: Iterable[Row]) -> tuple[int, int]:
    """The same of the rows of all modes, failed ones included."""
    return finished_prompts(run, ((row.suite, row.prompt_id, row.turn, row.repeat) for row in rows), len(run.modes))
