"""What a step reads, against a count over the model's own parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import tiny_model
from tiny_encoder import random_folder

from benchctl.decoding.model.target import Target
from benchctl.measuring.run import Traffic, traffic_of


def read_of(model: Any, share: float = 1.0) -> int:
    """Bytes of all parameters but the embedding, of experts a share; a tied head is read, being the embedding."""
    found = 0
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if "embed_tokens" in name:
            continue
        found += round(parameter.nbytes * (share if "experts" in name else 1))
    tied = model.lm_head.weight is model.get_input_embeddings().weight
    assert tied == (model.config.tie_word_embeddings is True)
    return found


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "llama_biases", "gemma"])
def test_a_dense_step_reads_every_weight_but_the_embedding(family: str) -> None:
    model = tiny_model(family)
    found = traffic_of(Target(model, None))
    assert found.step_bytes == read_of(model)
    config = model.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    assert found.cache_token_bytes == config.num_hidden_layers * 2 * config.num_key_value_heads * head_dim * 4


def test_of_experts_a_token_reads_those_it_goes_to() -> None:
    model = tiny_model("olmoe")
    share = model.config.num_experts_per_tok / model.config.num_experts
    assert share < 1
    assert traffic_of(Target(model, None)).step_bytes == read_of(model, share)


def test_half_as_wide_numbers_are_half_as_many_bytes() -> None:
    wide, narrow = (
        traffic_of(Target(tiny_model("llama", dtype=dtype), None)) for dtype in (torch.float32, torch.bfloat16)
    )
    assert (wide.step_bytes, wide.cache_token_bytes) == (2 * narrow.step_bytes, 2 * narrow.cache_token_bytes)


def test_where_the_cache_costs_otherwise_nothing_is_said(tmp_path: Path) -> None:
    assert traffic_of(Target(tiny_model("mistral_window"), None)) == Traffic(0, 0)
    assert traffic_of(Target.load(random_folder(tmp_path))) == Traffic(0, 0)
