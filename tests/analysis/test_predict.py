"""Predicted speed-ups: on made-up machines whose costs are known, worked out by hand."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from compared import file_of
from fixtures_predict import DRAFTING, PLAIN, TOKENS, Step, both, row_of, usual_file
from fixtures_records import BASELINE, DRAFTED, EXITING, LAYERS, RUN, TARGET, failed
from refusals import refused

from benchctl.analysis.predict import Prediction, Sums, Unpredicted, head_share, predict
from benchctl.records.schema import Mode
from benchctl.records.writer import RunFile

MODES: tuple[Mode, ...] = ("free", "profile")


def account_of(file: RunFile, label: str) -> Prediction:
    (account,) = (account for account in predict([file]) if account.label == label)
    assert isinstance(account, Prediction), account
    return account


def shares(account: Prediction) -> dict[str, float]:
    return {part.name: part.share for part in account.parts}


def test_a_drafting_method_is_predicted_by_what_drafting_and_wider_passes_cost() -> None:
    """4 tokens for a step of 10 s + 4 s of drafting + 1 s of wider passes: 40 / 15. With commit and host it took 17."""
    account = account_of(usual_file(), DRAFTED)
    assert account.predicted.value == pytest.approx(40 / 15)
    assert account.measured.value == pytest.approx(40 / 17)
    assert account.gap.value == pytest.approx(40 / 17 - 40 / 15)
    costs = account.costs
    assert (costs.tokens_per_step, costs.drafted_per_step, costs.rows_per_step, dict(costs.rows)) == (4, 4, 5, {5: 36})
    assert costs.draft_ratio == pytest.approx(1 / 8)
    assert costs.verify_ratio == pytest.approx(9 / 8)
    assert (account.prompts, account.generations) == (6, 6)


def test_the_parts_of_a_token_s_time_are_those_of_its_steps() -> None:
    """Of the baseline's 40 s for 4 tokens; the free steps took a tenth more than the profiled ones' 17 s."""
    account = account_of(usual_file(slower=1.1), DRAFTED)
    expected = {"target steps": 10, "drafting": 4, "wider passes": 1, "commit": 1, "host": 1, "unexplained": 1.7}
    assert shares(account) == pytest.approx({name: seconds / 40 for name, seconds in expected.items()})
    assert account.gap_lies_in.name == "unexplained"


HEAD = TARGET.vocabulary * TARGET.hidden_size
# The head is a fifth of what a pass reads, or of all parameters.
FIFTHS = {
    "step_bytes": replace(RUN, step_bytes=4 * 5 * HEAD),
    "parameters": replace(RUN, target=replace(TARGET, parameters=5 * HEAD)),
}


@pytest.mark.parametrize("known_from", ["step_bytes", "parameters"])
def test_a_method_that_drafts_nothing_is_predicted_by_the_layers_it_runs_and_a_head(known_from: str) -> None:
    """The head is a fifth: half of 4/5 of 8 s, 1.6 s for the head, commit 1 s and host 1 s: 10 / 6.8.

    Its passes took 5 s, which is 0.2 s more, and its host 2, so 8.
    """
    account = account_of(file_of(usual_file().rows, FIFTHS[known_from]), EXITING)
    assert account.predicted.value == pytest.approx(10 / 6.8)
    assert account.measured.value == pytest.approx(10 / 8)
    assert account.costs.depth_fraction == pytest.approx(0.5)
    expected = {"target steps": 6.8, "drafting": 0, "rest of passes": 0.2, "commit": 0, "host": 1, "unexplained": 0}
    assert shares(account) == pytest.approx({name: seconds / 10 for name, seconds in expected.items()}, abs=1e-12)


def test_the_head_s_share_shrinks_as_the_text_grows_and_of_nothing_known_is_none() -> None:
    run = replace(RUN, step_bytes=4 * 4 * HEAD, cache_token_bytes=4 * HEAD // 128)
    assert head_share(run, 0) == pytest.approx(1 / 4)
    assert head_share(run, 128) == pytest.approx(1 / 5)
    half = replace(run, dtype="bfloat16", step_bytes=run.step_bytes // 2, cache_token_bytes=run.cache_token_bytes // 2)
    assert head_share(half, 128) == pytest.approx(1 / 5)
    assert head_share(replace(RUN, target=replace(TARGET, parameters=0)), 128) == 0


def test_answers_of_other_lengths_are_no_error_of_a_time_per_token() -> None:
    """Every token of both takes 10 s, whatever the lengths."""
    rng = random.Random(0)
    rows = []
    for prompt in range(12):
        for label, step in ((BASELINE, PLAIN), (EXITING, Step(0, 0, PLAIN.phases, LAYERS // 2))):
            steps = [step] * rng.randint(5, 100)
            rows += [row_of(label, steps, mode, f"p{prompt}") for mode in MODES]
    account = account_of(file_of(rows), EXITING)
    for figure, expected in ((account.measured, 1.0), (account.predicted, account.predicted.value)):
        assert figure.interval is not None
        assert (figure.value, figure.interval.low, figure.interval.high) == pytest.approx((expected,) * 3)


def test_the_interval_of_a_time_per_token_is_as_wide_as_its_error() -> None:
    """Lengths and paces both vary: the widths of 40 data sets are, in the mean, what the ratios of 40 vary by."""
    rng = np.random.default_rng(0)
    found, widths = [], []
    for _ in range(40):
        rows = []
        for prompt in range(20):
            for label in (BASELINE, EXITING):
                pace, steps = float(rng.lognormal(0, 0.2)), int(rng.integers(5, 60))
                step = Step(0, 0, (0.0, pace, 0.0, 0.0), LAYERS if label == BASELINE else LAYERS // 2)
                rows += [row_of(label, [step] * steps, mode, f"p{prompt}") for mode in MODES]
        measured = account_of(file_of(rows), EXITING).measured
        assert measured.interval is not None
        found.append(measured.value)
        widths.append(measured.interval.high - measured.interval.low)
    assert float(np.mean(widths)) == pytest.approx(2 * 1.96 * float(np.std(found)), rel=0.25)


def test_the_time_for_other_tokens_is_the_example_s() -> None:
    short, long = (Step(0, 0, (0.0, seconds, 0.0, 0.0)) for seconds in (2.0, 4 / 3))
    sums = Sums.of([row_of(BASELINE, [short]), row_of(BASELINE, [long] * 3)], LAYERS)
    assert sums.for_tokens(sums.seconds, np.array([6.0, 2.0])) == pytest.approx([10, 2])
    assert sums.for_tokens(sums.seconds, sums.tokens) == pytest.approx([2, 4])


@pytest.mark.parametrize("label", [DRAFTED, EXITING])
def test_parts_add_up_to_the_measured_time_and_the_known_ones_to_the_predicted(label: str) -> None:
    chance = random.Random(1)
    rows = [
        *both(BASELINE, [noisy(PLAIN, chance) for _ in range(TOKENS)]),
        *both(DRAFTED, [noisy(Step(drafts, 1, DRAFTING.phases), chance) for drafts in (1, 2, 3, 4) for _ in range(3)]),
        *both(EXITING, [noisy(Step(0, 0, (0.0, 5.0, 1.0, 1.0), layers), chance) for layers in (3, 6, 9)] * 8),
    ]
    account = account_of(file_of(rows), label)
    assert sum(part.share for part in account.parts) == pytest.approx(1 / account.measured.value)
    known = sum(part.share for part in account.parts if part.predicted)
    assert known == pytest.approx(1 / account.predicted.value)


def noisy(step: Step, chance: random.Random) -> Step:
    draft, verify, commit, host = (seconds * chance.uniform(0.9, 1.1) for seconds in step.phases)
    return replace(step, phases=(draft, verify, commit, host))


def test_steps_that_told_no_phases_count_as_not_profiled() -> None:
    """A method with a step of its own: all its time is in one phase, which is none of the four."""
    rows = [
        replace(row, phases={**dict.fromkeys(row.phases, (0.0,) * len(row.step_s)), "unsplit": row.step_s})
        if row.label == EXITING and row.mode == "profile"
        else row
        for row in usual_file().rows
    ]
    drafted, exiting = predict([file_of(rows)])
    assert isinstance(drafted, Prediction) and isinstance(exiting, Unpredicted)
    assert exiting.label == EXITING and "--profile" in exiting.reason


def test_intervals_hold_what_prompts_that_differ_leave_open() -> None:
    """Prompts of 1 to 6 accepted tokens: the gap is far narrower than its two ends, for they vary together."""
    rows = []
    for prompt, accepted in enumerate((1, 2, 3, 4, 2, 3)):
        steps = [Step(4, accepted, DRAFTING.phases)] * 6
        for mode in MODES:
            rows.append(row_of(DRAFTED, steps, mode, f"p{prompt}"))
            rows.append(row_of(BASELINE, [PLAIN] * 6 * (accepted + 1), mode, f"p{prompt}"))
    account = account_of(file_of(rows), DRAFTED)
    widths = []
    for figure in (account.predicted, account.measured, account.gap):
        assert figure.interval is not None
        assert figure.interval.low < figure.value < figure.interval.high
        widths.append(figure.interval.high - figure.interval.low)
    assert widths[2] < widths[1] / 4
    assert account.predicted.value == pytest.approx(10 * np.mean([2, 3, 4, 5, 3, 4]) / 15)


SLOW = Step(4, 3, (90.0, 90.0, 90.0, 90.0))


def test_failed_doubted_and_warm_up_generations_do_not_count() -> None:
    usual = usual_file()
    spoilt = [
        failed(row_of(DRAFTED, [DRAFTING], prompt_id="p7")),
        replace(row_of(DRAFTED, [SLOW] * 6, prompt_id="p8"), invalid="throttled"),
        replace(row_of(DRAFTED, [SLOW] * 6, prompt_id="p0"), repeat=-1),
        row_of(DRAFTED, [], prompt_id="p9"),
        *(row_of(BASELINE, [PLAIN] * TOKENS, prompt_id=f"p{prompt}") for prompt in (7, 8, 9)),
    ]
    assert predict([file_of([*usual.rows, *spoilt])]) == predict([usual])


def test_a_doubt_in_the_last_row_of_a_round_holds_for_those_before() -> None:
    usual = usual_file()
    slow = [
        row_of(label, [step] * steps, mode, "p8")
        for mode in MODES
        for label, step, steps in ((DRAFTED, SLOW, 6), (BASELINE, PLAIN, TOKENS - 1))
    ]
    doubted = [*slow[:-1], replace(slow[-1], invalid="throttled")]
    with_doubt, without = (file_of([*usual.rows, *rows]) for rows in (doubted, slow))
    assert predict([with_doubt]) == predict([usual]) != predict([without])


@pytest.mark.parametrize("changes", [{"invalid": "throttled"}, {"prompt_id": "p1"}])
def test_a_method_without_a_valid_answer_in_common_with_the_baseline_is_named(changes: dict[str, str]) -> None:
    """It was left out without a word."""
    answer = replace(row_of(DRAFTED, [DRAFTING] * 6), **changes)  # type: ignore[arg-type]
    (account,) = predict([file_of([row_of(BASELINE, [PLAIN] * TOKENS), answer])])
    assert isinstance(account, Unpredicted) and account.label == DRAFTED
    assert "no valid answer" in account.reason


def test_only_what_both_answered_in_both_modes_counts() -> None:
    """The baseline's profile of p0 is missing: so p0 counts nowhere."""
    usual = usual_file()
    gone = next(row for row in usual.rows if row.label == BASELINE and row.mode == "profile")
    account = account_of(file_of(row for row in usual.rows if row is not gone), DRAFTED)
    assert account.prompts == 5


