"""The picture of depths: each token has the number its row tells, and means are over the answers that go so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixtures_records import BASELINE, DRAFTED, EXITING, LAYERS, RUN, baseline_row, drafted_row, exiting_row, write
from pictures import LOOKS, assert_readable, figure_of, texts, write_picture

from benchctl.analysis.comparison import Group, compare
from benchctl.analysis.plots.depths import cells, depths, numbers_of
from benchctl.analysis.plots.style import style_of
from benchctl.errors import UserError
from benchctl.records.schema import Row, Run
from benchctl.records.writer import read

WORDS = ("A", " bee", " c", "\n", " d", " 😀", " ee", "ff", " g", ".")


def decode(ids: Sequence[int]) -> str:
    return "".join(WORDS[token % len(WORDS)] for token in ids)


def decoders(run: Run) -> Callable[[Sequence[int]], str]:
    return decode


def no_decoders(run: Run) -> None:
    return None


def told(row: Row) -> Row:
    return replace(row, text=decode(row.token_ids))


def rows_of(prompts: int = 6, tokens: int = 9) -> list[Row]:
    """Answers of `tokens`, `tokens` + 2, .. tokens; the n-th one runs n % 3 + 4 layers for tokens of even places."""
    rows = []
    for number in range(prompts):
        steps = (tokens - 1) // 2 + number
        length = 1 + 2 * steps
        layers = (LAYERS, *(number % 3 + 4 if place % 2 == 0 else LAYERS for place in range(1, length)))
        rows += [
            baseline_row(f"p{number}", tokens=length),
            drafted_row(f"p{number}", steps=steps),
            replace(exiting_row(f"p{number}", tokens=length), layers=layers),
        ]
    return [told(row) for row in rows]


def groups_of(tmp_path: Path, rows: list[Row], name: str = "run", run: Run = RUN) -> tuple[Group, ...]:
    return compare([read(write(tmp_path / f"{name}.jsonl", rows, run))])


def test_a_token_has_the_layers_of_its_row_or_the_length_of_its_block() -> None:
    row = replace(drafted_row(), token_ids=(0,) * 5, committed=(1, 3), accepted=(0, 2), drafted=(3, 3), rows=(4, 4),
                  step_s=(1.0, 1.0), layers=(12, 12, 6, 6, 8))  # fmt: skip
    assert numbers_of(row, "block") == (1, 1, 3, 3, 3)
    assert numbers_of(row, "layers") == (12, 12, 6, 6, 8)


def test_an_answer_has_a_number_and_a_text_for_each_token(tmp_path: Path) -> None:
    rows = rows_of()
    (group,) = groups_of(tmp_path, rows)
    row = next(row for row in rows if row.label == EXITING and row.prompt_id == "p2")
    found = depths(group, EXITING, "p2", decoders)
    assert (found.kind, found.answer.numbers, found.answer.place.prompt_id) == ("layers", row.layers, "p2")
    assert found.answer.texts == tuple(WORDS[token % len(WORDS)] for token in row.token_ids)
    drafted = depths(group, DRAFTED, "", decoders)
    assert (drafted.kind, drafted.answer.numbers) == ("block", (1, *(2,) * 8))
    assert drafted.answer.place.prompt_id == "p0"
    assert depths(group, EXITING, "p2", no_decoders).answer.texts is None


def test_means_are_over_the_answers_that_go_so_far(tmp_path: Path) -> None:
    """Lengths of 9 to 19 tokens; positions that one answer of six reaches are left out, two are enough."""
    rows = rows_of()
    (group,) = groups_of(tmp_path, rows)
    found = depths(group, EXITING, "", decoders)
    layers = [row.layers for row in rows if row.label == EXITING]
    assert [each.position for each in found.means] == list(range(17))
    assert found.answers == 6
    for each in found.means:
        there = [answer[each.position] for answer in layers if len(answer) > each.position]
        assert each.mean == pytest.approx(sum(there) / len(there)) and each.answers == len(there)
        if each.interval:
            assert each.interval.low <= each.mean <= each.interval.high
    even = found.means[2]
    assert even.interval is not None and 4 <= even.interval.low < 5 < even.interval.high <= 6


def test_the_mean_of_blocks_is_tokens_per_step_and_no_long_block_counts_once_for_each_of_its_tokens(
    tmp_path: Path,
) -> None:
    """Two answers of 6 tokens after prefill's: one of 2 steps of 3, one of 6 steps. At each token they are 2 tokens in
    1/3 and 1 steps: 1.5 tokens per step, as over all, 12 / 8; the mean block of a token would be 2."""
    blocks = {"p0": (3, 3), "p1": (1,) * 6}
    rows = []
    for prompt_id, committed in blocks.items():
        drafted = replace(
            baseline_row(prompt_id, tokens=7), label=DRAFTED, committed=committed, step_s=(1.0,) * len(committed),
            accepted=tuple(count - 1 for count in committed), drafted=(2,) * len(committed),
            rows=(3,) * len(committed), verdict="identical",
        )  # fmt: skip
        rows += [baseline_row(prompt_id, tokens=7), drafted]
    (group,) = groups_of(tmp_path, rows)
    means = depths(group, DRAFTED, "", no_decoders).means
    assert [each.position for each in means] == [1, 2, 3, 4, 5, 6]
    assert [each.mean for each in means] == pytest.approx([1.5] * 6)


def test_means_of_many_answers_have_the_interval_of_redrawn_prompts(tmp_path: Path) -> None:
    rows = rows_of(prompts=12)
    (group,) = groups_of(tmp_path, rows)
    chance = np.random.default_rng(3)
    values = np.array([row.layers[4] for row in rows if row.label == EXITING], dtype=float)
    draws = values[chance.integers(0, 12, (20_000, 12))].mean(axis=1)
    low, high = np.quantile(draws, (0.025, 0.975))
    interval = depths(group, EXITING, "", decoders).means[4].interval
    assert interval is not None
    assert interval.high - interval.low == pytest.approx(1.18 * (high - low), rel=0.15)  # t of 11, and sqrt(12 / 11)


def test_disturbed_rounds_are_neither_shown_nor_in_the_means(tmp_path: Path) -> None:
    rows = [
        replace(row, layers=(1,) * len(row.layers), invalid="throttled")
        if (row.prompt_id, row.label) == ("p0", EXITING)
        else row
        for row in rows_of()
    ]
    (group,) = groups_of(tmp_path, rows)
    found = depths(group, EXITING, "", decoders)
    assert (found.answer.place.prompt_id, found.answers) == ("p1", 5)
    assert min(each.mean for each in found.means) >= 4


def test_the_first_turn_and_the_first_repeat_are_shown(tmp_path: Path) -> None:
    rows = [
        replace(row, turn=turn, repeat=repeat, layers=row.layers if turn == repeat == 0 else (12,) * len(row.layers))
        for turn in (1, 0)
        for repeat in (0, 1)
        for row in rows_of(2)
    ]
    (group,) = groups_of(tmp_path, rows)
    place = depths(group, EXITING, "p1", decoders).answer.place
    assert (place.prompt_id, place.turn, place.repeat) == ("p1", 0, 0)


def test_what_cannot_be_drawn_is_refused_with_what_can(tmp_path: Path) -> None:
    groups, out = groups_of(tmp_path, rows_of()), tmp_path / "plot.png"
    with pytest.raises(UserError, match="autoregressive has no token that ran fewer layers .* no drafts.* two_model"):
        write_picture("depths", groups, out, style_of(), decoders=decoders, methods=[BASELINE])
    with pytest.raises(UserError, match="--prompt p77: .* has no answer to it. It has: p0 p1 p2 p3 p4 and 1 more."):
        write_picture("depths", groups, out, style_of(), decoders=decoders, prompt="p77")
    with pytest.raises(UserError, match="--method medusa: was not measured here"):
        write_picture("depths", groups, out, style_of(), decoders=decoders, methods=["medusa"])


def test_what_else_could_be_drawn_is_said(tmp_path: Path) -> None:
    """Of several that fit, the first was drawn without a word."""
    groups, out = groups_of(tmp_path, rows_of()), tmp_path / "plot.svg"
    (note,) = write_picture("depths", groups, out, style_of(), decoders=decoders)
    assert note == f"the picture is of {DRAFTED}. It could be of: --method {EXITING}."
    assert write_picture("depths", groups, out, style_of(), decoders=decoders, methods=[EXITING, BASELINE]) == ()
    with pytest.raises(UserError) as refused:
        write_picture("depths", groups, out, style_of(), decoders=decoders, methods=[BASELINE])
    assert str(refused.value).endswith(f"Name another --method, of {DRAFTED} {EXITING}.")
    alone = groups_of(tmp_path, [baseline_row()], name="alone")
    with pytest.raises(UserError, match="nothing to draw. Measure one that drafts, or leaves layers out"):
        write_picture("depths", alone, out, style_of(), decoders=decoders)


def test_cells_fill_lines_and_stay_in_them(tmp_path: Path) -> None:
    """Lines of 30 characters: cells are as wide as their text or number, do not overlap, and keep the tokens' order."""
    (group,) = groups_of(tmp_path, rows_of(1, tokens=41))
    found = depths(group, EXITING, "", decoders)
    laid = cells(found, 30)
    assert [cell.number for cell in laid] == list(found.answer.numbers)
    assert [cell.text for cell in laid[:7]] == ["A", " bee", " c", "↵", " d", " □", " ee"]
    assert all(
        cell.left + cell.width <= 30 and cell.width > max(len(cell.text), len(str(cell.number))) for cell in laid
    )
    for one, other in zip(laid, laid[1:], strict=False):
        assert (other.line, other.left) >= (one.line, one.left + one.width) or other.line == one.line + 1
    assert laid[-1].line > 3


