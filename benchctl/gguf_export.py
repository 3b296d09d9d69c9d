"""A model's folder as a GGUF file, for engines that read no other: the reverse of gguf.py.

These engines are given token ids and give ids back. The text of each token in the file is its id, for example `17`:
llama-server sends no event for a token that is a part of a character, and ends answers at tokens whose text it takes
for an end.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any, Literal

from benchctl import gguf
from benchctl.errors import UserError

FileType = Literal["F32", "F16"]
_VERSION = 1  # of what is written; another one is written again
_WEIGHTS = "model*.safetensors"  # transformers' names
_UNUSED = ".rotary_emb.inv_freq"  # in older Llama checkpoints; it follows from the configuration
_MOST_ENDS = 3  # tokens that end an answer, which GGUF has fields for


def exported(source: Path, cache_folder: Path, file_type: FileType, notify: gguf.Notify) -> Path:
    """The GGUF file of the model in the folder ``source``, written once. Matrices have ``file_type``, vectors are F32.

    Raises UserError as `check_exportable` does, where weights are missing, and where ``cache_folder`` has too little
    room.
    """
    config = check_exportable(source)
    out = cache_folder / f"{source.name}-{_hash(source)[:12]}-v{_VERSION}-{file_type}{gguf.SUFFIX}"
    if not out.is_file():
        size = sum(each.stat().st_size for each in source.glob(_WEIGHTS))
        notify(f"Writing {out}, once.")
        with gguf.room_for(out, size * 2) as partial:  # twice, if the folder has two bytes for each weight
            _write(source, config, file_type, partial / out.name)
            (partial / out.name).rename(out)
    return out


def check_exportable(source: Path) -> Any:
    """transformers' configuration of a model that GGUF can hold. Raises UserError for another, before weights are
    read."""
    from transformers import AutoConfig

    gguf.check_installed()
    if not (source / "config.json").is_file():
        raise UserError(
            "no_model_folder", f"{source}: not a folder with a model. Name its folder, or a GGUF file of it."
        )
    try:
        config = AutoConfig.from_pretrained(str(source), trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise UserError("bad_config", f"{source / 'config.json'}: cannot be read ({error}).") from error
    family, rope = config.model_type, getattr(config, "rope_parameters", None) or {}
    instead = "Use a GGUF file of it as the target."
    if family not in gguf.CLASSES or not list(source.glob(_WEIGHTS)):
        known = ", ".join(gguf.CLASSES)
        message = f"{source}: only models of {known} in safetensors can be written as GGUF files. {instead}"
        raise UserError("not_exportable", message)
    scaled = rope.get("rope_type", "default") != "default" or rope.get("partial_rotary_factor", 1.0) != 1.0
    if scaled or getattr(config, "use_sliding_window", False) or config.hidden_act != "silu":
        message = (
            f"{source}: scaled or partial rotary positions, sliding windows and activations other than silu cannot be "
            f"written as GGUF files. {instead}"
        )
        raise UserError("changed_arithmetic", message)
    if not 1 <= len(_ends(source, config)) <= _MOST_ENDS:
        message = (
            f"{source}: a GGUF file names 1 to {_MOST_ENDS} tokens that end an answer, and this model has "
            f"{len(_ends(source, config))}. They are eos_token_id in generation_config.json, or else in config.json."
        )
        raise UserError("no_end_token", message)
    return config


def _ends(source: Path, config: Any) -> list[int]:
    """Tokens that end an answer, as benchctl's own loop takes them."""
    path, ends = source / "generation_config.json", None
    if path.is_file():
        ends = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
    ends = config.eos_token_id if ends is None else ends
    return [] if ends is None else list(ends) if isinstance(ends, list) else [ends]


@cache
def _hash(source: Path) -> str:
    files = (source / "config.json", source / "generation_config.json", *sorted(source.glob(_WEIGHTS)))
    return hashlib.sha256("".join(map(gguf.sha256_of, filter(Path.is_file, files))).encode()).hexdigest()


