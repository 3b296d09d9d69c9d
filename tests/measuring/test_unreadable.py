"""Texts that the files of a model make no ids of: prompts are left out before measuring, later turns are errors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command import cli
from fixtures_run import make_settings, measure_file, measured, write_prompts
from refusals import refused
from tiny import tiny_folder, tiny_tokenizer
from tokenizers import AddedToken

from benchctl.decoding.model.tokenizer import TargetTokenizer, load_tokenizer
from benchctl.judges.local import Local
from benchctl.judging.judge import Message, Place
from benchctl.measuring import settings as ask
from benchctl.measuring.check import check
from benchctl.measuring.prompts.fit import without_remark

REFUSES = "{{ raise_exception('A system message is needed') }}"
NEEDS_ANSWERS = (
    "{% for m in messages %}{% if m['role'] == 'assistant' and not m['content'] %}{{ raise_exception('empty') }}"
    "{% endif %}{{ m['content'] }}{% endfor %}"
)
HELLO, CHAT = {"id": "fine", "prompt": "Hello"}, {"id": "chat", "turns": ["Hello", "Why?"]}


def settings_of(folder: Path, tokenizer: Any, *prompts: object) -> ask.RunSettings:
    """A run of prompt lookup with a random target that has this tokenizer."""
    tiny_folder(folder / "target")
    tokenizer.save_pretrained(folder / "target")
    write_prompts(folder / "three.jsonl", prompts)
    settings = make_settings(folder, folder / "out.jsonl")
    models = ask.ModelSettings(str(folder / "target"), device="cpu")
    return replace(settings, models=models, methods=("prompt_lookup",))


def templated(template: str) -> Any:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    return tokenizer


def padded() -> Any:
    """With a token 320, where the models here have embeddings up to 319."""
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(AddedToken("<extra>", special=True))
    return tokenizer


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize("template", [REFUSES, "{{ messages[0].content.nothing.more }}", "{% if %}"])
def test_a_template_that_refuses_every_chat_is_named_before_weights_are_read(template: str, tmp_path: Path) -> None:
    """A refusal by the template of a target or of a local judge ended in a traceback of jinja2, with exit code 1."""
    settings = settings_of(tmp_path, templated(template), HELLO)
    with refused("refused_by_chat_template", "fine", "'Hello'"):
        check(settings, lambda notice: None)
    target = tmp_path / "target"
    examined = cli("doctor", "-m", "prompt_lookup", "--model", target, "--bench", tmp_path / "three.jsonl")
    assert examined.exit_code == 2 and "'Hello'" in examined.stderr
    judge = Local(model=str(target))
    judge.prepare(Place(base_url="", key_env="", runs=()))
    with refused("refused_by_chat_template", "'Score it.'"):
        judge.prompt_tokens((Message("user", "Score it."),))


def test_a_later_turn_that_the_template_refuses_is_an_error_of_that_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A template that refuses empty answers ended the run before it began: unknown answers counted as empty.

    Here all answers are empty.
    """
    monkeypatch.setattr(TargetTokenizer, "decode_text", lambda *_: "")
    settings = settings_of(tmp_path, templated(NEEDS_ANSWERS), HELLO, CHAT)
    rows = measured(measure_file(settings))
    errors = {(row.prompt_id, row.turn): row.error for row in rows}
    assert errors[("fine", 0)] is errors[("chat", 0)] is None
    assert str(errors[("chat", 1)]).startswith("refused_by_chat_template: ")


@pytest.mark.usefixtures("no_weights")
def test_a_prompt_with_a_token_that_the_target_has_no_embedding_for_is_left_out(tmp_path: Path) -> None:
    """A padding token that was added to a tokenizer, but not to its model, was an IndexError of every method."""
    notices: list[str] = []
    settings = settings_of(tmp_path, padded(), HELLO, {"id": "bad", "prompt": "Is <extra> it?"})
    (suite,) = check(settings, notices.append).suites
    assert [prompt.id for prompt in suite.prompts] == ["fine"]
    assert all(fact in " ".join(notices) for fact in ("prompt bad", "'<extra>'", "320", "319"))
    assert suite.origin != without_remark(suite.origin) == str(tmp_path / "three.jsonl"), "so that it can be judged"
    write_prompts(tmp_path / "three.jsonl", [{"id": "bad", "prompt": "Is <extra> it?"}])
    with refused("token_without_embedding", "bad", "'<extra>'", "320"):
        check(settings, notices.append)


def test_a_tokenizer_that_fails_is_named(tmp_path: Path) -> None:
    """A lone surrogate, which JSON can contain, was a TypeError or UnicodeEncodeError of the tokenizer."""
    tiny_folder(tmp_path / "target")
    tokenizer = load_tokenizer(tmp_path / "target")
    with refused("tokenizer_failed", "\\ud800"):
        tokenizer.encode_text("\ud800")
    with refused("tokenizer_failed"):
        tokenizer.encode_chat([{"role": "user", "content": "\ud800"}])
    with refused("tokenizer_failed"):
        tokenizer.decode_text([-1])
