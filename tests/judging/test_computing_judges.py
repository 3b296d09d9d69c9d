"""The judges that need no server: by likelihood, against plain recomputation, and by exact match."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from fixtures_records import RUN, baseline_row
from refusals import refused
from tiny import tiny_folder

from benchctl.decoding.model.target import Target
from benchctl.errors import UserError
from benchctl.judges.exact import Exact
from benchctl.judges.likelihood import Likelihood
from benchctl.judging.judge import Place, Question
from benchctl.measuring.run import model_info
from benchctl.records.schema import Row, Run

STOP = 2


def place(*runs: Run) -> Place:
    return Place(base_url="", key_env="", runs=runs)


def run_of(folder: Path, **changes: Any) -> Run:
    return replace(RUN, target=model_info(str(folder), Target.load(folder)), **changes)


def row_of(folder: Path, turns: Sequence[str], answers: Sequence[str], token_ids: tuple[int, ...]) -> Row:
    """The row of an answer to the last turn, after earlier answers."""
    prompt_tokens = len(prompt_ids(folder, turns, answers))
    steps = len(token_ids) - 1
    return replace(baseline_row(tokens=steps + 1), token_ids=token_ids, prompt_tokens=prompt_tokens)


def prompt_ids(folder: Path, turns: Sequence[str], answers: Sequence[str]) -> list[int]:
    """As transformers' own tokenizer makes them."""
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
    chat = [{"role": "user", "content": turns[0]}]
    for answer, turn in zip(answers, turns[1:], strict=True):
        chat += [{"role": "assistant", "content": answer}, {"role": "user", "content": turn}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids


@torch.inference_mode()
def log_probs(folder: Path, ids: Sequence[int]) -> Any:
    """Log-probabilities [tokens, vocabulary] of transformers' own model after each token of a text."""
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder)
    return model(torch.tensor([list(ids)])).logits[0].double().log_softmax(-1)


def mean_log_likelihood(folder: Path, prompt: Sequence[int], answer: Sequence[int]) -> float:
    known = log_probs(folder, [*prompt, *answer])
    return sum(float(known[len(prompt) - 1 + at, token]) for at, token in enumerate(answer)) / len(answer)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("judges") / "target", max_position_embeddings=256)


@pytest.mark.parametrize("token_ids", [(40, 7, 300, 12), (40, 7, 300, STOP), (STOP,)], ids=["cut", "ended", "empty"])
def test_likelihood_is_the_mean_over_the_answers_own_tokens_stop_token_included(
    target: Path, token_ids: tuple[int, ...]
) -> None:
    """Whatever its text would be in the tokenizer's own spelling: it is the method's tokens that are judged."""
    run, judge = run_of(target), Likelihood(model=str(target))
    judge.prepare(place(run))
    row = row_of(target, ["Say something."], [], token_ids)
    found = judge.grade(run, [row], Question(turns=("Say something.",), first=(row.text,)))
    truth = mean_log_likelihood(target, prompt_ids(target, ["Say something."], []), token_ids)
    assert found == pytest.approx(truth, rel=1e-5)


def test_likelihood_of_a_second_turn_is_after_the_answer_to_the_first(target: Path) -> None:
    run, judge, turns = run_of(target), Likelihood(model=str(target)), ("Count.", "And back?")
    judge.prepare(place(run))
    found = []
    for earlier in ("one two", "two one"):  # as long, so that only the text can make the difference
        rows = [row_of(target, turns[:1], [], (9, 8)), row_of(target, turns, [earlier], (50, 60, STOP))]
        found.append(judge.grade(run, rows, Question(turns=turns, first=(earlier, "text"))))
        truth = mean_log_likelihood(target, prompt_ids(target, turns, [earlier]), (50, 60, STOP))
        assert found[-1] == pytest.approx(truth, rel=1e-5)
    assert found[0] != pytest.approx(found[1], rel=1e-3)


