"""A real model folder that says one thing whatever it is asked: each token is followed by the one it was made to."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import transformers
from tiny import tiny_folder


def parrot_folder(path: Path, reply: str, *, context_tokens: int = 2048) -> Path:
    """A model whose layers add nothing, so that its head sees the last token alone, and answers what follows it."""
    tiny_folder(path, max_position_embeddings=context_tokens)
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(path)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(path)
    said = tokenizer.encode(reply, add_special_tokens=False)
    assert len(set(said)) == len(said), "each token of a reply has one that follows it"
    chain = [tokenizer.convert_tokens_to_ids("<|assistant|>"), *said, tokenizer.eos_token_id]
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.lm_head.weight.zero_()
        for place, (token, following) in enumerate(pairwise(chain)):
            model.model.embed_tokens.weight[token] = torch.eye(model.config.hidden_size)[place]
            model.lm_head.weight[following, place] = 10.0
    model.save_pretrained(path)
    return path
