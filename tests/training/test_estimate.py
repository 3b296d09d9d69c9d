"""Estimates of training are held against real modules, torch's counter of operations and the allocator's own record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from click.testing import CliRunner
from fixtures_training import refused
from tiny import tiny_config, tiny_folder
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from benchctl.cli import main
from benchctl.decoding.model.target import Target, TargetInfo
from benchctl.decoding.modules.trainable import Lesson, Tally, Trainable
from benchctl.errors import UserError
from benchctl.methods.m2r2 import M2R2
from benchctl.training.data.packing import Batch
from benchctl.training.dry_run import Work, cost_of_step
from benchctl.training.estimate import GPUS, SHAPES, Estimate, config_of, estimate, render
from benchctl.training.modules.teacher import LessonMaker, ModuleObjective
from benchctl.training.optim import Optimizers, OptimizerSettings
from benchctl.training.options import TrainOptions

HEADS = 3
WORK = Work(32, 2, 256, torch.bfloat16, OptimizerSettings("adamw"))
OPTIONS = TrainOptions(data=(), out=Path(), model="ref-dense", row_tokens=32, micro_rows=2, batch_tokens=128)
PUBLISHED_PARAMETERS = {
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": 1_100_048_384,
    "meta-llama/Llama-3.2-1B": 1_235_814_400,
    "meta-llama/Llama-2-7b-hf": 6_738_415_616,
    "mistralai/Mistral-7B-v0.1": 7_241_732_096,
    "meta-llama/Llama-3.1-8B": 8_030_261_248,
}


class ThreeHeads(Trainable):
    """Three heads of two layers each, trained as Medusa's are."""

    def build(self, info: TargetInfo, lm_head: Tensor) -> nn.Module:
        width, vocabulary = info.hidden_size, info.vocabulary
        heads = [nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, vocabulary)) for _ in range(HEADS)]
        return nn.ModuleList(heads)

    def loss(self, module: nn.Module, lesson: Lesson) -> Tensor:
        assert isinstance(module, nn.ModuleList)
        return torch.stack([self._loss(head, lesson, ahead) for ahead, head in enumerate(module, start=2)]).sum()

    def _loss(self, head: nn.Module, lesson: Lesson, ahead: int) -> Tensor:
        labels = lesson.ahead(ahead)
        draft_logits = head(lesson.final).float().flatten(0, 1)
        losses = functional.cross_entropy(draft_logits, labels.tokens.flatten(), reduction="none")
        return (losses * labels.weights.flatten()).sum()

    def yardsticks(self, module: nn.Module, lesson: Lesson) -> Mapping[str, Tally]:
        return {}


class Choosy(ThreeHeads):
    """Its loss reads only the tokens that weigh something: how many those are, only their values tell."""

    def loss(self, module: nn.Module, lesson: Lesson) -> Tensor:
        return lesson.final[lesson.weights > 0].sum()


def small_config(**overrides: Any) -> Any:
    """Wide enough that weights and logits are most of the memory, as in a real target."""
    sizes = {"hidden_size": 64, "intermediate_size": 160, "vocab_size": 512, "head_dim": 16}
    return tiny_config("llama", **{**sizes, **overrides})


def real_target(config: Any) -> Any:
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)  # type: ignore[no-untyped-call]


def real_modules(target: Any) -> nn.Module:
    config = target.config
    sizes = (config.num_hidden_layers, config.hidden_size, config.vocab_size, 128, 64, 160, 32)
    info = TargetInfo("llama", *sizes, experts_per_token=0, is_encoder_decoder=False)
    return ThreeHeads().build(info, target.lm_head.weight)


def real_batch(work: Work) -> Batch:
    shape = (work.micro_rows, work.row_tokens)
    nothing = torch.zeros(shape, dtype=torch.int64)
    return Batch(nothing, torch.ones(shape), nothing.clone(), torch.arange(work.row_tokens).expand(shape))


def backward(objective: ModuleObjective, module: nn.Module, work: Work) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = objective(module, real_batch(work)) / work.pass_tokens
    loss.backward()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("name", SHAPES)