def test_the_tokens_of_a_block_touch_and_blocks_do_not(tmp_path: Path) -> None:
    (group,) = groups_of(tmp_path, rows_of(1))
    laid = cells(depths(group, DRAFTED, "", decoders), 1000)
    gaps = [round(other.left - one.left - one.width, 6) for one, other in zip(laid, laid[1:], strict=False)]
    assert gaps == [0.5, 0, 0.5, 0, 0.5, 0, 0.5, 0]  # prefill's, then blocks of 2


def test_the_picture_says_what_its_numbers_are(tmp_path: Path) -> None:
    groups, out = groups_of(tmp_path, rows_of()), tmp_path / "plot.svg"
    assert write_picture("depths", groups, out, style_of(), decoders=decoders, methods=["early_exit"]) == ()
    found = texts(out)
    for text in (
        "reference on cpu, float32, threads: 1, baseline: autoregressive",
        "answer to p0 of koala: layers run for each token",
        "token of the answer (the first is prefill's)",
        "layers run",
        "mean of 6 answers, 2 of which go on to the end (band: 95% interval",
        "bee",
        "↵",
    ):
        assert text in found, text
    write_picture("depths", groups, out, style_of(), decoders=decoders)
    assert "tokens that the token's step committed" in texts(out) and DRAFTED in texts(out)


