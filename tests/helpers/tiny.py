"""Small random models of every family, and a whole model folder with a tokenizer, for tests that need no download.

``from tiny import tiny_target``: pytest puts this folder on the path.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, PreTrainedTokenizerFast

from benchctl.conformance.random_models import LLAMA, MIXTRAL, random_config, random_model
from benchctl.decoding.model.target import Target
from benchctl.decoding.model.tokenizer import TargetTokenizer

VOCABULARY = 96

_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [2.0, 3.0, 4.0, 5.0],
    "original_max_position_embeddings": 64,
}

_EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_SHARED_EXPERT = {**_EXPERTS, "shared_expert_intermediate_size": 40}
_GPT_OSS = {
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "intermediate_size": 24,
    "swiglu_limit": 1.0,  # half of the values lie beyond it
    "sliding_window": 6,
    "rope_parameters": {**_YARN, "truncate": False},
}
_SLIDING_FIRST = ["sliding_attention", "full_attention", "sliding_attention"]
# Linear scaling on one of the two types of layers, and two bases.
_TWO_TABLES = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    "full_attention": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
}
_WINDOWS = {"layer_types": _SLIDING_FIRST, "sliding_window": 6}
# Bounds that nearly all scores and logits reach; a scale of scores that is not that of the heads.
_CAPS = {"attn_logit_softcapping": 0.3, "final_logit_softcapping": 4.0, "query_pre_attn_scalar": 20}
_MULTIPLIERS = {
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.6,
    "residual_multiplier": 0.45,
    "logits_scaling": 0.7,
}

# Name -> family and the settings it adds; those with the name of their family are the plain families.
_KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", LLAMA),
    "mistral": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
    "phi3": ("phi3", {}),
    "gemma": ("gemma", {"head_dim": 8, "num_key_value_heads": 1}),
    "olmoe": ("olmoe", {"num_experts": 6, "num_experts_per_tok": 2}),
    "mixtral": ("mixtral", MIXTRAL),
    "qwen3_moe": ("qwen3_moe", {**_EXPERTS, "head_dim": 16, "norm_topk_prob": True}),
    "qwen2_moe": ("qwen2_moe", _SHARED_EXPERT),
    "gpt_oss": ("gpt_oss", {**_GPT_OSS, "head_dim": 16}),
    "seed_oss": ("seed_oss", {"head_dim": 16}),
    "arcee": ("arcee", {"head_dim": 8}),
    "ernie4_5": ("ernie4_5", {"head_dim": 16}),
    "smollm3": ("smollm3", {"no_rope_layers": [1, 0, 1]}),
    "granite": ("granite", _MULTIPLIERS),
    "olmo2": ("olmo2", {}),
    "olmo3": ("olmo3", {**_WINDOWS, "rope_parameters": _TWO_TABLES}),
    "glm4": ("glm4", {"head_dim": 16}),
    "exaone4": ("exaone4", _WINDOWS),
    "gemma2": ("gemma2", {"head_dim": 16, **_WINDOWS, **_CAPS}),
    "gemma3_text": ("gemma3_text", {"head_dim": 16, **_WINDOWS, "rope_parameters": _TWO_TABLES}),
    "gpt_neox": ("gpt_neox", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}),
    "phi": ("phi", {"initializer_range": 0.5}),
    "gpt2": ("gpt2", {"n_inner": 48, "initializer_range": 0.5}),
    "opt": ("opt", {"ffn_dim": 48, "initializer_range": 0.5}),
    "gpt2_scaled": ("gpt2", {"scale_attn_by_inverse_layer_idx": True, "tie_word_embeddings": False}),
    "gpt2_unscaled": ("gpt2", {"scale_attn_weights": False, "activation_function": "relu", "initializer_range": 0.2}),
    "opt_bare": (
        "opt",
        {"ffn_dim": 40, "initializer_range": 0.5, "enable_bias": False, "layer_norm_elementwise_affine": False}
        | {"tie_word_embeddings": False},
    ),
    "gpt_neox_sequential": ("gpt_neox", {"use_parallel_residual": False, "attention_bias": False}),
    "gpt_neox_whole": ("gpt_neox", {"rotary_pct": 1.0, "tie_word_embeddings": True, "hidden_act": "gelu_new"}),
    "phi_norms": ("phi", {"qk_layernorm": True, "partial_rotary_factor": 1.0, "tie_word_embeddings": True}),
    "llama_biases": ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "llama_rope3": ("llama", {"rope_parameters": _LLAMA3}),
    "mistral_window": ("mistral", {"sliding_window": 6, "head_dim": 16}),
    "qwen2_window": ("qwen2", {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}),
    "qwen3_biases": ("qwen3", {"head_dim": 8, "attention_bias": True}),
    "phi3_partial": ("phi3", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}),
    "phi3_longrope": ("phi3", {"rope_parameters": _LONGROPE, "original_max_position_embeddings": 64}),
    "phi3_window": ("phi3", {"sliding_window": 6}),
    "gemma_biases": ("gemma", {"head_dim": 16, "attention_bias": True}),
    "olmoe_clipped": (
        "olmoe",
        {
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "intermediate_size": 24,
            "clip_qkv": 0.7,
            "norm_topk_prob": True,
            "attention_bias": True,
        },
    ),
    "mixtral_window": (
        "mixtral",
        {"num_local_experts": 4, "num_experts_per_tok": 1, "intermediate_size": 24, "sliding_window": 6},
    ),
    "qwen3_moe_dense_first_window": (
        "qwen3_moe",
        {**_EXPERTS, "head_dim": 8, "mlp_only_layers": [0], "use_sliding_window": True, "sliding_window": 6},
    ),
    "qwen3_moe_every_second": ("qwen3_moe", {**_EXPERTS, "decoder_sparse_step": 2, "attention_bias": True}),
    "qwen3_moe_dense": ("qwen3_moe", {**_EXPERTS, "mlp_only_layers": [0, 1, 2], "tie_word_embeddings": True}),
    "qwen2_moe_dense_second_window": (
        "qwen2_moe",
        {
            **_SHARED_EXPERT,
            "mlp_only_layers": [1],
            "use_sliding_window": True,
            "sliding_window": 6,
            "norm_topk_prob": True,
            "qkv_bias": False,
            "tie_word_embeddings": True,
        },
    ),
    "gpt_oss_biasless": (
        "gpt_oss",
        {
            **_GPT_OSS,
            "num_experts_per_tok": 1,
            "head_dim": 8,
            "num_key_value_heads": 1,
            "attention_bias": False,
            "sliding_window": 9,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
            "tie_word_embeddings": True,
        },
    ),
    "seed_oss_biases": (
        "seed_oss",
        {"head_dim": 8, "attention_out_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    "arcee_biases": (
        "arcee",
        {
            "head_dim": 16,
            "attention_bias": True,
            "mlp_bias": True,
            "rope_parameters": _YARN,
            "tie_word_embeddings": True,
        },
    ),
    "ernie4_5_biases": ("ernie4_5", {"head_dim": 8, "use_bias": True, "tie_word_embeddings": False}),
    "smollm3_window": (
        "smollm3",
        {"use_sliding_window": True, **_WINDOWS, "no_rope_layers": [1, 1, 0], "tie_word_embeddings": False},
    ),
    "granite_tied": (
        "granite",
        {**_MULTIPLIERS, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    "olmo2_biases": ("olmo2", {"attention_bias": True, "rope_parameters": _LLAMA3, "num_key_value_heads": 4}),
    "olmo3_yarn": (
        "olmo3",
        {**_WINDOWS, "rope_parameters": {**_TWO_TABLES, "full_attention": _YARN}, "tie_word_embeddings": True},
    ),
    "glm4_tied": ("glm4", {"head_dim": 8, "attention_bias": False, "tie_word_embeddings": True}),
    "exaone4_full": (
        "exaone4",
        {"sliding_window": None, "layer_types": ["full_attention"] * 3, "tie_word_embeddings": True},
    ),
    "gemma2_uncapped": (
        "gemma2",
        {
            "head_dim": 8,
            **_WINDOWS,
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            "attention_bias": True,
            "tie_word_embeddings": False,
        },
    ),
    "gemma3_text_full": (
        "gemma3_text",
        {"head_dim": 8, "layer_types": ["full_attention"] * 3, "final_logit_softcapping": 4.0},
    ),
}

FAMILIES = tuple(name for name, (family, _) in _KINDS.items() if name == family)
VARIANTS = tuple(_KINDS)


def tiny_config(family: str, *, layers: int = 3, **overrides: Any) -> Any:
    """Configuration of a family or of one of the other VARIANTS; ``overrides`` are fields of transformers' config."""
    kind, settings = _KINDS[family]
    by_layer = {name: value for name, value in settings.items() if isinstance(value, list)}
    repeated = {name: [value[layer % len(value)] for layer in range(layers)] for name, value in by_layer.items()}
    fields = {"vocab_size": VOCABULARY, **settings, **repeated, "num_hidden_layers": layers, **overrides}
    return random_config(kind, **fields)