def test_the_published_shapes_have_the_published_numbers_of_parameters(name: str) -> None:
    config = config_of(name)
    with torch.device("meta"):
        model = real_target(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == PUBLISHED_PARAMETERS[name]


def test_parameters_and_weights_are_those_of_real_modules() -> None:
    cost = cost_of_step(ThreeHeads(), small_config(), WORK)
    target = real_target(small_config())
    modules = [*real_modules(target).parameters()]
    assert cost.target_parameters == sum(parameter.numel() for parameter in target.parameters())
    assert cost.module_parameters == sum(parameter.numel() for parameter in modules)
    assert cost.module_bytes == cost.gradient_bytes == 4 * cost.module_parameters
    assert cost.moment_bytes == pytest.approx(8 * cost.module_parameters, abs=4 * len(modules))


def test_muon_keeps_one_moment_where_adamw_keeps_two() -> None:
    muon = replace(WORK, optimizer=OptimizerSettings("muon"))
    costs = [cost_of_step(ThreeHeads(), small_config(), work) for work in (WORK, muon)]
    assert costs[1].moment_bytes == pytest.approx(costs[0].moment_bytes / 2, rel=0.02)


def test_operations_are_within_a_tenth_of_the_rule_of_two_and_six() -> None:
    config = small_config()
    cost = cost_of_step(ThreeHeads(), config, WORK)
    embeddings = 2 * config.vocab_size * config.hidden_size  # looked up, and the head: the lessons need neither
    products = 2 * (cost.target_parameters - embeddings)
    attention = 4 * config.num_hidden_layers * config.num_attention_heads * config.head_dim * WORK.row_tokens
    assert cost.target_flops == pytest.approx(products + attention, rel=0.1)
    assert cost.module_flops == pytest.approx(6 * cost.module_parameters, rel=0.1)


@pytest.mark.parametrize("family", ["llama", "gemma", "olmoe"])
def test_operations_agree_with_a_count_on_real_tensors(family: str) -> None:
    config = tiny_config(family)
    cost = cost_of_step(ThreeHeads(), config, WORK)
    target = real_target(config)
    objective = ModuleObjective(ThreeHeads(), LessonMaker(target, torch.device("cpu")))
    # torch's counter does not know the CPU's attention kernel, but it knows the products of the plain one.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        backward(objective, real_modules(target), WORK)
    counted = counter.get_total_flops() / WORK.pass_tokens
    assert cost.target_flops + cost.module_flops == pytest.approx(counted, rel=0.1)


@pytest.mark.parametrize("work", [WORK, replace(WORK, micro_rows=8), replace(WORK, batch_tokens=64)], ids=str)
def test_the_peak_is_what_the_allocator_of_a_real_run_records(work: Work) -> None:
    """Four passes a step or one; the estimate runs two at most, for more hold no more."""
    recorded = recorded_peak(work)
    assert cost_of_step(ThreeHeads(), small_config(), work).peak_bytes == pytest.approx(recorded, rel=0.02)


def recorded_peak(work: Work) -> int:
    """Most bytes that torch's CPU allocator had given out at once, in two optimiser steps on real tensors."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        target = real_target(small_config()).requires_grad_(False)
        module = real_modules(target)
        objective = ModuleObjective(ThreeHeads(), LessonMaker(target, torch.device("cpu")))
        optimizers = Optimizers(module, work.optimizer)
        for _ in range(2):
            for _ in range(work.passes):
                backward(objective, module, work)
            optimizers.clip(1.0)
            optimizers.step(1.0)
    held = peak = 0
    for event in record.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


def test_a_loss_that_needs_values_cannot_be_estimated() -> None:
    with pytest.raises(UserError, match="Choosy cannot be estimated.*train a few steps"):
        cost_of_step(Choosy(), small_config(), WORK)


def test_a_method_without_modules_cannot_be_estimated() -> None:
    with pytest.raises(UserError, match="'prompt_lookup' has nothing to train"):
        estimate(OPTIONS, "prompt_lookup")


def test_medusas_heads_are_counted_for_the_target_of_a_folder(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path)
    found = estimate(replace(OPTIONS, model=str(folder), steps=10), "medusa[heads=2]")
    config = config_of(str(folder))
    heads = 2 * config.hidden_size * (config.hidden_size + 1 + config.vocab_size)
    assert found.cost.module_parameters == heads
    assert found.work == replace(WORK, batch_tokens=128)
    assert found.tokens == 10 * 128


def test_an_embedded_name_is_known() -> None:
    assert config_of("ref-dense").model_type == "llama"


def test_time_is_operations_over_the_assumed_rate_and_memory_decides_what_fits() -> None:
    found = known_estimate()
    h100, a100, rtx_4090 = GPUS
    assert found.seconds(h100) == pytest.approx(1e6 * 14e9 / (0.5 * 989e12))
    assert found.seconds(rtx_4090) > found.seconds(a100) > found.seconds(h100)
    assert [found.fits(gpu) for gpu in GPUS] == [True, True, False]


def test_a_run_in_float32_is_timed_at_the_rate_of_float32() -> None:
    """The memory was that of float32 and the minutes those of bfloat16, fifteen times too few."""
    whole = known_estimate()
    found = replace(whole, work=replace(whole.work, dtype=torch.float32))
    assert found.seconds(GPUS[0]) == pytest.approx(1e6 * 14e9 / (0.5 * 67e12))
    assert "of its float32 peak" in render(found) and "of its bfloat16 peak" in render(whole)
    assert max(map(len, render(found).splitlines())) <= 80


@pytest.mark.parametrize(("dtype", "kept"), [("auto", torch.bfloat16), ("float32", torch.float32)])
def test_an_estimate_is_for_a_gpu_whatever_machine_makes_it(
    monkeypatch: pytest.MonkeyPatch, dtype: str, kept: torch.dtype
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    assert estimate(replace(OPTIONS, dtype=dtype), "medusa").work.dtype == kept


@pytest.mark.parametrize("length", ["--minutes", "--epochs"])
def test_a_length_that_no_estimate_can_turn_into_tokens_is_refused(length: str) -> None:
    told = refused("train", "medusa", "--model", "ref-dense", "--estimate", length, 2)
    assert f"cannot tell how many tokens {length} are; give --steps" in told


def test_the_text_is_narrow_and_says_that_it_is_computed() -> None:
    text = render(known_estimate())
    assert "computed from the shapes of tensors, not measured" in text
    assert max(map(len, text.splitlines())) <= 80
    assert "peak                                                                    30.00 GB" in text
    assert "RTX 4090 24 GB                             too small" in text


def known_estimate() -> Estimate:
    """Round numbers: 30 GB, 14 GFLOP a token, a million tokens, half of the peak rate."""
    cost = cost_of_step(ThreeHeads(), small_config(), WORK)
    cost = replace(cost, peak_bytes=30_000_000_000, target_flops=10e9, module_flops=4e9)
    return Estimate("medusa", "meta-llama/Llama-3.1-8B", WORK, cost, 1_000_000, 0.5)


def test_the_command_needs_a_model_but_neither_data_nor_an_output_folder(tmp_path: Path) -> None:
    folder = str(tiny_folder(tmp_path / "small"))
    shape = ["--row-tokens", "16", "--micro-rows", "1", "--batch-tokens", "16", "--steps", "3"]
    done = CliRunner().invoke(main, ["train", "medusa", "--model", folder, *shape, "--estimate"])
    assert done.exit_code == 0, done.output
    assert f"medusa on {folder}" in done.output
    assert "48 tokens" in done.output
    refused = CliRunner().invoke(main, ["train", "medusa", "--estimate"])
    assert "Missing option '--model'" in refused.output


def test_the_adapters_of_m2r2_are_counted_with_the_layers_that_they_pass() -> None:
    """A pass through half of the layers costs less than the whole target's, forward and backward together more."""
    cost = cost_of_step(M2R2(gates="1"), small_config(), WORK)
    module = M2R2(gates="1").build(Target(real_target(small_config()), None).info, torch.empty(512, 64))
    assert cost.module_parameters == sum(parameter.numel() for parameter in module.parameters())
    assert 0 < cost.module_flops < 6 * cost.target_flops


def test_layers_that_modules_pass_are_told_apart_from_moments() -> None:
    """Copies of the fused products were once counted as the optimiser's."""
    cost = cost_of_step(M2R2(gates="1"), small_config(), WORK)
    assert cost.moment_bytes == pytest.approx(8 * cost.module_parameters, rel=0.01)
    products = 2 * (64 * (64 + 2 * 32) + 64 * 320)  # queries, keys and values; gate and up; in bfloat16
    assert products <= cost.layer_bytes < 1.2 * products
    assert cost_of_step(ThreeHeads(), small_config(), WORK).layer_bytes == 0
