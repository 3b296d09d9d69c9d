"""The waterfall: its bars are what each cause takes off or adds, worked out by hand, and add up to the speed-up."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from compared import file_of
from fixtures_predict import DRAFTING, PLAIN, TOKENS, Step, both, usual_file
from fixtures_records import BASELINE, DRAFTED, EXITING, LAYERS, RUN
from pictures import LOOKS, assert_picture_readable, texts, write_picture
from refusals import refused

from benchctl.analysis.comparison import Group, compare
from benchctl.analysis.plots.catalogue import Request
from benchctl.analysis.plots.style import SIZES
from benchctl.analysis.plots.waterfall import Waterfall, draw, waterfalls
from benchctl.records.schema import Row
from benchctl.records.writer import RunFile


def groups_of(*files: RunFile) -> tuple[Group, ...]:
    return compare([with_modes(file) for file in files])


def with_modes(file: RunFile) -> RunFile:
    modes = tuple(dict.fromkeys(row.mode for row in file.rows))
    return replace(file, run=replace(file.run, modes=modes))


def waterfall_of(file: RunFile, label: str) -> Waterfall:
    (group,) = groups_of(file)
    ((found,), _) = waterfalls(group, [label])
    return found


def changes(waterfall: Waterfall) -> dict[str, float]:
    return {bar.name: bar.change_s for bar in waterfall.bars[1:-1]}


def test_a_drafting_method_saves_steps_and_pays_for_drafts_wider_passes_and_the_rest() -> None:
    """Of the baseline's 10 s a token, as DRAFTED takes 17 s for 4: a quarter of the steps saves 7.5 s; drafts
    of 4 s, passes that take 1 s more, and 1 s more of commit and host each cost a quarter of that a token."""
    found = waterfall_of(usual_file(), DRAFTED)
    assert found.bars[0].end_s == pytest.approx(10)
    assert changes(found) == pytest.approx(
        {
            "less target work": -7.5,
            "drafting": 1.0,
            "longer passes": 0.25,
            "commit": 0.25,
            "host": 0.25,
            "not in profile": 0.0,
        },
        abs=1e-9,
    )
    assert found.bars[-1].end_s == pytest.approx(17 / 4)
    assert found.speedup.value == pytest.approx(40 / 17)


def test_what_free_steps_take_longer_than_profiled_ones_is_a_fall_of_its_own() -> None:
    """A tenth more than 17 s, over 4 tokens."""
    found = waterfall_of(usual_file(slower=1.1), DRAFTED)
    assert changes(found)["not in profile"] == pytest.approx(1.7 / 4)
    assert found.bars[-1].end_s == pytest.approx(1.1 * 17 / 4)


def test_a_method_that_leaves_early_saves_layers() -> None:
    """Half the layers of 8 s and no head in these runs' parameters worth a share: 9 Mio. of which 1 Mio. is the head.

    Its passes take 5 s where half of the layers and the head take 4.47 s.
    """
    share = RUN.target.vocabulary * RUN.target.hidden_size / RUN.target.parameters
    passes_s = 8 * ((1 - share) / 2 + share)
    found = waterfall_of(usual_file(), EXITING)
    assert changes(found) == pytest.approx(
        {
            "less target work": passes_s - 8,
            "drafting": 0.0,
            "longer passes": 5 - passes_s,
            "commit": 0.0,
            "host": 1.0,
            "not in profile": 0.0,
        },
        abs=1e-9,
    )


def noisy_file(chance: random.Random) -> RunFile:
    def noisy(step: Step) -> Step:
        draft, verify, commit, host = (seconds * chance.uniform(0.7, 1.4) for seconds in step.phases)
        return replace(step, phases=(draft, verify, commit, host))

    def answers(label: str, steps: Sequence[Step]) -> list[Row]:
        return both(label, [noisy(step) for step in steps], slower=chance.uniform(0.9, 1.2))

    return file_of(
        [
            *answers(BASELINE, [PLAIN] * TOKENS),
            *answers(DRAFTED, [replace(DRAFTING, accepted=chance.randint(0, 4)) for _ in range(7)]),
            *answers(EXITING, [Step(0, 0, (0.0, 5.0, 1.0, 2.0), chance.choice((3, 6, LAYERS))) for _ in range(TOKENS)]),
        ]
    )


def seconds_per_token(rows: Sequence[Row], label: str) -> float:
    mine = [row for row in rows if row.label == label and row.mode == "free"]
    return sum(sum(row.step_s) for row in mine) / sum(sum(row.committed) for row in mine)


@pytest.mark.parametrize("label", [DRAFTED, EXITING])
@pytest.mark.parametrize("seed", range(4))
def test_the_bars_add_up_to_the_measured_speed_up(label: str, seed: int) -> None:
    """Whatever steps, phases and lengths are: seconds per token, taken from the rows here, are where bars start and
    end, and each bar starts where the one before ended."""
    file = noisy_file(random.Random(seed))
    found = waterfall_of(file, label)
    ours, theirs = seconds_per_token(file.rows, label), seconds_per_token(file.rows, BASELINE)
    baseline, *causes, method = found.bars
    assert baseline.end_s == causes[0].start_s == pytest.approx(theirs)
    for one, other in pairwise(causes):
        assert other.start_s == one.end_s
    assert causes[-1].end_s == pytest.approx(ours) == method.end_s
    assert baseline.end_s / method.end_s == pytest.approx(found.speedup.value) == pytest.approx(theirs / ours)


def test_the_interval_of_the_method_holds_what_prompts_differ_by() -> None:
    """Prompts of 1 to 6 accepted tokens a step vary; without variance the interval is a point."""
    steady = waterfall_of(usual_file(), DRAFTED).bars[-1]
    assert steady.interval is not None
    assert (steady.interval.low, steady.interval.high) == pytest.approx((steady.end_s, steady.end_s), abs=1e-9)
    rows = []
    for prompt in range(6):
        step = replace(DRAFTING, accepted=prompt % 4)
        for row in (*both(BASELINE, [PLAIN] * TOKENS), *both(DRAFTED, [step] * (prompt + 1))):
            if row.prompt_id == f"p{prompt}":
                rows.append(row)
    varied = waterfall_of(file_of(rows), DRAFTED).bars[-1]
    assert varied.interval is not None
    assert varied.interval.low < varied.end_s < varied.interval.high


def test_a_disturbed_round_is_left_out() -> None:
    file = usual_file()
    slow = [
        replace(row, step_s=tuple(9 * seconds for seconds in row.step_s), invalid="throttled")
        if row.prompt_id == "p3" and row.mode == "free" and row.label == DRAFTED
        else row
        for row in file.rows
    ]
    assert changes(waterfall_of(file_of(slow), DRAFTED)) == pytest.approx(changes(waterfall_of(file, DRAFTED)))


def test_methods_that_were_not_profiled_are_named_and_files_without_any_are_refused(tmp_path: Path) -> None:
    rows = [row for row in usual_file().rows if row.mode == "free" or row.label != EXITING]
    (group,) = groups_of(file_of(rows))
    profiled, (note,) = waterfalls(group, [DRAFTED, EXITING])
    assert [each.label for each in profiled] == [DRAFTED]
    assert note.startswith(EXITING) and "--profile" in note
    free = groups_of(file_of(row for row in rows if row.mode == "free"))
    with refused("not_profiled", "--profile"):
        write_picture("waterfall", free, tmp_path / "plot.png", SIZES["screen"])


def test_a_file_of_the_baseline_alone_is_left_out(tmp_path: Path) -> None:
    """After `doctor --aa` nothing in results/ could be drawn."""
    rows = [row for row in usual_file().rows if row.label == BASELINE]
    alone = file_of(rows, replace(RUN, threads=2, methods=RUN.methods[:1]), "aa.jsonl")
    drawing = draw(groups_of(usual_file(), alone), Request(SIZES["screen"]))
    assert any("aa.jsonl" in note for note in drawing.notes)
    with refused("only_baseline"):
        draw(groups_of(alone), Request(SIZES["screen"]))


def test_the_fastest_method_comes_first_and_small_changes_have_no_row(tmp_path: Path) -> None:
    """A cause below 1% of the baseline's time, like 0.01 ms of the host, had a bar in each of 11 panels."""
    (group,) = groups_of(usual_file())
    ((drafted, exiting), _) = waterfalls(group, [EXITING, DRAFTED])
    assert (drafted.label, exiting.label) == (DRAFTED, EXITING) and drafted.speedup.value > exiting.speedup.value
    assert [bar.name for bar in exiting.visible] == [BASELINE, "less target work", "longer passes", "host", "method"]
    out = tmp_path / "plot.svg"
    assert write_picture("waterfall", [group], out, SIZES["screen"]) == ()
    found = texts(out)
    for text in ("two_model", "2.35x [2.35, 2.35]", "less target work", "−7500", "+250", "4250"):
        assert text in found, text
    assert "not in profile" not in found  # it is small for both
    assert found.index("two_model") < found.index(EXITING)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "ending"), LOOKS)
def test_every_text_can_be_read(size: str, ending: str, tmp_path: Path) -> None:
    groups = groups_of(noisy_file(random.Random(0)))
    assert_picture_readable("waterfall", groups, SIZES[size], tmp_path / f"plot{ending}")


def test_more_methods_than_there_is_room_for_are_refused(tmp_path: Path) -> None:
    labels = [f"two_model[draft_tokens={number}]" for number in range(1, 6)]
    rows = [row for label in labels for row in both(label, [DRAFTING] * 6)]
    run = replace(RUN, methods=(RUN.methods[0], *(replace(RUN.methods[1], label=label) for label in labels)))
    groups = groups_of(file_of([*both(BASELINE, [PLAIN] * TOKENS), *rows], run))
    with refused("too_many_methods", "5 methods", "4", "--method"):
        write_picture("waterfall", groups, tmp_path / "plot.png", SIZES["column"])
    write_picture("waterfall", groups, tmp_path / "plot.png", SIZES["column"], methods=labels[:1])
