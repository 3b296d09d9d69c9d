"""Runs are compared where everything but the method is the same, suite by suite and over all suites."""

from dataclasses import replace
from typing import Any

import pytest
from compared import file_of, group_of
from fixtures_records import (
    BASELINE,
    DRAFTED,
    EXITING,
    KOALA,
    MT_BENCH,
    RUN,
    TARGET,
    baseline_row,
    drafted_row,
    exiting_row,
    failed,
    method,
    usual_rows,
)
from refusals import refused

from benchctl.analysis.comparison import POOLED, Difference, compare, differences, over, with_categories
from benchctl.analysis.metrics.speed import SPEEDUP
from benchctl.analysis.stats.intervals import Interval
from benchctl.records.schema import EngineInfo
from benchctl.records.writer import RunFile


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"target": replace(TARGET, weights_sha256="zz")}, "target"),
        ({"suites": (replace(KOALA, sha256="zz"),)}, "prompts"),
        ({"dtype": "bfloat16"}, "dtype"),
        ({"weights": "float16"}, "weights"),
        ({"device": "cuda"}, "device"),
        ({"executor": "compiled"}, "executor"),
        ({"threads": 2}, "threads"),
        ({"temperature": 0.7}, "temperature"),
        ({"max_new_tokens": 128}, "max_new_tokens"),
        ({"modes": ("free", "replay")}, "modes"),
        ({"context_fill": 512}, "context_fill"),
        ({"batch_size": 4}, "batch_size"),
        ({"imported": "medusa", "order": "one after another"}, "imported"),
        ({"machine": {"cpu": "B", "gpu": ""}}, "cpu"),
    ],
)
def test_runs_that_differ_in_a_setting_are_not_comparable_and_the_field_is_named(
    changes: dict[str, Any], field: str
) -> None:
    assert [found.field for found in differences(RUN, replace(RUN, **changes))] == [field]


def test_weights_of_their_own_are_shown_next_to_those_of_the_dtype() -> None:
    assert differences(RUN, replace(RUN, weights="float16")) == (Difference("weights", "float32", "float16"),)


def test_runs_that_differ_in_what_does_not_matter_are_comparable() -> None:
    other = replace(RUN, name="x", created="y", command=(), seed=5, repeats=9, methods=RUN.methods[:2], commit="z")
    assert differences(RUN, other) == ()


def test_draft_models_count_only_where_both_runs_have_one() -> None:
    one, other = replace(RUN, draft=TARGET), replace(RUN, draft=replace(TARGET, weights_sha256="zz"))
    assert differences(RUN, one) == ()
    assert differences(one, other) == (Difference("draft", "reference aa", "reference zz"),)


def test_the_code_of_a_plug_in_counts_where_both_runs_know_it() -> None:
    """Two versions of it were sessions of one label."""
    codes = (replace(method("mine"), source_sha256=sha256) for sha256 in ("", "aa", "zz"))
    unknown, one, other = (replace(RUN, methods=(*RUN.methods, mine)) for mine in codes)
    assert differences(unknown, one) == differences(one, one) == ()
    assert differences(one, other) == (Difference("code", "mine aa", "mine zz"),)


def test_stop_tokens_count_where_both_runs_know_them() -> None:
    unknown, one, other = (replace(RUN, target=replace(TARGET, stop_ids=ids)) for ids in ((), (2,), (2, 5)))
    assert differences(unknown, one) == ()
    assert differences(one, other) == (Difference("stop tokens", "2", "2 5"),)


def test_the_engine_counts_where_both_runs_know_its_version_and_precision() -> None:
    engine = EngineInfo(
        name="llama.cpp", version="1", run="started", dtype="float32", steps_from="counts", prefix_cache="off"
    )
    changes: tuple[dict[str, Any], ...] = ({}, {"version": "2"}, {"dtype": "q4_0"}, {"version": "", "dtype": ""})
    one, newer, coarser, unknown = (
        replace(RUN, methods=(*RUN.methods, replace(method("llama_cpp"), engine=replace(engine, **change))))
        for change in changes
    )
    assert differences(one, newer) == (Difference("engine", "llama_cpp 1", "llama_cpp 2"),)
    assert differences(one, coarser) == (Difference("engine precision", "llama_cpp float32", "llama_cpp q4_0"),)
    assert differences(one, unknown) == ()


