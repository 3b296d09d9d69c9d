"""What is learned and what is measured, against hand-made logits and transformers' own losses."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_training import VOCABULARY, CountingRows, tiny_data, tiny_settings
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, OlmoeConfig, OlmoeForCausalLM

from benchctl.decoding.modules.trainable import Tally, TrainingBatch
from benchctl.training.data.packing import Batch
from benchctl.training.modules.frozen import BatchMaker
from benchctl.training.modules.objective import Distillation, Objective, logits_of, loss_weights, measure_held_out
from benchctl.training.trainer import Trainer
from reference.mixture import MixtureLoss
from reference.objectives import LanguageModel

BYTES, CPU = torch.arange(VOCABULARY), torch.device("cpu")
SIZES: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}


class Given(nn.Module):
    """Chooses these tokens, whatever is read: their logits are 1, the others 0."""

    config = SimpleNamespace(_attn_implementation="sdpa")

    def __init__(self, choices: list[int]) -> None:
        super().__init__()
        self._logits = functional.one_hot(torch.tensor(choices), 3).float()

    def forward(self, input_ids: Tensor, **_: object) -> object:
        return SimpleNamespace(logits=self._logits.expand(len(input_ids), -1, -1))


def given(choices: list[int]) -> Callable[[Batch], TrainingBatch]:
    """A target that chooses so: its head gives the states themselves, which are logits."""

    def seen(batch: Batch) -> TrainingBatch:
        logits = Given(choices)(batch.tokens).logits
        unused: Any = None
        texts = (batch.tokens, batch.weights, batch.documents, batch.positions)
        return TrainingBatch(*texts, [], logits, norm=unused, head=lambda rows: rows, layer=unused, rotary=unused)

    return seen


RIGHT, WRONG = -math.log(math.e / (math.e + 2)), -math.log(1 / (math.e + 2))  # nats of a token chosen or not


def row(tokens: list[int], weights: list[float] | None = None, documents: list[int] | None = None) -> Batch:
    documents = documents or [0] * len(tokens)
    positions = [documents[:index].count(number) for index, number in enumerate(documents)]
    return Batch(
        torch.tensor([tokens]),
        torch.tensor([weights or [1.0] * len(tokens)]),
        torch.tensor([documents]),
        torch.tensor([positions]),
    )


def llama(seed: int = 0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, intermediate_size=32, **SIZES))


def olmoe(layers: int = 2) -> OlmoeForCausalLM:
    torch.manual_seed(0)
    config = OlmoeConfig(
        vocab_size=VOCABULARY,
        intermediate_size=16,
        num_experts=4,
        num_experts_per_tok=2,
        router_aux_loss_coef=0.5,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        **{**SIZES, "num_hidden_layers": layers},
    )
    return OlmoeForCausalLM(config)


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    """Losses are compared as numbers here; `trained` asks for gradients itself."""
    with torch.no_grad():
        yield


def trained(module: nn.Module, objective: Objective, folder: Path, steps: int = 60) -> dict[str, Tally]:
    settings = replace(tiny_settings(steps=steps, optimizer="adamw"), held_out_steps=1000)
    with torch.enable_grad():
        return Trainer(module, objective, tiny_data(), settings, folder, lambda: 0.0).train()["unit"]


def test_the_first_token_of_a_document_and_padding_have_no_loss() -> None:
    batch = row([1, 1, 1, 1, 0], weights=[1, 1, 1, 1, 0], documents=[0, 0, 1, 1, -1])
    assert loss_weights(batch).tolist() == [[1, 0, 1, 0]]


def test_a_language_model_is_measured_per_token_and_per_byte() -> None:
    """Tokens 0 0 2 read; only the last two count, of one and of three bytes; the first is guessed, the second not."""
    measured = LanguageModel(torch.tensor([1, 2, 3])).measure(Given([0, 0, 2]), row([0, 0, 2]))
    assert measured["nats_per_token"].share == pytest.approx((RIGHT + WRONG) / 2)
    assert measured["bits_per_byte"].share == pytest.approx((RIGHT + WRONG) / math.log(2) / 4)
    assert measured["top1"] == Tally(1, 2)
    assert measured["loss"].share == pytest.approx((RIGHT + WRONG) / 2)


def test_the_loss_weighs_tokens_and_only_those_of_full_weight_are_measured() -> None:
    model, batch = LanguageModel(torch.ones(3)), row([0, 0, 2], weights=[1.0, 1.0, 0.5])
    assert float(model(Given([0, 0, 2]), batch)) == pytest.approx(RIGHT + 0.5 * WRONG)
    measured = model.measure(Given([0, 0, 2]), batch)
    assert (measured["top1"], measured["loss"].of) == (Tally(1, 1), 1.5)


def test_what_no_held_out_token_tells_is_not_told_of() -> None:
    """skip_decode's agreement at depth 8 stood as 0.000 where no held-out text reached that depth."""

    def measure(module: nn.Module, batch: Batch) -> dict[str, Tally]:
        first = float(batch.tokens[0, 0])
        return {"loss": Tally(0, 0), "depth_8": Tally(0, 0), "depth_9": Tally(first, 2), "never_right": Tally(0, 3)}

    measured = measure_held_out(nn.Identity(), [row([0, 1]), row([1, 0])], measure)
    assert measured == {"loss": Tally(0, 0), "depth_9": Tally(1, 4), "never_right": Tally(0, 6)}


