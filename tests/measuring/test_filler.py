"""A context filled before each prompt: exactly so many tokens, the same for all, seen by the target and recorded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fixtures_run import make_settings, measure_file, measured
from refusals import refused

from benchctl.decoding.model.target import Target
from benchctl.decoding.model.tokenizer import TargetTokenizer, load_tokenizer
from benchctl.measuring.prompts.fit import Filler, filler_text, make_filler
from benchctl.measuring.settings import RunSettings

FILL = 40


@pytest.fixture(scope="module")
def tokenizer(run_folder: Path) -> TargetTokenizer:
    return load_tokenizer(run_folder / "target")


def filled(settings: RunSettings, fill: int) -> RunSettings:
    once = replace(settings.repeat, repeats=1, warm_up=0)
    return replace(settings, repeat=once, prompts=replace(settings.prompts, context_fill=fill))


def test_a_filler_has_exactly_the_tokens_asked_for_and_its_text_repeats(
    tokenizer: TargetTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for tokens in (1, 40, 126):
        ids = make_filler(tokenizer, tokens).ids
        assert len(ids) == tokens and filler_text().startswith(tokenizer.decode_text(ids))
    once = tokenizer.encode_text(filler_text())
    monkeypatch.setattr(tokenizer, "context_tokens", 10 * len(once))
    assert list(make_filler(tokenizer, len(once) + 3).ids) == [*once, *once[:3]]


def test_the_filler_comes_after_the_first_token_of_the_tokenizer() -> None:
    assert Filler((7, 8), first=1).before([1, 5, 6]) == [1, 7, 8, 5, 6]
    assert Filler((7, 8), first=1).before([5, 6]) == [7, 8, 5, 6]
    assert Filler((7, 8)).before([1, 5, 6]) == [7, 8, 1, 5, 6]


def test_a_filler_without_tokens_is_empty_and_one_that_leaves_no_room_is_refused(tokenizer: TargetTokenizer) -> None:
    assert make_filler(tokenizer, 0) == Filler() and Filler().before([1, 5]) == [1, 5]
    with refused("filler_too_long", "--context 127", "128 tokens"):
        make_filler(tokenizer, 127)


@pytest.mark.slow
def test_every_label_answers_the_filled_prompt_and_the_run_records_it(run_folder: Path, tmp_path: Path) -> None:
    """The truth is the target's own best next token, read off a pass over filler, prompt and answer."""
    plain = measure_file(filled(make_settings(run_folder, tmp_path / "plain.jsonl"), 0))
    full = measure_file(filled(make_settings(run_folder, tmp_path / "full.jsonl"), FILL))
    assert (plain.run.context_fill, full.run.context_fill) == (0, FILL)
    tokens, filled_tokens = (
        {(row.label, row.prompt_id): row.prompt_tokens for row in measured(file) if row.turn == 0}
        for file in (plain, full)
    )
    assert filled_tokens == {key: count + FILL for key, count in tokens.items()}
    target = Target.load(run_folder / "target", dtype="float32")
    short = next(row for row in measured(full) if (row.label, row.prompt_id) == ("autoregressive", "short"))
    ids = target.tokenizer.encode_chat([{"role": "user", "content": "Say something."}])
    text = [ids[0], *make_filler(target.tokenizer, FILL).ids, *ids[1:]]
    assert ids[0] == target.tokenizer.first_id and len(text) == short.prompt_tokens
    for token in short.token_ids:
        assert token == int(target.next_logits(text).argmax())
        text.append(token)


@pytest.mark.slow
def test_prompts_that_the_filler_leaves_no_room_for_are_left_out_or_cut(run_folder: Path, tmp_path: Path) -> None:
    files = {}
    for policy in ("skip", "cut"):
        settings = filled(make_settings(run_folder, tmp_path / f"{policy}.jsonl"), 100)
        prompts = replace(settings.prompts, long_prompts=policy)
        files[policy] = measure_file(replace(settings, methods=("autoregressive",), prompts=prompts))
    assert {row.prompt_id for row in measured(files["skip"])} == {"short", "talk"}
    assert files["skip"].run.suites[0].prompts == 2
    (story,) = (row for row in measured(files["cut"]) if row.prompt_id == "story")
    assert story.error is None and story.prompt_tokens == 100 + 28 - 6
    assert "cut" in files["cut"].run.suites[0].origin
