"""Judges that compute: against plain recomputation, and by the same command, files and resume as those asked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from command import cli, ok
from fixtures_records import BASELINE, RUN, baseline_row
from fixtures_run import make_folder, make_settings, measure_file
from judged import measured_file
from parrot import parrot_folder
from refusals import refused
from tiny import tiny_folder

from benchctl.decoding.model.loading import form_sha256
from benchctl.decoding.model.target import Target
from benchctl.judges.exact import Exact
from benchctl.judges.likelihood import Likelihood
from benchctl.judging.judge import Place, Question
from benchctl.measuring.prompts.files import Prompt
from benchctl.measuring.run import model_info
from benchctl.records.schema import Row, Run
from benchctl.records.scores import Score, read_scores, scores_path
from benchctl.records.writer import RunFile

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


@pytest.mark.parametrize("executor", ["static", "transformers"])
@pytest.mark.parametrize("token_ids", [(40, 7, 300, 12), (40, 7, 300, STOP), (STOP,)], ids=["cut", "ended", "empty"])
def test_likelihood_is_the_mean_over_the_answers_own_tokens_and_stop(
    target: Path, token_ids: tuple[int, ...], executor: str
) -> None:
    """Whatever its text would be in the tokenizer's own spelling: it is the method's tokens that are judged."""
    run, judge = run_of(target, executor=executor), Likelihood(model=str(target))
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


def test_likelihood_is_taken_with_the_weights_of_the_run(target: Path) -> None:
    """And refuses a run of these files in another form before any weights are read."""
    whole, judge = run_of(target), Likelihood(model=str(target))
    half = replace(whole, weights="float16")
    with refused("other_target", "weights"):
        judge.prepare(place(half))
    half = replace(half, target=replace(half.target, weights_sha256=form_sha256(half.target.weights_sha256, "float16")))
    row, question = row_of(target, ["Say something."], [], (40, 7)), Question(turns=("Say something.",), first=("x",))
    scores = []
    for each in (whole, half):
        judge.prepare(place(each))
        scores.append(judge.grade(each, [row], question))
    assert scores[0] != scores[1] and scores[0] == pytest.approx(scores[1], rel=0.002)


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
    ("changed", "id", "fact"),
    [
        ({"tokenizer_sha256": "b" * 64}, "other_target", "tokenizer"),
        ({"chat_template_sha256": ""}, "other_target", "chat template"),
        ({"name": "nowhere"}, "target_not_found", "--model"),
    ],
)
def test_likelihood_refuses_another_text_to_ids_before_any_weights_are_read(
    target: Path, changed: dict[str, Any], id: str, fact: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(target)
    monkeypatch.setattr(Target, "load", None)
    judge = Likelihood(model="" if "name" in changed else str(target))
    with refused(id, fact):
        judge.prepare(place(replace(run, target=replace(run.target, **changed))))


@pytest.mark.parametrize(
    ("changes", "fact"), [({"imported": "FastChat"}, "imported"), ({"context_fill": 64}, "64 tokens")]
)
def test_likelihood_refuses_runs_whose_tokens_are_unknown(target: Path, changes: dict[str, Any], fact: str) -> None:
    with refused("prompts_not_available", fact):
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


def judged(results: Path, *words: str) -> Sequence[Score]:
    """The scores after `benchctl judge`."""
    ok(cli("judge", results, *words))
    return read_scores(scores_path(results)).scores


def refusal_of(results: Path, *words: str) -> str:
    done = cli("judge", results, *words)
    assert done.exit_code == 2 and not scores_path(results).exists()
    return done.output


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> RunFile:
    """A run of the tiny target, a talk of two turns among its prompts."""
    folder = make_folder(tmp_path_factory.mktemp("computed"))
    return measure_file(make_settings(folder, folder / "first.jsonl"))


def test_likelihoods_by_the_command_are_those_that_the_run_itself_took(measured: RunFile) -> None:
    """A run takes them of greedy answers that are not the baseline's, by the target as it was loaded then."""
    target = measured.path.parent / "target"
    scores = judged(measured.path, "--judge", "likelihood", "--model", str(target))
    rows = {(row.prompt_id, row.turn, row.label, row.repeat): row for row in measured.rows if row.repeat >= 0}
    compared = 0
    for score in scores:
        row = rows[score.prompt_id, score.turn, score.label, score.repeat]
        assert (score.judge, score.model, score.protocol) == ("likelihood", "target", "likelihood")
        if score.identical:
            assert score.score == score.baseline_score
        elif row.turn == 0:  # a later turn follows another answer than the baseline's
            taken = row.fidelity["target_logprob"] / row.fidelity["scored_tokens"]
            assert score.score == pytest.approx(taken, rel=1e-5) != pytest.approx(score.baseline_score)
            compared += 1
    assert compared > 0 and len(scores) == sum(label != BASELINE for _, _, label, _ in rows)


