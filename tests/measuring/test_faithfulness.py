"""What the target thinks of an answer, against transformers' own model asked about one whole text at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from fakes_measuring import FakeClock, Lying, Plain, one, task
from runs import pair, prepared, prompt_of
from tiny import tiny_folder
from torch import Tensor

from benchctl.decoding.loop import DecodeRequest, decode
from benchctl.decoding.method import Context, Method
from benchctl.decoding.model.likelihood import Likelihood, likelihood
from benchctl.decoding.model.target import Target
from benchctl.decoding.sampling import Sampling
from benchctl.measuring.measure import DecodingConfig, Measurer
from benchctl.measuring.teacher_forcing import NotItsOwn, TeacherForcing, kl_nats, own_logits
from benchctl.measuring.verdict import BaselineAnswers

NEW_TOKENS = 12
PROMPT = prompt_of(9)
REQUEST = DecodeRequest(PROMPT, NEW_TOKENS)


def truth(prompt: Sequence[int], answer: Sequence[int]) -> Tensor:
    """Log-probabilities [tokens, vocabulary] of the target before each token of an answer, text by text."""
    naive = pair("llama").naive
    texts = [[*prompt, *answer[:at]] for at in range(len(answer))]
    return torch.stack([naive.logits(naive.last_states(text)[-1]).log_softmax(-1) for text in texts])


def said_by(method: Method) -> list[int]:
    return list(decode(method, pair("llama").target, DecodeRequest(PROMPT, NEW_TOKENS)).token_ids)


@dataclass
class Own(Plain):
    """Chooses from logits of its own: those of the target, made less sure and with one token set apart."""

    favour: float = 0.0
    exactness = "lossy"
    reason = "a fake"

    def step(self, context: Context) -> tuple[int]:
        context.stream.push(context.tokens[-1:])
        context.stream.advance()
        token = context.pick(own(context.stream.logits(), self.favour))
        context.stream.keep((0,))
        return (token,)


def own(logits: Tensor, favour: float) -> Tensor:
    changed = 0.5 * logits
    changed[..., 7] += favour
    return changed


@pytest.mark.parametrize(("tokens", "block"), [(1, None), (5, None), (40, None), (20, 3), (0, None)])
def test_an_answer_is_scored_as_a_model_without_a_cache_scores_it(
    tokens: int, block: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in several blocks of logits. 0 tokens stands for the target's own greedy answer."""
    if block:
        monkeypatch.setattr("benchctl.decoding.model.likelihood._BLOCK", block)
    answer = prompt_of(tokens, seed=3) if tokens else said_by(Plain())
    logprobs = truth(PROMPT, answer)
    scored = likelihood(pair("llama").target, PROMPT, answer)
    assert (scored.tokens, scored.agreed) == (len(answer), int((logprobs.argmax(-1) == torch.tensor(answer)).sum()))
    assert tokens or scored.agreed == NEW_TOKENS
    assert scored.logprob == pytest.approx(sum(float(row[token]) for row, token in zip(logprobs, answer, strict=True)))


def answers(tokens: Sequence[int] = ()) -> BaselineAnswers:
    """The baseline's answer to PROMPT, if it is given; nothing else is ever decoded."""
    known = BaselineAnswers(lambda prompts: pytest.fail("the baseline was decoded"))
    if tokens:
        known.remember(PROMPT, tokens)
    return known


def test_an_equal_answer_costs_nothing_and_another_is_set_beside_the_baselines() -> None:
    baseline, other = said_by(Plain()), said_by(Lying())
    found = TeacherForcing(pair("llama").target, answers(baseline))
    assert found.sums(PROMPT, baseline) == {}
    sums = found.sums(PROMPT, other)
    mine, theirs = truth(PROMPT, other), truth(PROMPT, baseline)
    assert sums["scored_tokens"] == sums["baseline_scored_tokens"] == 12
    assert sums["target_agreed_tokens"] == int((mine.argmax(-1) == torch.tensor(other)).sum()) < 12
    assert sums["target_logprob"] == pytest.approx(float(mine.gather(-1, torch.tensor(other)[:, None]).sum()))
    assert sums["baseline_target_logprob"] == pytest.approx(float(theirs.amax(-1).sum()))
    assert sums["target_logprob"] < sums["baseline_target_logprob"]


