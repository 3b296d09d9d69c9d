"""The bar of a run: drawn between generations and not too often, true about what is done, and silent elsewhere."""

from __future__ import annotations

import io
import threading

import pytest
from rich.console import Console

from benchctl.cli import display as displays
from benchctl.cli.display import REFRESH_S, RunDisplay
from benchctl.judging.budget import Spent
from benchctl.judging.scoring import Progress as Judged
from benchctl.measuring.session import Notice, Progress


class Screen:
    """A terminal of 100 columns, and what has been drawn on it."""

    def __init__(self, terminal: bool = True) -> None:
        self.text = io.StringIO()
        self.console = Console(file=self.text, force_terminal=terminal, width=100, color_system=None)

    def drawn(self) -> str:
        """What was drawn since it was last asked."""
        text = self.text.getvalue()
        self.text.truncate(0)
        self.text.seek(0)
        return text


class Seconds:
    """A clock that is set by hand, or goes on by `tick_s` with each reading."""

    def __init__(self, tick_s: float = 0.0) -> None:
        self.now_s, self._tick_s = 0.0, tick_s

    def __call__(self) -> float:
        self.now_s += self._tick_s
        return self.now_s


def test_a_bar_shows_what_is_done_and_the_label_with_its_options() -> None:
    screen = Screen()
    with RunDisplay(screen.console, Seconds()) as display:
        display(Progress(3, 40, "two_model[draft_tokens=5]"))
        text = screen.drawn()
    assert all(fact in text for fact in ("two_model[draft_tokens=5]", "3/40"))


def test_events_that_follow_quickly_are_not_all_drawn() -> None:
    """Drawing takes time of the run: five times a second is enough."""
    screen = Screen()
    with RunDisplay(screen.console, Seconds(REFRESH_S / 10)) as display:
        drawn = []
        for done in range(1, 101):
            screen.drawn()
            display(Progress(done, 100, "two_model"))
            drawn.append(bool(screen.drawn()))
    assert 9 <= sum(drawn) <= 12


def test_nothing_is_drawn_between_two_events() -> None:
    """A bar that refreshes itself in a thread takes its time out of the steps being measured."""
    before = set(threading.enumerate())
    with RunDisplay(Screen().console, Seconds()) as display:
        display(Progress(1, 2, "two_model"))
        assert set(threading.enumerate()) <= before  # one that an earlier test left may end now


def test_the_time_left_is_estimated_from_what_this_process_measured() -> None:
    """90 of 100 generations were in the file; 4 more take 10 s each, so 6 more take a minute."""
    screen, clock = Screen(), Seconds()
    with RunDisplay(screen.console, clock) as display:
        display(Progress(90, 100, "two_model"))
        assert "left" not in screen.drawn()
        for done in range(91, 95):
            clock.now_s += 10
            display(Progress(done, 100, "two_model"))
        assert "about 1 min left" in screen.drawn()


@pytest.mark.parametrize("terminal", [True, False])
def test_a_notice_is_a_line_of_its_own_with_its_brackets(terminal: bool) -> None:
    screen = Screen(terminal)
    with RunDisplay(screen.console, Seconds()) as display:
        display(Notice("early_exit[exits=4+8] cannot run here: [no]."))
    assert "early_exit[exits=4+8] cannot run here: [no].\n" in screen.drawn()


@pytest.mark.parametrize(("step_s", "at"), [(5.0, [6, 12, 18]), (100.0, [1, 2, 3, 4])])
def test_away_from_a_terminal_a_line_comes_at_most_every_30_s(step_s: float, at: list[int]) -> None:
    screen, clock, shown = Screen(terminal=False), Seconds(), []
    with RunDisplay(screen.console, clock) as display:
        for done in range(22):
            display(Progress(done, 100, "two_model"))
            if line := screen.drawn():
                shown.append(done)
                assert f"({done} of 100 generations)" in line
            clock.now_s += step_s
    assert shown[: len(at)] == at


def test_away_from_a_terminal_judging_has_lines_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(displays, "Clock", lambda: Seconds(tick_s=20.0))
    with displays.JudgeDisplay() as shown:
        for done in range(5):
            shown(Judged(done, 10, Spent()))
    assert [line.split()[0] for line in capsys.readouterr().err.splitlines()] == ["1", "3"]
