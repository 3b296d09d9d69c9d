"""A run as it goes on: what watch shows is what compare will say, it costs little, and it ends with the run."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from fixtures_records import BASELINE, DRAFTED, EXITING, KOALA, RUN, failed, usual_rows, write
from pages import TWO_SUITES, two_suites
from rich.console import Console

from benchctl.analysis.comparison import compare
from benchctl.analysis.following import Follower, SoFar
from benchctl.analysis.metrics.drafting import ACCEPTANCE_RATE
from benchctl.analysis.metrics.faithfulness import TOKEN_AGREEMENT
from benchctl.analysis.metrics.speed import SPEEDUP
from benchctl.analysis.stats.estimates import Estimate
from benchctl.cli import main
from benchctl.cli.watch import BUSY, follow, view
from benchctl.errors import UserError
from benchctl.records.reader import StoredRows
from benchctl.records.schema import Row, to_line
from benchctl.records.writer import Writer, being_written, read

ONCE = replace(RUN, repeats=1)


def _append(path: Path, rows: Sequence[Row]) -> None:
    with path.open("ab") as file:
        file.write(b"".join(map(to_line, rows)))


def _shown(standing: SoFar, left: float | None = None, ended: bool = False) -> str:
    text = io.StringIO()
    Console(file=text, width=100, color_system=None).print(view(standing, left, ended))
    return text.getvalue()


def _ends(found: Estimate) -> tuple[float | None, ...]:
    interval = found.interval
    return (found.value, interval.low, interval.high) if interval else (found.value,)


def test_what_is_seen_at_the_end_is_what_compare_says_however_it_was_appended(tmp_path: Path) -> None:
    rows = two_suites()
    again = [replace(row, repeat=1) for row in rows[30:33]]
    rows[31] = replace(failed(rows[31]), invalid="the machine was busy")
    rows += again
    path = write(tmp_path / "run.jsonl", rows[:7], replace(TWO_SUITES, repeats=1))
    follower = Follower(path)
    for start, end in ((7, 8), (8, 32), (32, 100), (100, 123)):
        follower.look()
        _append(path, rows[start:end])
    standing = follower.look(ended=True)
    (group,) = compare([read(path)])
    for method in standing.methods:
        figures = next(each for each in group.pooled.methods if each.label == method.label)
        assert _ends(method.speedup) == pytest.approx(_ends(figures.estimate(SPEEDUP)))
        assert _ends(method.acceptance_rate) == pytest.approx(_ends(figures.estimate(ACCEPTANCE_RATE)))
        assert _ends(method.token_agreement) == pytest.approx(_ends(figures.estimate(TOKEN_AGREEMENT)))
        assert (method.generations, method.fidelity) == (figures.generations, figures.fidelity)
        assert (method.generations, method.fidelity.failed) == (40, 0), "what was measured again made it good"
    assert (standing.generations, standing.disturbed_rounds) == (120, 1)
    assert (standing.done, standing.prompts) == (40, 40)


def test_the_round_in_progress_has_no_part_in_figures(tmp_path: Path) -> None:
    """The baseline's answer to the next prompt is there, the others' are not: they would rest on different rounds."""
    path = write(tmp_path / "run.jsonl", usual_rows(2)[:4], ONCE)
    standing = Follower(path).look()
    assert {method.label: method.generations for method in standing.methods} == {BASELINE: 1, DRAFTED: 1, EXITING: 1}
    assert standing.generations == 4 and standing.done == pytest.approx(4 / 3)


def test_rows_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look at ten thousand rows costs seconds of the processor that the run measures on."""
    rows = usual_rows(6)
    path = write(tmp_path / "run.jsonl", rows[:9], ONCE)
    made: list[int] = []
    make = StoredRows._row

    def counted(stored: StoredRows, number: int) -> Row:
        made.append(number)
        return make(stored, number)

    monkeypatch.setattr(StoredRows, "_row", counted)
    follower = Follower(path)
    follower.look()
    follower.look()
    _append(path, rows[9:12])
    follower.look()
    assert made == list(range(12))