def test_imports_of_other_loads_are_not_comparable() -> None:
    alone, together = (
        replace(RUN, imported="aiperf", order=order) for order in ("one after another", "up to 8 at once")
    )
    assert differences(alone, together) == (Difference("load", "one after another", "up to 8 at once"),)


def test_a_method_that_one_session_could_not_run_is_measured_in_the_others() -> None:
    lacking = replace(
        RUN, methods=(*RUN.methods[:1], *(replace(each, unsupported="no room") for each in RUN.methods[1:]))
    )
    rows = usual_rows()
    for order in (0, 1):
        runs = [file_of(rows, RUN), file_of([row for row in rows if row.label == BASELINE], lacking, "other.jsonl")]
        (group,) = compare(runs[::-1] if order else runs)
        assert not any(each.unsupported for each in group.methods)


def test_trained_modules_count_where_both_runs_have_the_label() -> None:
    heads = (replace(method("medusa"), modules_sha256=sha256) for sha256 in ("aa", "zz"))
    one, other = (replace(RUN, methods=(*RUN.methods, medusa)) for medusa in heads)
    assert differences(RUN, one) == ()
    assert differences(one, one) == ()
    assert differences(one, other) == (Difference("modules", "medusa aa", "medusa zz"),)


def test_a_group_names_what_sets_it_apart_from_any_file_of_the_first() -> None:
    """Only the first file was looked at: a group of other modules had no reason, and an error without a setting."""
    heads = (replace(RUN, methods=(*RUN.methods, replace(method("medusa"), modules_sha256=name))) for name in "az")
    files = [file_of(usual_rows(), run, f"{number}.jsonl") for number, run in enumerate((RUN, *heads))]
    assert [[each.field for each in group.differs] for group in compare(files)] == [[], ["modules"]]


def test_options_count_where_both_runs_have_the_label() -> None:
    """A default that changes gives an old label another meaning; an option that an old file lacks is no difference."""
    drafters = (replace(method("m2r2"), options=options) for options in ({"width": 1, "exit": 0}, {"width": 2}))
    one, other = (replace(RUN, methods=(*RUN.methods, drafter)) for drafter in drafters)
    assert differences(RUN, one) == differences(one, one) == ()
    assert differences(one, other) == (Difference("options", "m2r2 width=1", "m2r2 width=2"),)


def test_files_of_one_group_are_sessions_of_the_same_prompts() -> None:
    (group,) = compare([file_of(usual_rows(), name=name) for name in ("1.jsonl", "2.jsonl")])
    assert [(found.prompts, found.generations) for found in group.pooled.methods] == [(20, 40)] * 3


def test_files_whose_baselines_gave_other_answers_are_refused() -> None:
    """Of equal weights, prompts, settings and versions. A method as baseline may answer otherwise from run to run."""

    def changed(label: str, **of_run: Any) -> RunFile:
        rows = usual_rows()
        changed = [replace(row, token_ids=(9, *row.token_ids[1:])) if row.label == label else row for row in rows]
        return file_of(changed, replace(RUN, **of_run), "2.jsonl")

    one = file_of(usual_rows(), name="1.jsonl")
    with refused("baselines_differ", "1.jsonl", "2.jsonl", "20 of 20"):
        compare([one, changed(BASELINE)])
    compare([one, changed(BASELINE, versions={"torch": "9"})])
    compare([one, changed(DRAFTED)])
    compare([over(file, DRAFTED) for file in (one, changed(DRAFTED))])


def test_files_that_are_not_comparable_stay_apart() -> None:
    one, three = (file_of(usual_rows(), name=name) for name in ("1.jsonl", "3.jsonl"))
    two = file_of(usual_rows(), replace(RUN, threads=2))
    groups = compare([one, two, three])
    assert [group.files for group in groups] == [(one, three), (two,)]
    assert [group.differs for group in groups] == [(), (Difference("threads", "1", "2"),)]