def tiny_model(
    family: str, *, seed: int = 0, layers: int = 3, dtype: torch.dtype = torch.float32, **config_overrides: Any
) -> Any:
    """A random transformers model of a family or of one of the other VARIANTS."""
    return random_model(tiny_config(family, layers=layers, **config_overrides), seed, dtype)


def tiny_target(
    family: str = "llama",
    *,
    seed: int = 0,
    layers: int = 3,
    dtype: torch.dtype = torch.float64,
    stop_ids: frozenset[int] = frozenset(),
    **config_overrides: Any,
) -> Target:
    """The same model as a Target. It cannot read or write text; with ``stop_ids`` it knows where answers end."""
    model = tiny_model(family, seed=seed, layers=layers, dtype=dtype, **config_overrides)
    tokenizer = TargetTokenizer(None, model.config, stop_ids) if stop_ids else None
    return Target(model, tokenizer)


CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_TEXT = (
    "Once upon a time there was a little girl named Lily. She liked to play with her red ball in the park.",
    "One day Tom said to his friend: what is the sum of 12 and 30? The friend did not know, so they asked a teacher.",
)


def tiny_tokenizer(*, chat: bool = True) -> Any:
    """A byte-level BPE of 320 entries: any text becomes ids and comes back. <s> is 1, </s> is 2."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<pad>", "<s>", "</s>", "<|system|>", "<|user|>", "<|assistant|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TEXT, trainer)
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)  # type: ignore[no-untyped-call]
    fast.chat_template = CHAT_TEMPLATE if chat else None
    return fast


def tiny_folder(
    path: Path,
    family: str = "llama",
    *,
    seed: int = 0,
    layers: int = 3,
    chat: bool = True,
    stop_ids: tuple[int, ...] = (2,),
    **config_overrides: Any,
) -> Path:
    """Save model, tokenizer and generation configuration under ``path``; returns it. Loads like any published model."""
    tokenizer = tiny_tokenizer(chat=chat)
    model = tiny_model(family, seed=seed, layers=layers, **{"vocab_size": len(tokenizer), **config_overrides})
    ends = {"bos_token_id": 1, "eos_token_id": list(stop_ids)}
    model.generation_config = GenerationConfig(**ends)  # type: ignore[no-untyped-call]
    path.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path
