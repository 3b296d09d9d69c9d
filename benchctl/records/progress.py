"""How much of a run its results file holds."""

from collections import defaultdict
from collections.abc import Iterable

from benchctl.records.schema import Row, Run


def finished_prompts(run: Run, rows: Iterable[Row]) -> tuple[int, int]:
    """Prompts that every method answered in every planned repeat and mode, and all prompts of the run.

    The turns of a prompt are known from its rows, so that of a prompt with several turns the last may be missing.
    """
    per_turn = run.repeats * len(run.modes) * sum(not method.unsupported for method in run.methods)
    found, turns = defaultdict[tuple[str, str], int](int), defaultdict[tuple[str, str], set[int]](set)
    for row in rows:
        if 0 <= row.repeat < run.repeats:  # neither warm-up nor a round that was measured again
            found[row.suite, row.prompt_id] += 1
            turns[row.suite, row.prompt_id].add(row.turn)
    finished = sum(count >= len(turns[prompt]) * per_turn for prompt, count in found.items())
    return finished, sum(suite.prompts for suite in run.suites)
