"""A model's folder as a GGUF file, for engines that read no other: the reverse of gguf.py.

These engines are given token ids and give ids back. The tokens in the file are their numbers: llama-server sends no
event for a token that is a part of a character, and ends answers at tokens whose text it takes for an end.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal

from benchctl import gguf
from benchctl.errors import UserError

FileType = Literal["F32", "F16"]
_WEIGHTS = "model*.safetensors"  # transformers' names


def exported(source: Path, cache_folder: Path, file_type: FileType, notify: gguf.Notify) -> Path:
    """The GGUF file of the model in the folder ``source``, written once. Matrices have ``file_type``, vectors are F32.

    Raises UserError as `check_exportable` does, and where ``cache_folder`` has too little room.
    """
    config = check_exportable(source)
    out = cache_folder / f"{source.name}-{_hash(source)[:12]}-{file_type}{gguf.SUFFIX}"
    if not out.is_file():
        size = sum(each.stat().st_size for each in source.glob(_WEIGHTS))
        notify(f"Writing {out}, once.")
        with gguf.room_for(out, size * 2) as partial:  # twice, if its weights are in two bytes each
            _write(source, config, file_type, partial / out.name)
            (partial / out.name).rename(out)
    return out


def check_exportable(source: Path) -> dict[str, Any]:
    """The configuration of a model that GGUF can hold. Raises UserError for another, before weights are read."""
    gguf.check_installed()
    if not (source / "config.json").is_file():
        raise UserError("not_exportable", f"{source}: no folder of a model here; give --model its folder.")
    config: dict[str, Any] = json.loads((source / "config.json").read_text(encoding="utf-8"))
    family = config.get("model_type")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if family not in gguf.CLASSES or not list(source.glob(_WEIGHTS)):
        known = ", ".join(gguf.CLASSES)
        raise UserError("not_exportable", f"{source}: only {known} in safetensors can be written as a GGUF file.")
    if rope.get("rope_type", rope.get("type", "default")) != "default" or config.get("use_sliding_window"):
        message = f"{source}: scaled rotary positions and sliding windows cannot be written as a GGUF file."
        raise UserError("not_exportable", message)
    return config


@cache
def _hash(source: Path) -> str:
    files = (source / "config.json", *sorted(source.glob(_WEIGHTS)))
    return hashlib.sha256("".join(map(gguf.sha256_of, files)).encode()).hexdigest()


def _write(source: Path, config: dict[str, Any], file_type: FileType, file: Path) -> None:
    from gguf import MODEL_ARCH, GGMLQuantizationType, GGUFWriter, LlamaFileType, get_tensor_name_map

    family, heads = config["model_type"], config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    writer = GGUFWriter(file, family)
    writer.add_file_type(LlamaFileType.ALL_F32 if file_type == "F32" else LlamaFileType.MOSTLY_F16)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    rope = config.get("rope_parameters") or {}
    writer.add_rope_freq_base(rope.get("rope_theta", config.get("rope_theta", 10000.0)))
    writer.add_vocab_size(config["vocab_size"])
    _add_vocabulary(writer, config)
    interleaved = {"q_proj": heads, "k_proj": kv_heads} if family == "llama" else {}
    names = get_tensor_name_map(MODEL_ARCH[family.upper()], config["num_hidden_layers"])
    for name, values in _tensors(source, config):
        kept = interleaved.get(name.split(".")[-2])
        values = values if kept is None else _in_pairs(values, kept)
        theirs = names.get_name(name, (".weight", ".bias"))
        if theirs is None:
            raise UserError("not_exportable", f"{source}: GGUF has no place for its weight {name}.")
        kind = file_type if values.ndim > 1 else "F32"
        values = values.astype("float32" if kind == "F32" else "float16")
        writer.add_tensor(theirs, values, raw_dtype=GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensors(source: Path, config: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Each weight by transformers' name; a tied LM head is left out, as in GGUF files."""
    from safetensors import safe_open

    for file in sorted(source.glob(_WEIGHTS)):
        with safe_open(file, framework="pt") as weights:
            for name in weights.keys():  # noqa: SIM118 it is no mapping
                if not (name == "lm_head.weight" and config.get("tie_word_embeddings")):
                    yield name, weights.get_tensor(name).float().numpy()


def _in_pairs(values: Any, heads: int) -> Any:
    """Rows of a query or key projection of one head, 0, 1, 2, 3, become 0, 2, 1, 3: see gguf.py."""
    return values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def _add_vocabulary(writer: Any, config: dict[str, Any]) -> None:
    from gguf import TokenType

    tokens, ends = config["vocab_size"], config.get("eos_token_id")
    ends = [] if ends is None else ends if isinstance(ends, list) else [ends]
    types = [TokenType.CONTROL if number in ends else TokenType.NORMAL for number in range(tokens)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2" if config["model_type"] == "llama" else "qwen2")
    writer.add_token_list([str(number) for number in range(tokens)])
    writer.add_token_types(types)
    writer.add_token_merges(["1 0"])  # engines require some; this one makes 10
    writer.add_add_bos_token(False)
    for add, number in zip((writer.add_eos_token_id, writer.add_eot_token_id), ends, strict=False):
        add(number)
