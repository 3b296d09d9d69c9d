"""The bar of a run: drawn between generations and not too often, true about what is done, and silent elsewhere."""

from __future__ import annotations

import io
import threading

from fakes_measuring import FakeClock
from rich.console import Console

from benchctl.cli.run.display import REFRESH_S, RunDisplay
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


class SlowClock(FakeClock):
    """It takes ten readings from one drawing to the next."""

    def __call__(self) -> float:
        self.now_s += REFRESH_S / 10
        return self.now_s


def test_a_bar_shows_what_is_done_and_the_label_with_its_options() -> None:
    screen = Screen()
    with RunDisplay(screen.console, FakeClock()) as display:
        display(Progress(3, 40, "two_model[draft_tokens=5]"))
        text = screen.drawn()
    assert "two_model[draft_tokens=5]" in text and "3/40" in text


def test_events_that_follow_quickly_are_not_all_drawn() -> None:
    """Drawing takes time of the run: five times a second is enough."""
    screen = Screen()
    with RunDisplay(screen.console, SlowClock()) as display:
        drawn = []
        for done in range(1, 101):
            screen.drawn()
            display(Progress(done, 100, "two_model"))
            drawn.append(bool(screen.drawn()))
    assert 9 <= sum(drawn) <= 12


def test_nothing_is_drawn_between_two_events() -> None:
    """A bar that refreshes itself in a thread takes its time out of the steps being measured."""
    before = threading.active_count()
    with RunDisplay(Screen().console, FakeClock()) as display:
        display(Progress(1, 2, "two_model"))
        assert threading.active_count() == before


def test_a_resumed_run_does_not_take_credit_for_what_was_there() -> None:
    screen = Screen()
    with RunDisplay(screen.console, FakeClock()) as display:
        display(Progress(90, 100, "two_model"))
        assert "-:--:--" in screen.drawn()


def test_a_notice_stands_above_the_bar_with_its_brackets() -> None:
    screen = Screen()
    with RunDisplay(screen.console, FakeClock()) as display:
        display(Notice("early_exit[exits=4+8] cannot run here: [no]."))
    assert "early_exit[exits=4+8] cannot run here: [no].\n" in screen.drawn()


def test_away_from_a_terminal_only_notices_are_printed_each_on_one_line() -> None:
    screen = Screen(terminal=False)
    with RunDisplay(screen.console, FakeClock()) as display:
        display(Progress(1, 2, "two_model", warm_up=True))
        display(Progress(1, 2, "two_model"))
        display(Notice("word " * 40))
    assert screen.drawn() == "word " * 40 + "\n"
