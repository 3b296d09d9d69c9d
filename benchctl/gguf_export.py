"""A model's folder as a GGUF file, for engines that read no other: the reverse of gguf.py.

These engines are given token ids and give ids back. The text of each token in the file is its id, for example `17`:
llama-server sends no event for a token that is a part of a character, and ends answers at tokens whose text it takes
for an end.
"""

from __future__ import annotations

import hashlib
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any, Literal

from benchctl import gguf
from benchctl.decoding.model.tokenizer import TargetTokenizer, load_tokenizer
from benchctl.errors import UserError

FileType = Literal["F32", "F16"]
_VERSION = 2  # of what is written; another one is written again
WEIGHTS = "model*.safetensors"  # transformers' names
_UNUSED = ".rotary_emb.inv_freq"  # in older Llama checkpoints; it follows from the configuration
_MOST_ENDS = 3  # tokens that end an answer, which GGUF has fields for
_INSTEAD = "Name a GGUF file of the same weights: llama_cpp[gguf=FILE] or openvino[weights=FILE]."


def exported(source: Path, cache_folder: Path, file_type: FileType, notify: gguf.Notify) -> Path:
    """The GGUF file of the model in the folder ``source``, written once. Matrices have ``file_type``, vectors are F32.

    Raises UserError as `check_exportable` does, where weights are missing, and where ``cache_folder`` has too little
    room.
    """
    model = check_exportable(source)
    ends = "+".join(map(str, sorted(model.stop_ids)))
    out = cache_folder / f"{source.name}-{_hash(source)[:12]}-ends-{ends}-v{_VERSION}-{file_type}{gguf.SUFFIX}"
    if not out.is_file():
        size = sum(each.stat().st_size for each in source.glob(WEIGHTS))
        notify(f"Writing {out}, once.")
        with gguf.room_for(out, size * 2) as partial:  # twice, if the folder has two bytes for each weight
            _write(source, model, file_type, partial / out.name)
            (partial / out.name).rename(out)
    return out


def check_exportable(source: Path) -> TargetTokenizer:
    """Configuration and stop tokens of a model that GGUF can hold. Raises UserError for another, before weights are
    read."""
    gguf.check_installed()
    if not (source / "config.json").is_file():
        raise UserError(
            "no_model_folder", f"{source}: not a folder with a model. Name its folder, or a GGUF file of it."
        )
    model = load_tokenizer(source)
    model.check_layers()
    config, rope = model.config, getattr(model.config, "rope_parameters", None) or {}
    if config.model_type not in gguf.CLASSES or not list(source.glob(WEIGHTS)):
        known = ", ".join(gguf.CLASSES)
        message = f"{source}: only models of {known} in safetensors can be written as GGUF files. {_INSTEAD}"
        raise UserError("not_exportable", message)
    scaled = rope.get("rope_type", "default") != "default" or rope.get("partial_rotary_factor", 1.0) != 1.0
    if scaled or getattr(config, "use_sliding_window", False) or config.hidden_act != "silu":
        message = (
            f"{source}: scaled or partial rotary positions, sliding windows and activations other than silu cannot be "
            f"written as GGUF files. {_INSTEAD}"
        )
        raise UserError("changed_arithmetic", message)
    if not 1 <= len(model.stop_ids) <= _MOST_ENDS:
        message = (
            f"{source}: a GGUF file names 1 to {_MOST_ENDS} tokens that end an answer, and this model has "
            f"{len(model.stop_ids)}. They are eos_token_id in generation_config.json, or else in config.json, or else "
            "the tokenizer's end token."
        )
        raise UserError("no_end_token", message)
    return model


@cache
def _hash(source: Path) -> str:
    files = (source / "config.json", source / "generation_config.json", *sorted(source.glob(WEIGHTS)))
    return hashlib.sha256("".join(map(gguf.sha256_of, filter(Path.is_file, files))).encode()).hexdigest()


def _write(source: Path, model: TargetTokenizer, file_type: FileType, file: Path) -> None:
    from gguf import GGUFWriter

    with closing(GGUFWriter(file, model.config.model_type)) as writer:
        _add_sizes(writer, model.config)
        _add_vocabulary(writer, model)
        _add_weights(writer, source, model.config, file_type)


def _add_sizes(writer: Any, config: Any) -> None:
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)


def _add_vocabulary(writer: Any, model: TargetTokenizer) -> None:
    from gguf import TokenType

    ids, ends = range(model.vocabulary), sorted(model.stop_ids)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2" if model.config.model_type == "llama" else "qwen2")
    writer.add_token_list([str(number) for number in ids])
    writer.add_token_types([TokenType.CONTROL if number in ends else TokenType.NORMAL for number in ids])
    writer.add_token_merges(["1 0"])  # engines require some; this one makes 10
    writer.add_add_bos_token(False)
    fields = (writer.add_eos_token_id, writer.add_eot_token_id, writer.add_eom_token_id)
    for add, number in zip(fields, ends, strict=False):
        add(number)


def _add_weights(writer: Any, source: Path, config: Any, file_type: FileType) -> None:
    """Writes the file, with one tensor in memory at a time."""
    import numpy as np
    from gguf import LlamaFileType
    from safetensors import safe_open

    def number_format(shape: tuple[int, ...]) -> np.dtype[Any]:
        return np.dtype("float16" if file_type == "F16" and len(shape) > 1 else "float32")

    weights = gguf.weights_of(config)
    places = _places(source, config, {name: shape for name, (_, shape) in weights.items()})
    interleaved = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    writer.add_file_type(LlamaFileType.ALL_F32 if file_type == "F32" else LlamaFileType.MOSTLY_F16)
    for theirs, shape in weights.values():
        kind = number_format(shape)
        writer.add_tensor_info(theirs, shape, kind, int(np.prod(shape)) * kind.itemsize)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, (_, shape) in weights.items():
        with safe_open(places[name], framework="pt") as file:
            values = file.get_tensor(name).float().numpy()
        heads = interleaved.get(name.split(".")[-2])
        if config.model_type == "llama" and heads is not None:
            values = _in_pairs(values, heads)
        kind = number_format(shape)
        if kind == np.float16 and abs(values).max() > np.finfo(kind).max:
            message = f"{source}: the weight {name} is too large for float16. Leave out --weights float16."
            raise UserError("too_large_for_float16", message)
        writer.write_tensor_data(values.astype(kind))


def _places(source: Path, config: Any, expected: dict[str, tuple[int, ...]]) -> dict[str, Path]:
    """The file of each weight by transformers' name; a tied LM head is left out, as in GGUF files. Raises UserError
    unless they are ``expected``, shapes by name."""
    from safetensors import safe_open

    found, places = dict[str, tuple[int, ...]](), dict[str, Path]()
    for place in sorted(source.glob(WEIGHTS)):
        with safe_open(place, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 it is no mapping
                is_tied = name == "lm_head.weight" and config.tie_word_embeddings
                if not (is_tied or name.endswith(_UNUSED)):
                    found[name], places[name] = tuple(file.get_slice(name).get_shape()), place
    if wrong := sorted(name for name in {*expected, *found} if expected.get(name) != found.get(name)):
        raise UserError(
            "weights_do_not_fit",
            f"{source}: {len(wrong)} weights are missing, unexpected or of another shape, such as {wrong[0]}. Get the "
            "model's files again.",
        )
    return places


def _in_pairs(values: Any, heads: int) -> Any:
    """Rows of a query or key projection of one head, 0, 1, 2, 3, become 0, 2, 1, 3: see gguf.py."""
    return values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
