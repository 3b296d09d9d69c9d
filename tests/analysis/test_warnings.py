"""Each warning is raised by its condition only, and has the numbers and names of the case."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from compared import figures_of, file_of, frame_of, group_of
from fixtures_records import (
    BASELINE,
    DRAFTED,
    EXITING,
    KOALA,
    RUN,
    baseline_row,
    drafted_row,
    exiting_row,
    failed,
    method,
    usual_rows,
)
from warned import ids, warned

from benchctl.analysis.comparison import compare
from benchctl.analysis.metrics.drafting import ACCEPTANCE_RATE, BLOCK_EFFICIENCY, MEAN_ACCEPTED
from benchctl.records.schema import OTHER_WEIGHTS, EngineInfo, Row, Totals


def test_a_good_run_has_no_warnings() -> None:
    rows = usual_rows()
    assert ids(group_of(rows + [replace(row, repeat=1) for row in rows])) == []


@pytest.mark.parametrize(
    ("changes", "id", "values"),
    [
        ({"suites": (replace(KOALA, source="embedded"),)}, "embedded_sample", {"suites": "koala"}),
        (
            {"suites": (replace(KOALA, prompts=30),)},
            "run_unfinished",
            {"file": "a.jsonl", "finished": 20, "prompts": 30},
        ),
        (
            {"machine": {"cores": 2, "load_average": [1.9, 0.0, 0.0]}},
            "machine_busy",
            {"file": "a.jsonl", "load": 1.9, "when": "at the start", "cores": 2, "threads": 1},
        ),
        ({"machine": {"one_row_cost": 1.11}}, "weak_baseline", {"file": "a.jsonl", "cost": 1.11}),
        (
            {"methods": (*RUN.methods, method("medusa", unsupported="no heads"))},
            "not_measured",
            {"label": "medusa", "reason": "no heads"},
        ),
    ],
)
def test_a_warning_from_the_header(changes: dict[str, Any], id: str, values: dict[str, object]) -> None:
    rows = usual_rows()
    group = group_of(rows + [replace(row, repeat=1) for row in rows], replace(RUN, **changes))
    assert ids(group) == [id]
    assert warned(group, id) == [values]


def test_a_suite_of_benchctls_own_is_no_sample_of_another() -> None:
    group = group_of(usual_rows(), replace(RUN, suites=(replace(KOALA, source="embedded", own=True),), repeats=1))
    assert (ids(group), group.title(group.pooled)) == ([], "koala")


@pytest.mark.parametrize(
    ("label", "options", "named"),
    [
        ("m2r2[width=3]", {"width": 3, "draft_tokens": 4, "confidence": 0.0}, ["draft_tokens=4, confidence=0.0"]),
        ("m2r2[draft_tokens=4]", {"draft_tokens": 4, "confidence": 0.2}, []),
    ],
)
def test_a_label_that_omits_an_old_default_is_named_with_it(
    label: str, options: dict[str, Any], named: list[str]
) -> None:
    """A tree with confidence 0 was shown as `m2r2 width=3`, which has a confidence of 0.2 today."""
    rows = [replace(row, label=label) if row.label == DRAFTED else row for row in usual_rows()]
    run = replace(RUN, methods=(RUN.methods[0], replace(RUN.methods[1], label=label, options=options)))
    rows = [row for row in rows if row.label in (BASELINE, label)]
    assert [values["options"] for values in warned(group_of(rows, run), "old_defaults")] == named


def test_output_length_differs() -> None:
    """Half the text in half the time is no speed-up, though the ratio of times says so."""
    group = group_of([baseline_row(tokens=21), drafted_row(steps=10), exiting_row(tokens=11)])
    assert warned(group, "output_length_differs") == [{"label": EXITING, "tokens": 11, "baseline_tokens": 21}]


@pytest.mark.parametrize(("lost", "expected"), [(0, True), (1, False), (20, False)])
def test_an_interval_of_no_width_leaves_room_for_a_loss(lost: int, expected: bool) -> None:
    """Where no answer of 20 was lost no resample loses one, but nor would it often where one in ten is lost."""
    rows = [
        replace(row, text="other") if row.label == EXITING and int(row.prompt_id[1:]) < lost else row
        for row in usual_rows()
    ]
    suite = replace(KOALA, exact_answers={f"p{n}": ("text",) for n in range(20)})
    found = warned(group_of(rows, replace(RUN, suites=(suite,))), "no_loss_observed")
    assert found == [{"label": EXITING, "prompts": 20, "possible": 3 / 20}] * expected


@pytest.mark.parametrize(("fast_s", "expected"), [(0.25, True), (0.8, False)])
def test_a_speed_up_that_rests_on_answers_that_repeat_themselves(fast_s: float, expected: bool) -> None:
    """Half of them loop; the others are 1 / 0.8 times as fast."""

    def answer(number: int, label: str) -> Row:
        looping = number < 10
        step_s = 1.0 if label == BASELINE else fast_s if looping else 0.8
        row = replace(baseline_row(f"p{number}", tokens=41, step_s=step_s, ttft_s=0.0), label=label)
        row = row if label == BASELINE else replace(row, verdict="identical")
        return replace(row, token_ids=(9, *(4, 5) * 20) if looping else tuple(range(41)))

    rows = [answer(number, label) for number in range(20) for label in (BASELINE, DRAFTED)]
    found = warned(group_of(rows), "answers_repeat")
    assert len(found) == expected
    if expected:
        values = found[0]
        assert (values["label"], values["share"]) == (DRAFTED, 0.5)
        assert (values["speedup"], values["sound"]) == (pytest.approx(80 / 42), pytest.approx(1 / 0.8))


def test_a_refused_speed_up_is_not_said_to_rest_on_answers_that_repeat_themselves() -> None:
    """The warning named the fastest method, also where no figure of it may be used."""
    rows = list[Row]()
    for prompt_id, step_s, token_ids in (("p0", 0.3, (9, *(4, 5) * 20)), ("p1", 0.9, tuple(range(41)))):
        usual = replace(baseline_row(prompt_id, tokens=41), token_ids=token_ids)
        rows += [usual, replace(usual, label=DRAFTED, step_s=(step_s,) * 40, verdict="identical")]
    lossy = replace(rows[-1], verdict="lossy", first_divergence=3)
    found = [warned(group_of(each), "answers_repeat") for each in (rows, [*rows[:-1], lossy])]
    assert [len(each) for each in found] == [1, 0]


def test_an_exact_method_with_a_lossy_answer() -> None:
    broken = replace(drafted_row(), verdict="lossy", first_divergence=3)
    group = group_of([baseline_row(), broken, exiting_row()])
    assert warned(group, "claim_broken") == [{"label": DRAFTED, "answers": 1}]


def test_failures_and_few_prompts() -> None:
    rows = [baseline_row("p0"), drafted_row("p0"), baseline_row("p1"), failed(drafted_row("p1"), "out of memory")]
    group = group_of(rows, replace(RUN, suites=(replace(KOALA, prompts=2),), methods=RUN.methods[:2], repeats=1))
    assert ids(group) == ["generations_failed", "few_prompts"]
    failure = {"label": DRAFTED, "generations": 1, "mode": "free", "prompt": "koala/p1", "error": "out of memory"}
    assert warned(group, "generations_failed") == [failure]
    assert warned(group, "few_prompts") == [{"count": 1, "unit": "prompt", "limit": 10, "publish": 100}]


@pytest.mark.parametrize(
    ("agreed", "dtype", "reason", "is_refused"),
    [
        (1, "float32", "", True),
        (8, "float16", "", True),
        (9, "float32", "", False),
        (1, "quantised", "", False),
        (1, "below float32", OTHER_WEIGHTS, False),
    ],
)
def test_an_engine_that_has_other_weights_than_it_should_is_refused(
    agreed: int, dtype: str, reason: str, is_refused: bool
) -> None:
    """With the file of another model and the same vocabulary, 8% of the tokens were the target's.

    The comparison printed a speed-up of 2.15x, and no warning."""
    engine = EngineInfo(name="x", version="1", run="started", dtype=dtype, prefix_cache="off", steps_from="counts")
    methods = (RUN.methods[0], replace(method(DRAFTED, "lossy"), engine=engine, reason=reason))
    scores = {"scored_tokens": 10.0, "target_agreed_tokens": float(agreed)}
    rows = [replace(row, fidelity=scores) if row.label == DRAFTED else row for row in usual_rows()]
    group = group_of([row for row in rows if row.label != EXITING], replace(RUN, methods=methods, repeats=1))
    assert warned(group, "other_weights") == [{"label": DRAFTED, "share": agreed / 10}] * is_refused
    assert figures_of(group).refused == "other_weights" * is_refused


@pytest.mark.parametrize(("foreign_cores", "expected"), [(0.1, []), (1.8, [(1.8, "throughout")])])
def test_what_others_used_counts_more_than_the_load_at_the_start(
    foreign_cores: float, expected: list[tuple[float, str]]
) -> None:
    rows = [replace(row, conditions={"foreign_cores": foreign_cores}) for row in usual_rows(20)]
    run = replace(RUN, machine={"cores": 2, "load_average": [1.9, 0.0, 0.0]})
    found = warned(group_of(rows, run), "machine_busy")
    assert [(values["load"], values["when"]) for values in found] == expected
    unwatched = file_of([replace(row, conditions={}) for row in rows], run, "unwatched.jsonl")
    (group,) = compare([file_of(rows, run), unwatched])
    at_start = [each["file"] for each in warned(group, "machine_busy") if each["when"] == "at the start"]
    assert at_start == ["unwatched.jsonl"]


@pytest.mark.parametrize(("waited_share", "expected"), [(0.04, []), (0.3, [0.3])])
def test_a_load_that_lasted(waited_share: float, expected: list[float]) -> None:
    rows = [replace(row, conditions={"waited_share": waited_share}) for row in usual_rows(20)]
    assert [values["waited"] for values in warned(group_of(rows), "waited_for_cores")] == expected


def test_a_few_generations_that_waited_long_are_no_lasting_load() -> None:
    rows = [replace(row, conditions={"waited_share": 0.9 * (index < 20)}) for index, row in enumerate(usual_rows(20))]
    assert warned(group_of(rows), "waited_for_cores") == []


def test_answers_whose_controls_failed_are_counted_and_their_method_is_not_lossless() -> None:
    """Their verdicts are missing, and the others would speak for them."""
    good, bad = drafted_row("p0"), replace(drafted_row("p1"), verdict=None, fidelity={"failed_controls": 1.0})
    baselines = [baseline_row("p0"), baseline_row("p1")]
    assert figures_of(group_of([*baselines, good, drafted_row("p1")])).lossless is True
    group = group_of([*baselines, good, bad])
    assert figures_of(group).lossless is False
    assert warned(group, "verdict_unknown") == [{"label": DRAFTED, "answers": 1, "generations": 2}]
    assert warned(group_of([*baselines, good]), "verdict_unknown") == []


def test_answers_with_a_verdict_and_without_agreement_are_counted_apart() -> None:
    """They were said to lack a verdict. Version 0.1 counted both as failed controls."""
    baselines, good = [baseline_row("p0"), baseline_row("p1")], drafted_row("p0")
    for name, expected in (
        ("failed_fidelity", [{"label": DRAFTED, "answers": 1, "generations": 2}]),
        ("failed_controls", []),
    ):
        group = group_of([*baselines, good, replace(drafted_row("p1"), fidelity={name: 1.0})])
        assert figures_of(group).lossless is True
        assert (warned(group, "verdict_unknown"), warned(group, "fidelity_unknown")) == ([], expected)


@pytest.mark.slow
def test_a_round_measured_again_does_not_replace_a_prompt_that_is_missing() -> None:
    """A repeat that is missing and another that was measured twice come to as many rows as were planned."""
    run = replace(RUN, repeats=2)
    rows = [replace(row, repeat=repeat) for row in usual_rows(20) for repeat in (0, 1)]
    assert warned(group_of(rows, run), "run_unfinished") == []
    short = [row for row in rows if (row.prompt_id, row.repeat) != ("p3", 1)]
    again = [replace(row, repeat=2) for row in rows if (row.prompt_id, row.repeat) == ("p3", 0)]
    for unfinished in (short, [*short, *again]):
        (values,) = warned(group_of(unfinished, run), "run_unfinished")
        assert (values["finished"], values["prompts"]) == (19, 20)


def test_rounds_out_of_bounds_are_left_out_for_all_labels_and_counted_with_their_reason() -> None:
    reason = "the GPU slowed down: power brake"
    rows = [
        replace(row, invalid=reason, ttft_s=500.0)
        if (row.label, row.prompt_id) in {(DRAFTED, "p3"), (DRAFTED, "p4"), ("autoregressive", "p5")}
        else row
        for row in usual_rows(20)
    ]
    group = group_of(rows)
    assert warned(group, "rounds_disturbed") == [
        {"disturbed": 3, "rounds": 20, "repeated": 0, "prompt": "koala/p3", "reason": reason}
    ]
    assert {method.prompts for method in group.pooled.methods} == {17}


@pytest.mark.parametrize(("tries", "repeated"), [(("",), 1), (("loud",), 0), (("loud", ""), 1)])
def test_a_disturbed_round_that_was_measured_again_is_counted(tries: tuple[str, ...], repeated: int) -> None:
    rows = usual_rows(20)
    of_one = [row for row in rows if row.prompt_id == "p3"]
    rows = [replace(row, invalid="loud") if row.prompt_id == "p3" else row for row in rows]
    rows += [replace(row, repeat=2 * at, invalid=why) for at, why in enumerate(tries, 1) for row in of_one]
    (values,) = warned(group_of(rows), "rounds_disturbed")
    assert (values["disturbed"], values["rounds"], values["repeated"]) == (1, 20, repeated)
    frame = frame_of(rows)
    assert (~frame["round_invalid"]).sum() == 3 * (19 + repeated)


@pytest.mark.parametrize(
    ("planned_fails", "again_fails", "cut", "good"),
    [
        ((), (), 0, True),
        ((), (), 1, False),
        ((), (EXITING,), 0, False),
        ((EXITING,), (EXITING,), 0, True),
        ((EXITING,), (), 0, True),
        ((EXITING,), (DRAFTED, EXITING), 0, False),
    ],
)
def test_a_try_replaces_a_round_only_with_as_many_answers(
    planned_fails: tuple[str, ...], again_fails: tuple[str, ...], cut: int, good: bool
) -> None:
    """A try that a kill cut after the baseline's row, or in which a method failed, once counted as measured again.
    What fails in every try does not prevent a good round of the other methods."""
    rows = usual_rows(20)
    of_one = [row for row in rows if row.prompt_id == "p3"]
    rows = [row for row in rows if row.prompt_id != "p3"]
    tries = ((of_one, planned_fails, {"invalid": "loud"}), (of_one[: len(of_one) - cut], again_fails, {"repeat": 2}))
    for answers, fails, changes in tries:
        rows += [replace(failed(row) if row.label in fails else row, **changes) for row in answers]
    (values,) = warned(group_of(rows), "rounds_disturbed")
    assert values["repeated"] == good


@pytest.mark.slow
def test_the_mean_kl_names_the_answers_that_it_leaves_out() -> None:
    sums: tuple[dict[str, float], ...] = (
        {"kl_tokens": 9.0, "kl_nats": 1.0},
        {"kl_infinite_tokens": 9.0},
        {"kl_unrepeated_tokens": 9.0},
        {},
    )
    rows = [
        row
        for at, kl in enumerate(sums)
        for row in (baseline_row(f"p{at}"), replace(exiting_row(f"p{at}"), fidelity=kl))
    ]
    expected = {"label": EXITING, "finite": 1, "answers": 3, "infinite": 1, "unrepeated": 1}
    assert warned(group_of(rows), "kl_incomplete") == [expected]
    assert warned(group_of(rows[:2]), "kl_incomplete") == []
    disturbed = [replace(row, repeat=2, invalid="loud") for row in rows]
    assert warned(group_of([*rows, *disturbed]), "kl_incomplete") == [expected], "the mean is not of these"


@pytest.mark.parametrize(("changes", "fields"), [({"versions": {"torch": "3"}}, ["versions"]), ({}, [])])
def test_runs_of_different_versions_are_compared_with_a_warning(changes: dict[str, Any], fields: list[str]) -> None:
    files = [file_of(usual_rows(), run, name) for run, name in ((RUN, "a.jsonl"), (replace(RUN, **changes), "b.jsonl"))]
    (group,) = compare(files)
    assert [values["field"] for values in warned(group, "versions_differ")] == fields


def _timed(cpu_s: Callable[[Row], float], step: float = 1.0) -> list[Row]:
    """Rows with their start and processor time: each starts ``step`` times its own time after the one before."""
    rows, now_s = [], 1e9
    for row in usual_rows():
        whole_s = (row.ttft_s or 0.0) + sum(row.step_s)
        rows.append(replace(row, started_s=now_s, cpu_s=cpu_s(row) * whole_s))
        now_s += step * whole_s
    return rows


@pytest.mark.parametrize(
    ("cpu_s", "step", "id"),
    [
        (lambda row: 1.0, 1.0, ""),
        (lambda row: 1.8, 1.0, "threads_left_running"),
        (lambda row: 0.3 if row.label == BASELINE else 0.9, 1.0, "baseline_waits"),
        (lambda row: 0.9 if row.label == BASELINE else 0.3, 1.0, ""),  # methods that wait, as for experts
        (lambda row: 1.0, 0.5, "times_overlap"),
        (lambda row: 1.0, 1.1, ""),
    ],
)
def test_times_that_are_not_plausible_are_named(cpu_s: Callable[[Row], float], step: float, id: str) -> None:
    assert set(ids(group_of(_timed(cpu_s, step)))) - {"run_unfinished"} == ({id} if id else set())


def _as_sums(row: Row) -> Row:
    """As an engine reports it that gives what it drafted in all, and no steps."""
    if row.label != DRAFTED:
        return row
    first_s = row.ttft_s or 0.0
    tokens, arrived_s = len(row.token_ids), (first_s, first_s + sum(row.step_s))
    drafted = {"drafted": sum(row.drafted), "accepted": sum(row.accepted)}
    totals = Totals(new_tokens=tokens, wall_s=arrived_s[1], **drafted)
    unknown: dict[str, Any] = dict.fromkeys(("step_s", "committed", "drafted", "accepted", "rows", "layers"), ())
    return replace(row, **unknown, totals=totals, arrived_s=arrived_s, arrived_tokens=(1, tokens - 1))


def test_drafts_without_steps_raise_no_warning_and_give_no_tokens_per_step() -> None:
    """Also where one answer drafted nothing, so that its steps are known."""
    first, undrafted, *others = usual_rows()
    tokens = len(undrafted.token_ids)
    ones, zeros = (1,) * (tokens - 1), (0,) * (tokens - 1)
    nothing = replace(undrafted, drafted=zeros, accepted=zeros, rows=ones, committed=ones, step_s=(0.5, *ones[1:]))
    rows = [first, nothing, *map(_as_sums, others)]
    group = group_of(rows + [replace(row, repeat=1) for row in rows])
    assert ids(group) == []
    figures = figures_of(group)
    assert figures.estimate(ACCEPTANCE_RATE).value == pytest.approx(1 / 3)
    assert figures.estimate(BLOCK_EFFICIENCY).value is figures.estimate(MEAN_ACCEPTED).value is None