def test_a_judging_that_was_torn_goes_on_and_ends_as_if_nothing_had_happened(measured: RunFile) -> None:
    target = measured.path.parent / "target"
    whole = judged(measured.path, "--judge", "likelihood", "--model", str(target))
    path = scores_path(measured.path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:3]) + lines[3][:40])
    again = judged(measured.path, "--judge", "likelihood", "--model", str(target))
    assert [replace(score, judged_at="") for score in again] == [replace(score, judged_at="") for score in whole]


def test_a_local_judge_is_asked_in_both_orders_and_by_the_cache_only_once(measured: RunFile, tmp_path: Path) -> None:
    """It gives what stands first 8 and what stands second 3, whatever that is."""
    path = tmp_path / "first.jsonl"
    path.write_bytes(measured.path.read_bytes())
    model = parrot_folder(tmp_path / "parrot", "8 3", context_tokens=4096)
    words = ["--judge", "local[way=generate]", "--model", str(model)]
    first = judged(path, *words)
    shown = [(score.order, score.score, score.baseline_score) for score in first if not score.identical]
    assert set(shown) == {("baseline_first", 3.0, 8.0), ("baseline_second", 8.0, 3.0)}
    assert shown.count(("baseline_first", 3.0, 8.0)) == len(shown) / 2 > 0
    assert {score.model.partition("@")[0] for score in first} == {"parrot"} and str(tmp_path) not in first[0].judge
    scores_path(path).unlink()
    assert all(score.cached or score.identical for score in judged(path, *words))


def test_exact_match_by_the_command_is_about_the_prompts_that_can_be_checked(tmp_path: Path) -> None:
    def answer(prompt: Prompt, turn: int, label: str) -> str:
        right = prompt.exact_answers and prompt.exact_answers[turn]
        return f"The answer is {right}" if label == BASELINE and right else "I do not know"

    results = tmp_path / "first.jsonl"
    measured_file(results, {"tasks": 5, "koala": 2}, answer)
    scores = judged(results, "--judge", "exact")
    assert {(score.suite, score.score, score.baseline_score) for score in scores} == {("tasks", 0.0, 1.0)}
    assert (len(scores), {score.model for score in scores}, {score.template for score in scores}) == (5, {""}, {""})


def test_what_cannot_be_judged_so_is_refused_before_a_score_is_written(measured: RunFile, tmp_path: Path) -> None:
    path = tmp_path / "first.jsonl"
    path.write_bytes(measured.path.read_bytes())
    assert "first has an exact answer" in refusal_of(path, "--judge", "exact")
    assert "--model and --judge likelihood" in refusal_of(path, "--judge", "likelihood")
    draft = str(measured.path.parent / "draft")
    assert "has other weights" in refusal_of(path, "--judge", "likelihood", "--model", draft)
    assert "local needs a judge" in refusal_of(path, "--judge", "local")
    assert "no option 'size'" in refusal_of(path, "--judge", "local[size=7]")
    without = tmp_path / "without.jsonl"
    lines = [line for line in path.read_text().splitlines() if json.loads(line).get("label") != BASELINE]
    without.write_text("\n".join(lines) + "\n")
    target = str(measured.path.parent / "target")
    assert "the baseline" in refusal_of(without, "--judge", "likelihood", "--model", target)