def divergence(method: Method, answer: Sequence[int], request: DecodeRequest = REQUEST) -> Mapping[str, float]:
    return TeacherForcing(pair("llama").target, answers()).divergence(method, request, answer)


def test_the_divergence_of_a_sampled_answer_is_on_the_text_that_was_drawn() -> None:
    """At temperature 1, whatever the answer was drawn at; another seed would have drawn something else."""
    method, sampling = Own(1.0), Sampling(0.7, top_k=5)
    requests = [DecodeRequest(PROMPT, NEW_TOKENS, sampling, seed=seed) for seed in (3, 4)]
    answer = decode(method, pair("llama").target, requests[0]).token_ids
    logprobs = truth(PROMPT, answer)
    expected = float((logprobs.exp() * (logprobs - own(logprobs, 1.0).log_softmax(-1)))[1:].sum())
    assert divergence(method, answer, requests[0]) == {"kl_tokens": 12, "kl_nats": pytest.approx(expected)}
    assert divergence(method, answer, requests[1]) == {"kl_unrepeated_tokens": 12}


@pytest.mark.parametrize("favour", [0.0, 4.0])
def test_the_divergence_is_that_of_the_target_from_the_methods_own_distribution(favour: float) -> None:
    """With `favour` 0 every token is the target's, and the method is only less sure. The first token comes from the
    target's own prefill, where nothing diverges."""
    method = Own(favour)
    answer = said_by(method)
    assert (answer == said_by(Plain())) == (favour == 0.0)
    logprobs = truth(PROMPT, answer)
    expected = float((logprobs.exp() * (logprobs - own(logprobs, favour).log_softmax(-1)))[1:].sum())
    assert divergence(method, answer) == {"kl_tokens": 12, "kl_nats": pytest.approx(expected)}
    assert expected > 0.1


def test_a_token_that_the_target_cannot_say_adds_nothing_to_the_divergence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Vocabularies are padded with tokens of logit -inf, and 0 ln 0 is 0."""
    p = torch.tensor([[0.25, 0.75, 0.0]], dtype=torch.float64).log()
    monkeypatch.setattr("benchctl.measuring.teacher_forcing.logprobs", lambda *_: iter([p]))
    q = torch.tensor([[0.5, 0.25, 0.25]], dtype=torch.float64).log()
    expected = 0.25 * math.log(0.25 / 0.5) + 0.75 * math.log(0.75 / 0.25)
    assert kl_nats(pair("llama").target, PROMPT, [1], [q]) == pytest.approx(expected)


def test_an_answer_whose_divergence_is_not_finite_is_counted_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was left out without a word, so that the mean was over the better answers. A row takes no infinity."""
    method = Own(0.0)
    answer = said_by(method)
    certain = torch.full((1, 24), -torch.inf)
    certain[0, answer[0]] = 0.0
    monkeypatch.setattr("benchctl.measuring.teacher_forcing.own_logits", lambda *_: [certain] * len(answer))
    assert divergence(method, answer) == {"kl_infinite_tokens": 12}


@pytest.mark.parametrize("label", ["two_model", "prompt_lookup", "medusa[accept=typical]"])
def test_a_method_that_takes_its_tokens_from_the_target_has_no_distribution_of_its_own(label: str) -> None:
    models = pair("llama")
    method = prepared(label, models.target, models.draft)
    answer = said_by(method)
    with pytest.raises(NotItsOwn):
        own_logits(method, models.target, REQUEST, answer)
    assert divergence(method, answer) == {}


