"""A context filled before each prompt: exactly so many tokens, the same for all, seen by the target and recorded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fixtures_run import make_folder, make_settings, measured
from refusals import refused

from benchctl.decoding.model.target import Target
from benchctl.decoding.model.tokenizer import TargetTokenizer, load_tokenizer
from benchctl.measuring.check import check
from benchctl.measuring.prompts.fit import Filler, filler_text, make_filler
from benchctl.measuring.run import run
from benchctl.measuring.settings import RunSettings
from benchctl.records.writer import RunFile, read

FILL = 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("filler"))


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> TargetTokenizer:
    return load_tokenizer(folder / "target")


def measure(settings: RunSettings) -> RunFile:
    run(check(settings, lambda notice: None), lambda event: None)
    assert settings.out is not None
    return read(settings.out)


def filled(settings: RunSettings, fill: int) -> RunSettings:
    once = replace(settings.repeat, repeats=1, warm_up=0)
    return replace(settings, repeat=once, prompts=replace(settings.prompts, context_fill=fill))


@pytest.mark.parametrize("tokens", [1, 40, 100])
def test_a_filler_has_exactly_so_many_tokens_of_the_text(tokenizer: TargetTokenizer, tokens: int) -> None:
    ids = make_filler(tokenizer, tokens).ids
    assert len(ids) == tokens
    assert filler_text().startswith(tokenizer.decode_text(ids))


def test_where_the_text_ends_it_begins_again(tokenizer: TargetTokenizer) -> None:
    once = tokenizer.encode_text(filler_text())
    tokenizer.context_tokens = 10 * len(once)
    ids = list(make_filler(tokenizer, len(once) + 3).ids)
    assert ids == [*once, *once[:3]]
    tokenizer.context_tokens = 128


def test_the_filler_stands_behind_the_first_token_of_the_tokenizer() -> None:
    assert Filler((7, 8), first=1).before([1, 5, 6]) == [1, 7, 8, 5, 6]
    assert Filler((7, 8), first=1).before([5, 6]) == [7, 8, 5, 6]
    assert Filler((7, 8)).before([1, 5, 6]) == [7, 8, 1, 5, 6]
    assert Filler().before([1, 5]) == [1, 5]


def test_no_filler_is_no_filler_and_one_that_leaves_no_room_is_refused(tokenizer: TargetTokenizer) -> None:
    assert make_filler(tokenizer, 0) == Filler()
    assert len(make_filler(tokenizer, 126).ids) == 126
    with refused("filler_too_long", "--context 127", "128 tokens"):
        make_filler(tokenizer, 127)


@pytest.mark.slow
def test_every_label_answers_the_filled_prompt_and_the_run_says_so(folder: Path, tmp_path: Path) -> None:
    """The truth is the target's own best next token, read off a pass over filler, prompt and answer."""
    plain = measure(filled(make_settings(folder, tmp_path / "plain.jsonl"), 0))
    full = measure(filled(make_settings(folder, tmp_path / "full.jsonl"), FILL))
    assert (plain.run.context_fill, full.run.context_fill) == (0, FILL)
    target = Target.load(folder / "target", dtype="float32")
    first = {row.prompt_id: row for row in measured(full) if row.label == "autoregressive" and row.turn == 0}
    for row in measured(plain):
        other = next(
            one for one in measured(full)
            if (one.label, one.prompt_id, one.turn) == (row.label, row.prompt_id, row.turn)
        )  # fmt: skip
        if row.turn == 0:
            assert other.prompt_tokens == row.prompt_tokens + FILL
    chat = [{"role": "user", "content": "Say something."}]
    ids = target.tokenizer.encode_chat(chat)
    text = [ids[0], *make_filler(target.tokenizer, FILL).ids, *ids[1:]]
    assert ids[0] == target.tokenizer.first_id and len(text) == first["short"].prompt_tokens
    for token in first["short"].token_ids:
        assert token == int(target.next_logits(text).argmax())
        text.append(token)


@pytest.mark.slow
def test_a_prompt_that_is_cut_keeps_the_whole_filler_before_it(folder: Path, tmp_path: Path) -> None:
    settings = filled(make_settings(folder, tmp_path / "out.jsonl"), 100)
    cut = replace(settings, prompts=replace(settings.prompts, long_prompts="cut"))
    file = measure(cut)
    rows = {row.prompt_id: row for row in measured(file) if row.label == "autoregressive"}
    assert rows["story"].error is None and rows["story"].prompt_tokens == 100 + 28 - 6
    assert "cut" in file.run.suites[0].origin


def test_prompts_that_the_filler_leaves_no_room_for_are_left_out_if_asked_so(folder: Path, tmp_path: Path) -> None:
    settings = filled(make_settings(folder, tmp_path / "out.jsonl"), 100)
    file = measure(replace(settings, prompts=replace(settings.prompts, long_prompts="skip")))
    assert {row.prompt_id for row in measured(file)} == {"short", "talk"}
    assert file.run.suites[0].prompts == 2