def test_a_torn_line_waits_for_its_rest(tmp_path: Path) -> None:
    rows = usual_rows(2)
    path = write(tmp_path / "run.jsonl", rows[:3], ONCE)
    follower = Follower(path)
    line = to_line(rows[3])
    with path.open("ab") as file:
        file.write(line[:40])
    assert follower.look().generations == 3
    with path.open("ab") as file:
        file.write(line[40:])
    assert follower.look().generations == 4


def test_a_run_begun_anew_under_the_same_name_starts_from_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", usual_rows(4), ONCE)
    follower = Follower(path)
    assert follower.look().generations == 12
    write(path, usual_rows(1), replace(ONCE, name="second"))
    standing = follower.look()
    assert (standing.generations, standing.run.name) == (3, "second")


def test_turns_repeats_and_modes_all_count_towards_a_prompt(tmp_path: Path) -> None:
    run = replace(RUN, repeats=2, modes=("free", "replay"))
    rows = [
        replace(row, turn=turn, repeat=repeat, mode=mode)
        for turn in (0, 1)
        for repeat in (0, 1)
        for mode in ("free", "replay")
        for row in usual_rows(1)
    ]
    rows += [replace(row, repeat=-1) for row in usual_rows(1)]  # warm-up is none of it
    path = write(tmp_path / "run.jsonl", rows, run)
    assert Follower(path).look().done == 1
    _append(path, [replace(row, prompt_id="p1") for row in rows[:12]])
    assert Follower(path).look().done == 1.5


def test_prompts_of_one_suite_may_have_other_numbers_of_turns(tmp_path: Path) -> None:
    """All counted as having the most turns of any, so that a whole run over questions and conversations seemed to have
    ended before it was done."""
    first, *rest = (usual_rows(3)[start : start + 3] for start in (0, 3, 6))
    rows = [*first, *(replace(row, turn=1) for row in first), *(row for prompt in rest for row in prompt)]
    run = replace(ONCE, suites=(replace(KOALA, prompts=3),))
    path = write(tmp_path / "run.jsonl", rows, run)
    standing = Follower(path).look(ended=True)
    assert standing.done == 3 and "--resume" not in _shown(standing, ended=True)
    assert Follower(path).look().done == 2.5, "the last one may have another turn"


@dataclass
class FakeTime:
    """Its clock moves only by waiting, and by `look_s` with every look of the one who is timed."""

    look_s: float = 0.0
    now: float = 100.0
    waits: list[float] = field(default_factory=list)

    def now_s(self) -> float:
        return self.now

    def wait_until(self, moment_s: float) -> None:
        self.waits.append(moment_s - self.now)
        self.now = max(self.now, moment_s)


def _followed(done: Sequence[float], look_s: float, prompts: int = 20) -> tuple[FakeTime, list[float | None]]:
    """The times left that are shown of a run that is done with so many prompts at each look, then ends."""
    time, looks, left = FakeTime(look_s), list(done), list[float | None]()

    def look(*, ended: bool) -> SoFar:
        time.now += time.look_s
        return SoFar(ONCE, 0, looks.pop(0), prompts, 60.0, 0, "", 0, ())

    follow(look, lambda: len(looks) > 1, lambda standing, seconds, ended: left.append(seconds), time, 5.0)
    return time, left


def test_the_time_left_follows_the_pace_seen_while_watching() -> None:
    """At first the times of generations tell: 60 s of them for 4 prompts, 16 to go. Then 2 prompts took 5 s."""
    _, left = _followed([4, 6, 8, 20], look_s=0.0)
    assert left == [240, 14 * 5 / 2, 12 * 10 / 4, None]


def test_nothing_done_is_no_pace() -> None:
    _, left = _followed([0, 0.5, 20], look_s=0.0)
    assert left[0] is None and left[1] == pytest.approx(19.5 * 60 / 0.5)


def test_it_looks_every_few_seconds_and_more_rarely_where_looking_takes_long() -> None:
    """Who watches must not slow the run: at most 2% of a core."""
    quick, _ = _followed([1, 2, 3], look_s=0.01)
    assert quick.waits == pytest.approx([5 - 0.01] * 2)
    slow, _ = _followed([1, 2, 3], look_s=3.0)
    assert slow.waits == pytest.approx([3 / BUSY - 3] * 2)