def test_a_distilled_model_is_measured_by_how_often_it_agrees_with_its_target() -> None:
    """What follows the last token is not asked."""
    measured = Distillation(given([0, 2, 2]), torch.ones(3)).measure(Given([0, 1, 2]), row([1, 1, 1]))
    assert measured["agreement"] == measured["top1"] == Tally(1, 2)


def test_a_target_distilled_into_itself_costs_nothing() -> None:
    model = llama()
    batch = CountingRows(16).rows(0, 2)
    assert float(Distillation(BatchMaker(model, CPU), BYTES)(llama(), batch)) == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize("ids", [None, [0, 2, 3, 5]])
def test_the_loss_of_a_draft_with_exits_is_the_sum_of_theirs_and_its_last_layer_s(ids: list[int] | None) -> None:
    """By hand: one norm and one head read the states after layers 1, 2 and 3; token by token against the target."""
    target, batch = llama(), row([1, 5, 2, 0, 3, 4], weights=[1, 1, 0.5, 1, 1, 0], documents=[0, 0, 0, 1, 1, -1])
    torch.manual_seed(1)
    draft = LlamaForCausalLM(
        LlamaConfig(vocab_size=VOCABULARY, intermediate_size=32, **{**SIZES, "num_hidden_layers": 3})
    )
    maker = BatchMaker(target, CPU)
    if ids is not None:
        maker.draft_over(torch.tensor(ids))
    objective = Distillation(maker, BYTES, exits=(1, 2))
    expected, agreed = 0.0, {1: 0, 2: 0, 3: 0}
    for start, end in ((0, 3), (3, 5)):  # the documents, read alone
        tokens = batch.tokens[:, start:end]
        wanted = target(tokens).logits[0].softmax(-1)
        states, last = draft.model(tokens, output_hidden_states=True).hidden_states, draft(tokens).logits
        for layer in (1, 2, 3):
            logits = last if layer == 3 else draft.lm_head(draft.model.norm(states[layer]))
            for place in range(end - start - 1):
                p, weight = wanted[place], float(batch.weights[0, start + place + 1])
                scored = list(range(VOCABULARY)) if ids is None else ids
                q = logits[0, place, scored].softmax(-1)
                p = p[scored]
                expected += weight * float((p * (p / p.sum() / q).log()).sum())
                right = scored[int(q.argmax())] == int(wanted[place].argmax())
                agreed[layer] += right * (weight == 1)
    assert float(objective(draft, batch)) == pytest.approx(expected, rel=1e-4)
    measured = objective.measure(draft, batch)
    assert measured["loss"].right == pytest.approx(expected, rel=1e-4) and measured["loss"].of == 2.5
    found = [measured[name] for name in ("exit_1_agreement", "exit_2_agreement", "agreement")]
    assert found == [Tally(agreed[layer], 2) for layer in (1, 2, 3)]


@pytest.mark.slow
def test_a_draft_learns_to_agree_with_a_target_that_stands_still(tmp_path: Path) -> None:
    target = llama().train()
    target.lm_head.weight.mul_(20)
    before = {name: parameter.clone() for name, parameter in target.named_parameters()}
    objective, batches = Distillation(BatchMaker(target, CPU), BYTES), [CountingRows(16).rows(0, 30)]
    draft = llama(seed=1)
    start = measure_held_out(draft, batches, objective.measure)
    trained(draft, objective, tmp_path)
    end = measure_held_out(draft, batches, objective.measure)
    assert end["loss"].share < 0.5 * start["loss"].share
    assert end["agreement"].share > max(0.5, 2 * start["agreement"].share)
    assert not target.training
    assert all(parameter.grad is None for parameter in target.parameters())
    assert all(torch.equal(before[name], parameter) for name, parameter in target.named_parameters())


def test_a_mixture_of_experts_has_the_loss_that_transformers_gives_it() -> None:
    """On one document without padding and with one layer, where transformers' own mask and mean are right too."""
    model = olmoe(layers=1)
    batch = row([1, 5, 7, 2, 8, 4])
    theirs = model(input_ids=batch.tokens, labels=batch.tokens, output_router_logits=True)
    ours = MixtureLoss(BYTES, share=0.5)(model, batch) / loss_weights(batch).sum()
    assert float(theirs.aux_loss) > 0
    assert float(ours) == pytest.approx(float(theirs.loss), rel=1e-5)
    assert torch.allclose(logits_of(model, batch), theirs.logits, atol=1e-5)


def test_padding_does_not_count_as_work_of_the_experts() -> None:
    model, objective = olmoe(), MixtureLoss(BYTES, share=0.5)
    padded = row([1, 5, 7, 0, 0, 0], weights=[1, 1, 1, 0, 0, 0], documents=[0, 0, 0, -1, -1, -1])
    assert float(objective(model, padded)) == pytest.approx(float(objective(model, row([1, 5, 7]))), rel=1e-5)


def test_the_balance_loss_spreads_the_work_of_the_experts() -> None:
    """Tokens that are all the same go to the same two of four experts."""
    model, objective, batch = olmoe(), MixtureLoss(BYTES, share=1.0), row([5] * 8)
    for layer in model.model.layers:
        layer.mlp.gate.weight.mul_(10)
    assert objective.measure(model, batch)["imbalance"].share > 1.3
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    with torch.enable_grad():
        for _ in range(40):
            optimizer.zero_grad()
            objective(model, batch).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    assert objective.measure(model, batch)["imbalance"].share < 1.2