@pytest.mark.parametrize("label", ["early_exit[threshold=0.3]", "skip_decode"])
def test_methods_that_leave_layers_out_have_a_distribution_for_each_token(label: str) -> None:
    models = pair("llama")
    method = prepared(label, models.target, models.draft)
    answer = said_by(method)
    logits = own_logits(method, models.target, REQUEST, answer)
    assert logits is not None and [int(row.argmax()) for row in logits] == answer
    assert divergence(method, answer)["kl_nats"] > 0


def test_the_answer_is_given_again_under_the_limit_it_was_given_under() -> None:
    """An answer that ended early says nothing of the limit, and thresholds that decay look at that."""
    models = pair("llama")
    method = prepared("early_exit[threshold=0.6,decay=4]", models.target)
    text = decode(method, models.target, DecodeRequest(PROMPT, 40)).token_ids
    target = models.with_stops(text[4])
    answer = decode(method, target, DecodeRequest(PROMPT, 40)).token_ids
    assert len(answer) < 40 and own_logits(method, target, DecodeRequest(PROMPT, len(answer)), answer) is None
    assert TeacherForcing(target, answers()).divergence(method, DecodeRequest(PROMPT, 40), answer)["kl_tokens"] == len(
        answer
    )


def test_an_answer_that_is_not_repeated_has_no_distributions() -> None:
    assert own_logits(Lying(), pair("llama").target, REQUEST, said_by(Lying())) is None
    assert own_logits(Plain(), pair("llama").target, REQUEST, [*said_by(Plain())[:-1], 3]) is None


def test_the_same_answer_is_scored_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def counted(target: Target, prompt_ids: Sequence[int], answer: Sequence[int]) -> Likelihood:
        asked.append(len(answer))
        return Likelihood(1, 1, 0.0)

    monkeypatch.setattr("benchctl.measuring.teacher_forcing.likelihood", counted)
    found = TeacherForcing(pair("llama").target, answers([4]))
    for _ in range(3):
        found.sums(PROMPT, [2, 3])
    assert asked == [2, 1]


EVIDENCE = {"gap", "decided_at"}  # behind a verdict, not of the answer as a whole


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return Target.load(tiny_folder(tmp_path_factory.mktemp("target"), stop_ids=()), dtype="float64")


def test_a_row_has_the_sums_where_they_tell_something(target: Target, tmp_path: Path) -> None:
    """A lossy method's answer has both kinds, one that claims to be exact no divergence, an equal answer nothing; the
    baseline, warm-up and answers that were forced or profiled have none."""
    methods = {"plain": Plain(), "same": Plain(), "lying": Lying(), "own": Own(0.0)}
    run = Measurer(target, methods, "plain", DecodingConfig(4, Sampling()), FakeClock())
    run.begin()
    rows = {label: one(run, task(label)) for label in methods}
    assert rows["plain"].fidelity == rows["same"].fidelity == {}
    assert set(rows["own"].fidelity) == {"kl_tokens", "kl_nats"}
    assert {"scored_tokens", "target_agreed_tokens", "target_logprob"} < set(rows["lying"].fidelity)
    assert "kl_nats" not in rows["lying"].fidelity
    assert set(one(run, task("lying", repeat=-1)).fidelity) == EVIDENCE
    profiled = one(run, replace(task("lying"), mode="profile"))
    assert (profiled.error, profiled.verdict, set(profiled.fidelity)) == (None, "lossy", EVIDENCE)


def test_sampled_answers_are_not_scored_but_diverge(target: Target) -> None:
    """Drawn anew with the same seed they are the same, and each repeat has an answer of its own."""
    methods = {"plain": Plain(), "lying": Lying(), "own": Own(3.0)}
    run = Measurer(target, methods, "plain", DecodingConfig(4, Sampling(1.0)), FakeClock())
    run.begin()
    one(run, task("plain"))
    assert one(run, task("lying")).fidelity == {}
    rows = [one(run, task("own", repeat=repeat)) for repeat in (0, 1)]
    assert [set(row.fidelity) for row in rows] == [{"kl_tokens", "kl_nats"}] * 2
    assert rows[0].token_ids != rows[1].token_ids and rows[0].fidelity != rows[1].fidelity