def test_what_is_not_shown_and_what_needs_explaining_is_said(tmp_path: Path) -> None:
    rows = [
        told(row) for row in (baseline_row(tokens=900), replace(exiting_row(tokens=900), layers=(12, 20, *(4,) * 898)))
    ]
    run = replace(RUN, max_new_tokens=900)
    notes = write_picture(
        "depths", groups_of(tmp_path, rows, run=run), tmp_path / "plot.png", style_of(), decoders=no_decoders
    )
    assert notes[0].startswith("the picture shows the first ") and notes[0].endswith(" of 900 tokens.")
    assert notes[1].startswith("1 of 900 tokens have more layers than the target's 12: their own, and those caught up")
    assert notes[2] == "the target's tokenizer is not at hand, so tokens have numbers and no text."


@pytest.mark.parametrize(("theme", "size", "ending"), LOOKS)
def test_every_text_can_be_read(theme: str, size: str, ending: str, tmp_path: Path) -> None:
    groups, style = groups_of(tmp_path, rows_of(8, tokens=31)), style_of(theme, size)
    asked: dict[str, Any] = {"decoders": decoders, "methods": [EXITING]}
    write_picture("depths", groups, tmp_path / f"plot{ending}", style, **asked)
    assert_readable(figure_of("depths", groups, style, **asked), style)
