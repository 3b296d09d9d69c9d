"""GGUF files made here from models of known weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

TEXTS = (
    "In 1984 there were 12,345 of 3.14 and 007.",
    "def f(x):\n    return x ** 2  # two  spaces\n\n\ttab",
    "Ein Fluß, été, Привет мир, 中文字符, नमस्ते, العربية 🙂",
    "  leading, trailing  ",
)
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
CONFIGS = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}
ARCHS = {"llama": gguf.MODEL_ARCH.LLAMA, "qwen2": gguf.MODEL_ARCH.QWEN2, "qwen3": gguf.MODEL_ARCH.QWEN3}
_LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN_2 = _LLAMA_3.replace("{1,3}", "")
_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
SPLITS: dict[str, list[Any]] = {
    "llama-bpe": [pre_tokenizers.Split(Regex(_LLAMA_3), "isolated"), _BYTES],
    "qwen2": [pre_tokenizers.Split(Regex(_QWEN_2), "isolated"), _BYTES],
    "smollm": [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)],
    "gpt-2": [pre_tokenizers.ByteLevel(add_prefix_space=False)],
}


def bpe(split: str) -> Tokenizer:
    """A byte-level tokenizer trained on TEXTS, with this pre-tokenizer."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=split == "llama-bpe"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(SPLITS[split])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer.train_from_iterator(
        TEXTS * 3, trainers.BpeTrainer(vocab_size=320, special_tokens=special, initial_alphabet=alphabet)
    )
    return tokenizer


def tiny(family: str, vocabulary: int) -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "max_position_embeddings": 128}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    config = CONFIGS[family](vocab_size=vocabulary, tie_word_embeddings=family == "llama", **sizes, **heads)
    model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    for parameter in model.parameters():  # biases and gains too, which begin as 0 and 1
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def interleaved(weight: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """As llama.cpp's converter writes queries and keys of Llama."""
    return weight.reshape(heads, 2, -1, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(
    file: Path,
    model: Any,
    family: str,
    tokenizer: Tokenizer,
    split: str,
    kind: str = "F32",
    scores: list[float] | None = None,
    **changed: Any,
) -> dict[str, torch.Tensor]:
    """Writes the model, and gives the weights that the file stands for, by transformers' names.

    With `scores` the vocabulary is one of sentencepiece, which has no merges.
    """
    config = model.config
    writer = gguf.GGUFWriter(file, changed.get("architecture", family))
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16 if kind == "F16" else gguf.LlamaFileType.ALL_F32)
    writer.add_block_count(changed.get("layers", config.num_hidden_layers))
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(changed.get("heads", config.num_attention_heads))
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    for name, value in changed.get("keys", {}).items():
        (writer.add_uint32 if isinstance(value, int) else writer.add_float32)(f"{family}.{name}", value)
    if "removes_spaces" in changed:
        writer.add_remove_extra_whitespaces(True)
    if "scaling" in changed:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    vocabulary = tokenizer.get_vocab()
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    writer.add_tokenizer_model(changed.get("vocabulary", "gpt2" if scores is None else "llama"))
    writer.add_tokenizer_pre(split)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token.startswith("<|") or token in ("<s>", "</s>") else 1 for token in tokens])
    if scores is None:
        writer.add_token_merges([" ".join(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]])
    else:
        writer.add_token_scores(scores)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)
    names, stands_for = gguf.get_tensor_name_map(ARCHS[family], config.num_hidden_layers), {}
    for name, tensor in model.state_dict().items():
        if (name == "lm_head.weight" and config.tie_word_embeddings) or name == changed.get("without"):
            continue
        values = tensor.numpy()
        as_kind = gguf.GGMLQuantizationType[kind if values.ndim == 2 else "F32"]
        if family == "llama" and ("q_proj" in name or "k_proj" in name):
            values = interleaved(values, config.num_attention_heads if "q_proj" in name else config.num_key_value_heads)
        packed = gguf.quantize(values, as_kind)
        theirs = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert theirs is not None
        writer.add_tensor(theirs, packed, raw_dtype=as_kind)
        stood = gguf.dequantize(packed, as_kind).reshape(values.shape).astype(np.float32)
        if family == "llama" and ("q_proj" in name or "k_proj" in name):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            stood = stood.reshape(heads, -1, 2, *stood.shape[1:]).swapaxes(1, 2).reshape(stood.shape)
        stands_for[name] = torch.from_numpy(stood.copy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return stands_for