def replace_modules(sha256: str) -> RunFile:
    """A file whose modules differ from those of another one, and not from a file of the baseline alone."""
    methods = (RUN.methods[0], *(replace(each, modules_sha256=sha256) for each in RUN.methods[1:]))
    return replace(usual_file(), run=replace(RUN, methods=methods), path=Path(f"{sha256}.jsonl"))


def test_a_label_without_steps_is_named_and_not_predicted() -> None:
    """As of OpenVINO; it said that the file has only its baseline."""
    file = file_of([row_of(BASELINE, [PLAIN]), failed(row_of(DRAFTED, [PLAIN]))])
    (found,) = predict([file])
    assert isinstance(found, Unpredicted) and (found.label, "no valid answer with steps" in found.reason) == (
        DRAFTED,
        True,
    )


@pytest.mark.parametrize(
    ("files", "id", "fact"),
    [
        ([file_of([row_of(BASELINE, [PLAIN])])], "only_baseline", "--method"),
        (
            [usual_file(), file_of(usual_file().rows, replace(RUN, dtype="bfloat16"), "other.jsonl")],
            "runs_differ",
            "other.jsonl: dtype is bf",
        ),
        (
            [file_of([row_of(BASELINE, [PLAIN])]), *(replace_modules(sha256) for sha256 in ("aa", "zz"))],
            "runs_differ",
            "zz.jsonl: modules is",
        ),
        ([file_of([], replace(RUN, batch_size=4))], "batched_run", "--batch-size 1"),
    ],
)
def test_what_cannot_be_predicted_from_is_refused(files: list[RunFile], id: str, fact: str) -> None:
    with refused(id, fact):
        predict(files)
