"""Verdicts are counted, agreement ends at the first divergence, and lossless needs a claim and every answer."""

import random
from dataclasses import replace
from itertools import product
from statistics import median

import pytest
from compared import file_of, frame_of, pairs_of, to_frame
from fixtures_records import RUN, baseline_row, drafted_row, failed

from benchctl.analysis.frame.build import (
    Fidelity,
    agreed_tokens,
    broken,
    claims_exact,
    compared_tokens,
    fidelity,
    is_lossless,
)
from benchctl.records.schema import Exactness, Row


@pytest.mark.parametrize(
    ("baseline", "answer", "agreed", "compared"),
    [
        (baseline_row(), drafted_row(), 9, 9),
        (baseline_row(tokens=17), replace(drafted_row(steps=4), verdict="lossy", first_divergence=4), 4, 17),
        (baseline_row(tokens=9), replace(drafted_row(steps=8), verdict="lossy", first_divergence=4), 4, 17),
        (baseline_row(), replace(drafted_row(), verdict="tie", first_divergence=4), 4, 4),
        (baseline_row(), replace(drafted_row(), verdict="numeric", first_divergence=4), 4, 4),
        # A second turn with a history of its own is judged on a baseline answer that is not in the file.
        (baseline_row(tokens=9), replace(drafted_row(steps=4), verdict="lossy", first_divergence=9), 9, 10),
        (baseline_row(), replace(drafted_row(), verdict="sampled"), 0, 0),
    ],
)
def test_answers_agree_up_to_their_first_divergence_of_the_longer_one(
    baseline: Row, answer: Row, agreed: int, compared: int
) -> None:
    pairs = pairs_of([baseline, answer])
    assert (agreed_tokens(pairs).sum(), compared_tokens(pairs).sum()) == (agreed, compared)


def test_verdicts_and_failures_are_counted() -> None:
    rows = [
        drafted_row("p0"),
        drafted_row("p1"),
        replace(drafted_row("p2"), verdict="tie", first_divergence=2),
        replace(drafted_row("p3"), verdict="lossy", first_divergence=5),
        replace(drafted_row("p4"), verdict="sampled"),
        failed(drafted_row("p5")),
    ]
    assert fidelity(frame_of(rows), {0: 2}) == Fidelity(2, 1, 0, 1, 1, 1, 0, 3.5)


PLACES = {"tie": 2, "numeric": 3, "lossy": 4}  # where answers of each verdict diverge
STATES = ("identical", *PLACES, "unjudged", "failed")


def _row(state: str, **place: int | str) -> Row:
    row = replace(drafted_row(), **place)  # type: ignore[arg-type]
    if state == "failed":
        return failed(row)
    if state == "unjudged":
        return replace(row, verdict=None, fidelity={"failed_controls": 1.0})
    return replace(row, verdict=state, first_divergence=PLACES.get(state))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("tries", "counted"),
    [
        (("identical", "identical"), "identical"),
        (("lossy", "identical"), "lossy"),
        (("identical", "lossy", "identical"), "lossy"),
        (("tie", "identical"), "tie"),
        (("numeric", "tie"), "numeric"),
        (("failed", "identical"), "identical"),
        (("failed", "failed", "tie"), "tie"),
        (("identical", "failed"), "failed"),
        (("lossy", "failed"), "lossy"),
        (("numeric", "unjudged"), "numeric"),
        (("unjudged", "identical"), "identical"),
        (("identical", "unjudged"), "unjudged"),
        (("unjudged", "failed"), "failed"),
        (("failed", "unjudged"), "unjudged"),
    ],
)
def test_a_planned_generation_counts_once_by_the_worst_verdict_of_its_tries(
    tries: tuple[str, ...], counted: str
) -> None:
    """A failure that another try made good stayed one for ever, and a disturbed run had more answers than prompts and
    repeats. What an answer was is known however long it took: so a lossy one counts, whatever its round met."""
    rows = [_row(state, repeat=1 + 2 * number) for number, state in enumerate(tries)]  # all stand for repeat 1 of 2
    found = fidelity(frame_of(rows), {0: 2})
    assert found == Fidelity(**{counted: 1}, median_first_divergence=PLACES.get(counted))


def test_counts_are_those_of_a_plain_count_by_file_prompt_turn_and_repeat() -> None:
    """Of 3 and of 2 repeats, with up to two further tries of each, in any order that times allow."""
    chance, repeats = random.Random(0), {0: 3, 1: 2}
    rank = ["lossy", "numeric", "failed", "unjudged", "tie", "identical"]
    expected: list[str] = []
    files: list[list[Row]] = [[], []]
    for file, prompt, turn, planned in product(repeats, range(15), range(2), range(3)):
        if planned >= repeats[file]:
            continue
        tries = [chance.choice(STATES) for _ in range(chance.randint(1, 3))]
        files[file] += [
            _row(state, prompt_id=f"p{prompt}", turn=turn, repeat=planned + number * repeats[file])
            for number, state in enumerate(tries)
        ]
        mended = [state for state in tries[:-1] if state not in ("failed", "unjudged")]
        expected.append(min([*mended, tries[-1]], key=rank.index))
    run_files = [file_of(rows, replace(RUN, repeats=repeats[file])) for file, rows in enumerate(files)]
    found = fidelity(to_frame(run_files), repeats)
    assert len(expected) == 15 * 2 * 5
    assert {state: getattr(found, state) for state in STATES} == {state: expected.count(state) for state in STATES}
    assert found.median_first_divergence == median(PLACES[state] for state in expected if state in PLACES)


@pytest.mark.parametrize(
    ("exactness", "temperature", "claim"),
    [
        ("exact", 0, True),
        ("exact", 0.8, True),
        ("exact_greedy", 0, True),
        ("exact_greedy", 0.8, False),
        ("lossy", 0, False),
    ],
)
def test_a_greedy_claim_is_none_under_sampling(exactness: Exactness, temperature: float, claim: bool) -> None:
    assert claims_exact(exactness, temperature) == claim


@pytest.mark.parametrize(
    ("claim", "found", "lossless"),
    [
        (True, Fidelity(identical=3), True),
        (True, Fidelity(identical=3, tie=1), True),
        (False, Fidelity(identical=3), False),
        (True, Fidelity(identical=3, lossy=1), False),
        (True, Fidelity(identical=3, failed=1), False),
        (True, Fidelity(sampled=3), False),
        (True, Fidelity(), False),
    ],
)
def test_lossless_needs_the_claim_and_every_answer(claim: bool, found: Fidelity, lossless: bool) -> None:
    assert is_lossless(claim, found, "float32") == lossless


@pytest.mark.parametrize(("dtype", "lossless"), [("float32", False), ("float64", False), ("bfloat16", True)])
def test_a_numeric_answer_is_borne_out_only_in_half_precision(dtype: str, lossless: bool) -> None:
    """MEASUREMENT 2.1: for an exact method in float32 anything but identical or tie is a bug."""
    assert is_lossless(True, Fidelity(identical=3, numeric=1), dtype) == lossless
    assert broken(Fidelity(identical=3, numeric=1, lossy=2), dtype) == (2 if lossless else 3)
