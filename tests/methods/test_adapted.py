"""Low-rank adapters on the target's layers: merged, beside, in texts; and the target, which stays as it is."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest
import torch
from oracles import Naive, in_float64
from plain_depths import with_adapters
from runs import LAYERS, pair, prompt_of, run
from target_batches import batch_of
from tiny import tiny_model, tiny_target
from torch import Tensor
from untrained import untrained

from benchctl.decoding.kv.stream import Stream
from benchctl.decoding.model.target import Target
from benchctl.decoding.modules.adapters import AdaptedTexts, Adapters, LayerAdapter, agreements
from benchctl.decoding.modules.exits import AdapterSettings
from benchctl.decoding.modules.trainable import TrainingBatch
from benchctl.methods.skip_decode import SkipDecode
from benchctl.training.data.packing import Batch
from benchctl.training.modules.frozen import BatchMaker

FAMILIES = ("llama", "qwen3", "mistral_window", "llama_biases")
SETTINGS = SkipDecode(rank=5, alpha=7.0)


def adapters_of(target: Target) -> Adapters:
    """Untrained ones that change much."""
    module = untrained(SETTINGS, target)
    assert isinstance(module, Adapters)
    return module


@torch.inference_mode()
def logits_of(target: Target, text: list[int]) -> Tensor:
    stream = Stream(target, len(text))
    stream.push(text)
    stream.advance()
    return stream.logits()


@pytest.mark.parametrize("family", FAMILIES)
def test_merged_layers_are_those_of_the_sums(family: str) -> None:
    models, text = pair(family), prompt_of(13)
    adapters = adapters_of(models.target).double()
    merged = Naive(with_adapters(models.model, adapters))
    expected = merged.logits(merged.states(text)[-1])
    found = logits_of(adapters.merge(models.target), text)
    assert (found - expected).abs().max() < 1e-10
    assert (found - logits_of(models.target, text)).abs().max() > 1e-2


@pytest.mark.parametrize("family", [*FAMILIES, "mixtral", "phi3", "olmoe"])
def test_merged_layers_and_layers_beside_adapters_say_the_same(family: str) -> None:
    """For a float32 batch to the digits of its states; experts have no adapters, their attention has."""
    models, texts = pair(family), [prompt_of(9), prompt_of(4, 1)]
    adapters = adapters_of(models.target)
    batch = batch_of(models.naive, texts)
    beside, state = AdaptedTexts(adapters, batch), batch.states[0]
    with torch.no_grad():
        for index in range(LAYERS):
            state = beside.through(index, state)
        said = batch.head(batch.norm(state))
    view = adapters.double().merge(models.target)
    for row, text in enumerate(texts):
        torch.testing.assert_close(said[row, : len(text)], logits_of(view, text), rtol=1e-3, atol=1e-3)


def test_fresh_adapters_change_nothing() -> None:
    target, text = pair("llama").target, prompt_of(13)
    fresh = SETTINGS.build(target.info, target.lm_head.weight)
    assert isinstance(fresh, Adapters)
    assert torch.equal(logits_of(fresh.double().merge(target), text), logits_of(target, text))


def fingerprint(target: Target) -> str:
    """Of every weight that decoding reads, in whichever layout it is held."""
    digest = hashlib.sha256()
    for tensor in weights_of(target):
        digest.update(tensor.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def weights_of(target: Target) -> Iterator[Tensor]:
    yield from (target.embedding, target.lm_head.weight, target.final_norm.gain)
    for block in target.blocks:
        yield from (block.attention.qkv.weight, block.attention.out.weight, *block.mlp.weights)
        yield from (block.attention_norm.gain, block.mlp_norm.gain)


@pytest.mark.parametrize("label", ["skip_decode", "mixture_of_depths"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_target_that_others_decode_on_is_never_written_to(label: str, dtype: torch.dtype) -> None:
    target = tiny_target("llama", layers=4, dtype=dtype)
    blocks, before = list(target.blocks), fingerprint(target)
    alone = run("autoregressive", target, prompt_of(13), 20)
    run(label, target, prompt_of(13), 20)
    assert fingerprint(target) == before
    assert all(one is other for one, other in zip(blocks, target.blocks, strict=True))
    assert run("autoregressive", target, prompt_of(13), 20).token_ids == alone.token_ids


def test_a_view_shares_all_but_its_layers() -> None:
    target = pair("llama").target
    view = target.with_blocks(target.blocks[:2])
    assert (view.layers, target.layers) == (2, LAYERS)
    assert view.lm_head is target.lm_head and view.embedding is target.embedding


def two_documents() -> Batch:
    tokens = torch.tensor([[*prompt_of(6), *prompt_of(5, 1), 0]])
    documents = torch.tensor([[0] * 6 + [1] * 5 + [-1]])
    positions = torch.tensor([[*range(6), *range(5), 0]])
    return Batch(tokens, (documents >= 0).float(), documents, positions)


@torch.no_grad()
def test_documents_in_one_row_do_not_see_each_other() -> None:
    model = tiny_model("llama", layers=LAYERS, vocab_size=24)
    adapters = adapters_of(Target(model, None))
    together = last_state(adapters, BatchMaker(model, torch.device("cpu"))(two_documents()))
    naive = Naive(in_float64(model.double()))
    for start, text in ((0, prompt_of(6)), (6, prompt_of(5, 1))):
        alone = last_state(adapters, batch_of(naive, [text]))
        torch.testing.assert_close(together[0, start : start + len(text)], alone[0], rtol=1e-4, atol=1e-4)


def last_state(adapters: Adapters, batch: TrainingBatch, absent: Tensor | None = None) -> Tensor:
    texts, state = AdaptedTexts(adapters, batch), batch.states[0]
    for index in range(len(batch.states) - 1):
        state = texts.through(index, state, absent)
    return state


@torch.no_grad()
def test_absent_tokens_are_seen_by_nobody_but_themselves() -> None:
    models, text, other = pair("llama"), prompt_of(9), prompt_of(9)
    other[4] = (other[4] + 1) % 24
    adapters = adapters_of(models.target)
    absent = torch.arange(9)[None] == 4
    for hidden, equal in ((absent, True), (None, False)):
        one, two = (last_state(adapters, batch_of(models.naive, [some]), hidden)[0] for some in (text, other))
        assert torch.allclose(one[5:], two[5:], atol=1e-5) == equal
        assert torch.allclose(one[:4], two[:4], atol=1e-5) and not torch.allclose(one[4], two[4], atol=1e-3)


def test_agreement_is_with_the_likeliest_token_of_the_target() -> None:
    batch = batch_of(pair("llama").naive, [prompt_of(9)])
    assert agreements(batch, batch.states[-1]).all()
    assert not agreements(batch, -batch.states[-1]).any()


def test_half_precision_is_added_up_in_float32() -> None:
    """1 + (2^-8 + 2^-17) is nearer to 1 + 2^-7 than to 1; in bfloat16 the bracket would be 2^-8, and the sum a tie."""
    target = tiny_target("llama", layers=1, dtype=torch.bfloat16)
    adapter = LayerAdapter(target.info, AdapterSettings("lora", 2, 2.0), target.device).bfloat16()
    adapter.out.down.weight.data[:, 0] = 1.0
    adapter.out.up.weight.data[0] = torch.tensor([2.0**-8, 2.0**-17])
    block = target.blocks[0]
    block.attention.out.weight[0, 0] = 1.0
    merged = adapter.merged(block, fast=False)
    assert merged.attention.out.weight.dtype == torch.bfloat16
    assert float(merged.attention.out.weight[0, 0]) == 1 + 2.0**-7
    assert merged.attention.qkv.weight.equal(block.attention.qkv.weight)