def _write(source: Path, config: Any, file_type: FileType, file: Path) -> None:
    from gguf import GGUFWriter

    with closing(GGUFWriter(file, config.model_type)) as writer:
        _fill(writer, source, config, file_type)


def _fill(writer: Any, source: Path, config: Any, file_type: FileType) -> None:
    import numpy as np
    from gguf import MODEL_ARCH, LlamaFileType, get_tensor_name_map
    from safetensors import safe_open

    family, heads, kv_heads = config.model_type, config.num_attention_heads, config.num_key_value_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    writer.add_file_type(LlamaFileType.ALL_F32 if file_type == "F32" else LlamaFileType.MOSTLY_F16)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    _add_vocabulary(writer, config, _ends(source, config))
    interleaved = {"q_proj": heads, "k_proj": kv_heads} if family == "llama" else {}
    names = get_tensor_name_map(MODEL_ARCH[family.upper()], config.num_hidden_layers)
    kept = _kept(source, config)
    for _, name, shape in kept:
        number_format = np.dtype("float16" if file_type == "F16" and len(shape) > 1 else "float32")
        theirs, size = names.get_name(name, (".weight", ".bias")), int(np.prod(shape)) * number_format.itemsize
        if theirs is None:
            raise UserError("not_exportable", f"{source}: the weight {name} has no place in GGUF.")
        writer.add_tensor_info(theirs, shape, number_format, size)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for place, name, shape in kept:  # one in memory at a time
        with safe_open(place, framework="pt") as weights:
            values = weights.get_tensor(name).float().numpy()
        heads_of = interleaved.get(name.split(".")[-2])
        values = values if heads_of is None else _in_pairs(values, heads_of)
        if file_type == "F16" and len(shape) > 1:
            if abs(values).max() > np.finfo("float16").max:
                message = f"{source}: the weight {name} is too large for float16. Leave out --weights float16."
                raise UserError("too_large_for_float16", message)
            values = values.astype("float16")
        writer.write_tensor_data(values)


def _kept(source: Path, config: Any) -> list[tuple[Path, str, tuple[int, ...]]]:
    """File, transformers' name and shape of each weight; a tied LM head is left out, as in GGUF files. Raises UserError
    unless they are those of the configuration."""
    from safetensors import safe_open
    from torch import device
    from transformers import AutoModelForCausalLM

    with device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    missing = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    unused, kept = ("lm_head.weight",) if config.tie_word_embeddings else (), []
    for file in sorted(source.glob(_WEIGHTS)):
        with safe_open(file, framework="pt") as weights:
            for name in weights.keys():  # noqa: SIM118 it is no mapping
                shape = tuple(weights.get_slice(name).get_shape())
                if name in unused or name.endswith(_UNUSED):
                    continue
                if missing.pop(name, None) != shape:
                    raise _other_weights(source, name)
                kept.append((file, name, shape))
    if missing:
        raise _other_weights(source, next(iter(missing)))
    return kept


def _other_weights(source: Path, name: str) -> UserError:
    message = f"{source}: the weight {name} is missing, unexpected or of another shape. Get the model's files again."
    return UserError("weights_do_not_fit", message)


def _in_pairs(values: Any, heads: int) -> Any:
    """Rows of a query or key projection of one head, 0, 1, 2, 3, become 0, 2, 1, 3: see gguf.py."""
    return values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def _add_vocabulary(writer: Any, config: Any, ends: list[int]) -> None:
    from gguf import TokenType

    tokens = range(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2" if config.model_type == "llama" else "qwen2")
    writer.add_token_list([str(number) for number in tokens])
    writer.add_token_types([TokenType.CONTROL if number in ends else TokenType.NORMAL for number in tokens])
    writer.add_token_merges(["1 0"])  # engines require some; this one makes 10
    writer.add_add_bos_token(False)
    for add, number in zip(
        (writer.add_eos_token_id, writer.add_eot_token_id, writer.add_eom_token_id), ends, strict=False
    ):
        add(number)