def test_suites_come_one_by_one_and_then_pooled() -> None:
    rows = [baseline_row(), drafted_row()]
    both = rows + [replace(row, suite="mt-bench", step_s=(3.0,) * len(row.step_s)) for row in rows]
    group = group_of(both, replace(RUN, suites=(KOALA, MT_BENCH)))
    speedups = {suite.suite: suite.methods[1].estimate(SPEEDUP).value for suite in group.suites}
    assert speedups == {"koala": 10 / 6, "mt-bench": 26 / 14, POOLED: 36 / 20}


def test_one_lossy_answer_refuses_a_method_on_every_suite_and_category() -> None:
    """It was refused only where that answer is, and lossless everywhere else."""
    lossy = replace(drafted_row("p0"), verdict="lossy", first_divergence=3)
    koala = [baseline_row("p0"), lossy, baseline_row("p1"), drafted_row("p1")]
    rows = koala + [replace(row, suite="mt-bench") for row in koala if row.prompt_id == "p1"]
    suites = (replace(KOALA, categories={"p0": "maths", "p1": "rag"}), MT_BENCH)
    (group,) = with_categories([group_of(rows, replace(RUN, suites=suites))])
    drafted = {part.name: part.methods[1] for part in (*group.categories, *group.suites)}
    expected = dict.fromkeys(("koala/maths", "koala/rag", "koala", "mt-bench", POOLED), ("claim_broken", False))
    assert {name: (figures.refused, figures.lossless) for name, figures in drafted.items()} == expected


def test_a_prompt_of_the_same_name_in_two_suites_is_two_prompts() -> None:
    rows = [baseline_row(), drafted_row()]
    both = rows + [replace(row, suite="mt-bench") for row in rows]
    assert group_of(both, replace(RUN, suites=(KOALA, MT_BENCH))).pooled.methods[1].prompts == 2


def test_the_baseline_comes_first_and_is_never_called_lossless() -> None:
    group = group_of(list(reversed(usual_rows())), replace(RUN, methods=tuple(reversed(RUN.methods))))
    found = [(figures.label, figures.is_baseline, figures.lossless) for figures in group.pooled.methods]
    assert found == [(BASELINE, True, False), (EXITING, False, False), (DRAFTED, False, True)]


def test_one_prompt_has_no_interval_and_the_baseline_always_has_speedup_one() -> None:
    baseline, drafted = group_of([baseline_row(), drafted_row()]).pooled.methods
    assert (drafted.estimate(SPEEDUP).value, drafted.estimate(SPEEDUP).interval) == (10 / 6, None)
    baseline = group_of(usual_rows()).pooled.methods[0]
    assert (baseline.estimate(SPEEDUP).value, baseline.estimate(SPEEDUP).interval) == (1.0, Interval(1.0, 1.0))


def test_a_method_that_always_failed_has_no_values() -> None:
    figures = group_of([baseline_row(), failed(drafted_row())]).pooled.methods[1]
    assert (figures.prompts, figures.fidelity.failed, figures.estimate(SPEEDUP).value) == (0, 1, None)


def test_files_without_generations_are_refused() -> None:
    warm_up = file_of([replace(baseline_row(), repeat=-1)])
    with refused("no_generations", str(warm_up.path), "--resume"):
        compare([warm_up])


@pytest.mark.parametrize(
    ("seconds", "layers", "refused"), [(0.6, 12, ""), (0.4, 12, "impossibly_fast"), (0.4, 6, ""), (0.1, 2, "")]
)
def test_passes_in_less_than_half_the_time_of_the_baseline_s_are_refused(
    seconds: float, layers: int, refused: str
) -> None:
    """A step of the baseline takes a second for twelve layers; half of the layers take half of the time."""
    depths = (12, *[layers] * 8)
    rows = [
        row
        for exiting in (exiting_row(f"p{number}", tokens=9) for number in range(6))
        for row in (
            baseline_row(exiting.prompt_id, tokens=9, step_s=1.0),
            replace(exiting, step_s=(seconds,) * len(exiting.step_s), layers=depths),
        )
    ]
    method = next(method for method in group_of(rows).pooled.methods if method.label == EXITING)
    assert method.refused == refused