def test_likelihood_is_taken_in_the_dtype_of_the_run(target: Path) -> None:
    scores = []
    for dtype in ("float32", "bfloat16"):
        run, judge = run_of(target, dtype=dtype), Likelihood(model=str(target))
        judge.prepare(place(run))
        row = row_of(target, ["Say something."], [], (40, 7))
        scores.append(judge.grade(run, [row], Question(turns=("Say something.",), first=("x",))))
    assert scores[0] != scores[1] and scores[0] == pytest.approx(scores[1], rel=0.02)


def test_likelihood_of_a_prompt_that_was_cut_is_after_the_tokens_that_were_kept(target: Path) -> None:
    run, judge, turns = run_of(target), Likelihood(model=str(target)), ("word " * 300,)
    judge.prepare(place(run))
    kept = prompt_ids(target, turns, [])[-200:]
    row = replace(row_of(target, turns, [], (40, 7)), prompt_tokens=200)
    found = judge.grade(run, [row], Question(turns=turns, first=("x",)))
    assert found == pytest.approx(mean_log_likelihood(target, kept, (40, 7)), rel=1e-5)


def test_likelihood_refuses_a_prompt_that_is_not_the_one_answered(target: Path) -> None:
    run, judge = run_of(target), Likelihood(model=str(target))
    judge.prepare(place(run))
    row = row_of(target, ["Say something."], [], (40, 7))
    with refused("other_prompts"):
        judge.grade(run, [row], Question(turns=("Say something else.",), first=("x",)))


@pytest.mark.parametrize("told_by_files", [True, False])
def test_likelihood_refuses_a_model_with_other_weights(
    target: Path, tmp_path: Path, told_by_files: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before they are loaded, where there is a file to tell by."""
    run, other = run_of(target), tiny_folder(tmp_path / "target", seed=1, max_position_embeddings=256)
    judge, refusal = Likelihood(model=str(other)), refused("other_target", "weights")
    if told_by_files:
        monkeypatch.setattr(Target, "load", None)
        with refusal:
            judge.prepare(place(run))
        return
    monkeypatch.setattr("benchctl.judges.likelihood.files_sha256", lambda path: "")
    judge.prepare(place(run))
    with refusal:
        judge.grade(run, [row_of(target, ["Why?"], [], (40, 7))], Question(turns=("Why?",), first=("x",)))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"tokenizer_sha256": "b" * 64}, "other tokenizer"),
        ({"chat_template_sha256": ""}, "other chat template"),
        ({"name": "nowhere"}, "--model"),
    ],
)
def test_likelihood_refuses_another_text_to_ids_before_any_weights_are_read(
    target: Path, changed: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(target)
    monkeypatch.setattr(Target, "load", None)
    judge = Likelihood(model="" if "name" in changed else str(target))
    with pytest.raises(UserError, match=said):
        judge.prepare(place(replace(run, target=replace(run.target, **changed))))


@pytest.mark.parametrize(
    ("changes", "said"), [({"imported": "FastChat"}, "it was imported"), ({"context_fill": 64}, "64 tokens were put")]
)
def test_likelihood_refuses_runs_whose_tokens_cannot_be_had_again(
    target: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        Likelihood(model=str(target)).prepare(place(run_of(target, **changes)))


@pytest.mark.parametrize(("text", "score"), [("It is **4**.", 1.0), ("It is 5.", 0.0)])
def test_exact_says_whether_an_answer_ends_with_the_exact_answer(text: str, score: float) -> None:
    question = Question(turns=("2 + 2?",), first=(text,), exact_answer="4")
    assert Exact().grade(RUN, [replace(baseline_row(), text=text)], question) == score


def test_exact_gives_no_score_where_there_is_no_exact_answer() -> None:
    assert Exact().grade(RUN, [baseline_row()], Question(turns=("Why?",), first=("text",))) is None


def test_exact_refuses_a_run_without_any_exact_answer() -> None:
    with refused("no_exact_answers", "first"):
        Exact().prepare(place(RUN))
    suite = replace(RUN.suites[0], exact_answers={"p0": ("4",)})
    Exact().prepare(place(replace(RUN, suites=(suite,))))
