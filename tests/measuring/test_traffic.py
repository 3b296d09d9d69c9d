"""What a step reads, against a count over the model's own parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import tiny_model
from tiny_encoder import random_folder

from benchctl.decoding.model.target import Target
from benchctl.measuring.run import traffic_of


def read_of(model: Any, share: float = 1.0) -> int:
    """Bytes of all parameters but the embedding, of experts a share; a tied head is read, being the embedding."""
    tied = model.lm_head.weight is model.get_input_embeddings().weight
    assert tied == (model.config.tie_word_embeddings is True)
    return sum(
        round(parameter.nbytes * (share if "experts" in name else 1))
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if "embed_tokens" not in name
    )


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "llama_biases", "gemma", "olmoe"])
def test_a_step_reads_every_weight_but_the_embedding_and_of_experts_those_a_token_goes_to(family: str) -> None:
    model = tiny_model(family)
    config = model.config
    share = config.num_experts_per_tok / config.num_experts if family == "olmoe" else 1.0
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    cache_bytes = config.num_hidden_layers * 2 * config.num_key_value_heads * head_dim * 4
    assert traffic_of(Target(model, None)) == (read_of(model, share), cache_bytes)
    assert (share < 1) == (family == "olmoe")


def test_half_as_wide_numbers_are_half_as_many_bytes() -> None:
    wide, narrow = (traffic_of(Target(tiny_model("llama", dtype=dt), None)) for dt in (torch.float32, torch.bfloat16))
    assert wide == (2 * narrow[0], 2 * narrow[1])


def test_traffic_is_unknown_where_the_cache_does_not_grow_with_the_text(tmp_path: Path) -> None:
    assert traffic_of(Target(tiny_model("mistral_window"), None)) == (0, 0)
    assert traffic_of(Target.load(random_folder(tmp_path))) == (0, 0)