def test_the_last_look_is_after_the_end() -> None:
    """A run that wrote its last row between a look and its end must be seen whole."""
    order: list[str] = []

    def look(*, ended: bool) -> SoFar:
        order.append(f"look {ended}")
        return SoFar(ONCE, 0, 20.0, 20, 60.0, 0, "", 0, ())

    def goes_on() -> bool:
        order.append("asked")
        return len(order) < 3

    follow(look, goes_on, lambda *shown: None, FakeTime(), 5.0)
    assert order == ["asked", "look False", "asked", "look True"]


def test_a_file_is_being_written_as_long_as_its_run_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with Writer(path, ONCE) as writer:
        writer.append(*usual_rows(1))
        assert being_written(path)
    assert not being_written(path)
    with Writer(path, ONCE, resume=True):
        assert being_written(path)
    with pytest.raises(UserError, match="No such file"):
        being_written(tmp_path / "none.jsonl")


def _once(path: Path) -> str:
    result = CliRunner().invoke(main, ["watch", str(path), "--once"])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_once_shows_how_a_running_run_stands_and_how_an_ended_one_ended(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with Writer(path, ONCE) as writer:
        writer.append(*usual_rows(10))
        running = _once(path)
    assert "10 of 20 prompts, 30 generations; about" in " ".join(running.split())
    assert "left." in running and "--resume" not in running
    ended = " ".join(_once(path).split())
    assert "the run has ended" in ended and "it ended before it was done: continue it with --resume." in ended
    _append(path, usual_rows(20)[30:])
    whole = " ".join(_once(path).split())
    assert "20 of 20 prompts" in whole and "--resume" not in whole


def test_watch_ends_by_itself_with_a_run_that_has_ended(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", usual_rows(), ONCE)
    result = CliRunner().invoke(main, ["watch", str(path)])
    assert result.exit_code == 0
    (group,) = compare([read(path)])
    speedup = group.pooled.methods[1].estimate(SPEEDUP)
    assert speedup.value is not None
    words = " ".join(result.stdout.split())
    assert f"{speedup.value:.2f}x [" in words and "two_model" in words


def test_ctrl_c_ends_the_watching_and_says_nothing_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It said "Interrupted. [..] --resume goes on from there", though the run had never stopped."""
    path = write(tmp_path / "run.jsonl", usual_rows(10), ONCE)

    def interrupted(follower: Follower, *, ended: bool) -> SoFar:
        raise KeyboardInterrupt

    monkeypatch.setattr(Follower, "look", interrupted)
    result = CliRunner().invoke(main, ["watch", str(path)])
    assert result.exit_code == 0
    assert "nterrupted" not in result.output + result.stderr


def test_what_went_wrong_is_told(tmp_path: Path) -> None:
    rows = usual_rows()
    rows[1] = replace(rows[1], verdict="lossy", first_divergence=1, margin=0.5, noise=0.0)
    rows[5] = failed(rows[5], "out of memory [cuda]")
    rows[8] = replace(rows[8], invalid="the machine was busy")
    text = " ".join(_shown(Follower(write(tmp_path / "run.jsonl", rows, ONCE)).look(ended=True)).split())
    assert f"{DRAFTED} claims to be exact, but 1 of its answers left the baseline's" in text
    assert "1 generations failed, the last one: out of memory [cuda]" in text
    assert "1 rounds were measured out of bounds" in text


def test_a_label_s_brackets_are_no_markup(tmp_path: Path) -> None:
    standing = Follower(write(tmp_path / "run.jsonl", usual_rows(3), ONCE)).look()
    label = replace(standing.methods[1], label="m[a=[b],c=d]")
    assert "a=[b]" in _shown(replace(standing, methods=(label,)))


@pytest.mark.parametrize(
    ("seconds", "words"), [(42.0, "42 s"), (61.0, "1 min"), (3599.0, "1 h 00 min"), (11100.0, "3 h 05 min")]
)
def test_times_left_are_in_round_units(seconds: float, words: str, tmp_path: Path) -> None:
    standing = Follower(write(tmp_path / "run.jsonl", usual_rows(1), ONCE)).look()
    assert f"about {words} left." in " ".join(_shown(standing, seconds).split())


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["watch", str(tmp_path / "none.jsonl"), "--once"])
    assert result.exit_code == 2 and "none.jsonl: cannot be read" in result.stderr
