"""GGUF files as targets: a file becomes a folder that transformers reads, once, in the cache.

Format: github.com/ggml-org/ggml, docs/gguf.md. Quantised weights become the float32 values they stand for, so the
target is what the file holds, and not the model that was quantised.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchctl.errors import UserError

SUFFIX = ".gguf"
_VERSION = 1  # of what is written; another one is converted again
_DONE = "conversion.json"
_SHARD_BYTES = 4 << 30  # held in memory at a time
# Families whose tensors are named alike. In files of "llama" the rows of queries and keys are interleaved.
_ARCHITECTURES = ("llama", "qwen2", "qwen3")
_PARTS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TENSOR = re.compile(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)")
_SENTENCEPIECE = "llama"
_DIGITS_APART = "smollm"  # the pre-tokenizer that transformers does not know: each digit is a token

Notify = Callable[[str], None]


def is_gguf(name: str | Path) -> bool:
    """Whether this names a GGUF file that is there."""
    return str(name).endswith(SUFFIX) and Path(name).is_file()


@cache
def converted(file: Path, folder: Path, notify: Notify = lambda line: None) -> Path:
    """The folder below `folder` with the model of a GGUF file, named after the file's hash: it is converted once.

    Raises UserError as `convert` does.
    """
    out = folder / f"{file.stem}-{sha256_of(file)[:12]}-v{_VERSION}"
    if not is_converted(out):
        convert(file, out, notify)
    return intact(out)


def is_converted(folder: Path) -> bool:
    return (folder / _DONE).is_file()


def convert(file: Path, out: Path, notify: Notify = lambda line: None) -> None:
    """Writes the model of a GGUF file into the new folder `out`: configuration, weights, tokenizer, chat template.

    Raises UserError for a file that is no GGUF file, is cut off, or is of an architecture, a tokenizer or a type of
    weights that cannot be read, before any weight is read; and where `out` cannot be written or has too little room.
    """
    reader = _read(file)
    config = _config(file, reader)
    names = dict(_names(file, reader))
    _check_tokenizer(file, reader)
    size = sum(int(np.prod(tensor.shape)) * _kind(tensor).itemsize for tensor in reader.tensors)
    notify(f"{file.name}: converting to {size / 1e6:,.0f} MB in {out}")
    with room_for(out, size) as partial:
        weights = _save_weights(reader, names, config, partial)
        (partial / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        _save_tokenizer(file, reader, partial)
        done = {"gguf_sha256": sha256_of(file), "weights_sha256": weights}
        (partial / _DONE).write_text(json.dumps(done, indent=2) + "\n", encoding="utf-8")
        partial.rename(out)


@cache
def intact(folder: Path) -> Path:
    """The folder of a converted model. Raises UserError where its weights are not those that were written."""
    expected = json.loads((folder / _DONE).read_text(encoding="utf-8"))["weights_sha256"]
    for name, sha256 in expected.items():
        file = folder / name
        if not file.is_file() or sha256_of(file) != sha256:
            raise UserError("damaged_cache", f"{file}: missing or altered; delete {folder}, and it is made again")
    return folder


def sha256_of(file: Path) -> str:
    """Hash of a file."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def room_for(out: Path, size: int) -> Iterator[Path]:
    """A folder next to `out` for so many bytes, which may be renamed to it; otherwise it is removed.

    Raises UserError where so much is not free, and for any error of writing.
    """
    partial = out.with_name(f".partial-{out.name}")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        free = shutil.disk_usage(partial).free
        if free < size * 1.02:
            raise UserError(
                "disk_full",
                f"{out.parent}: {size / 1e6:,.0f} MB are needed and {free / 1e6:,.0f} MB are free; free some space, or "
                "set BENCHCTL_CACHE to a folder on another disk",
            )
        yield partial
    except OSError as error:
        raise UserError(
            "cache_not_writable",
            f"{out.parent}: cannot be written ({error.strerror or error}); set BENCHCTL_CACHE to a folder that can",
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def check_installed() -> None:
    """Raises UserError without the package gguf."""
    if importlib.util.find_spec("gguf") is None:
        raise UserError("gguf_not_installed", "GGUF files need the package gguf: pip install 'benchctl[gguf]'")


def _read(file: Path) -> Any:
    """The file's metadata and where its tensors lie. Raises UserError where it is none, or cut off."""
    check_installed()
    from gguf import GGUFReader

    try:
        return GGUFReader(file)
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, OSError, UnicodeDecodeError) as error:
        raise UserError(
            "not_a_gguf_file", f"{file}: is no GGUF file, or is cut off; get it again ({error or type(error).__name__})"
        ) from error


def _value(reader: Any, key: str, default: Any = None) -> Any:
    field = reader.fields.get(key)
    return default if field is None else field.contents()


def _config(file: Path, reader: Any) -> dict[str, Any]:
    """config.json as transformers reads it. Raises UserError for what benchctl does not compute."""
    family = _value(reader, "general.architecture", "unknown")
    if family not in _ARCHITECTURES:
        known = ", ".join(_ARCHITECTURES)
        raise UserError("unknown_family", f"{file}: architecture '{family}' cannot be read from GGUF; known: {known}")
    scaled = [key for key in reader.fields if key.startswith(f"{family}.rope.scaling.")]
    if any(_value(reader, key) not in ("none", 1.0) for key in scaled) or _tensor(reader, "rope_freqs.weight"):
        raise UserError(
            "unsupported_rope", f"{file}: scaled rotary positions cannot be read from GGUF; use the model's own folder"
        )
    if _value(reader, f"{family}.expert_count"):
        raise UserError(
            "unknown_family", f"{file}: mixtures of experts cannot be read from GGUF; use the model's folder"
        )

    def needed(key: str) -> Any:
        value = _value(reader, f"{family}.{key}")
        if value is None:
            raise UserError("not_a_gguf_file", f"{file}: lacks {family}.{key}; get another file of this model")
        return value

    heads, width = int(needed("attention.head_count")), int(needed("embedding_length"))
    tokens = len(reader.fields["tokenizer.ggml.tokens"].data) if "tokenizer.ggml.tokens" in reader.fields else 0
    config = {
        "architectures": [
            {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}[family]
        ],
        "model_type": family,
        "vocab_size": int(_value(reader, f"{family}.vocab_size", tokens)),
        "hidden_size": width,
        "intermediate_size": int(needed("feed_forward_length")),
        "num_hidden_layers": int(needed("block_count")),
        "num_attention_heads": heads,
        "num_key_value_heads": int(_value(reader, f"{family}.attention.head_count_kv", heads)),
        "head_dim": int(_value(reader, f"{family}.attention.key_length", width // heads)),
        "max_position_embeddings": int(needed("context_length")),
        "rms_norm_eps": float(np.float32(needed("attention.layer_norm_rms_epsilon"))),
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": float(_value(reader, f"{family}.rope.freq_base", 10000.0)),
        },
        "hidden_act": "silu",
        "tie_word_embeddings": _tensor(reader, "output.weight") is None,
        "bos_token_id": _value(reader, "tokenizer.ggml.bos_token_id"),
        "eos_token_id": _value(reader, "tokenizer.ggml.eos_token_id"),
        "dtype": "float32",
    }
    if family == "llama":
        config["attention_bias"] = _tensor(reader, "blk.0.attn_q.bias") is not None
    return config


def _tensor(reader: Any, name: str) -> Any:
    return next((tensor for tensor in reader.tensors if tensor.name == name), None)


def _kind(tensor: Any) -> np.dtype[Any]:
    """What its values are kept as: float16 where they are, else float32."""
    return np.dtype(np.float16 if tensor.tensor_type.name == "F16" else np.float32)


def _names(file: Path, reader: Any) -> Iterator[tuple[str, str]]:
    """transformers' name of each tensor. Raises UserError for one that the family does not have, or of unknown type."""
    from gguf import dequantize

    readable: set[str] = set()
    for tensor in reader.tensors:
        found = _TENSOR.fullmatch(tensor.name)
        if found is None or found[2] not in _PARTS:
            raise UserError("weights_do_not_fit", f"{file}: has a tensor '{tensor.name}', which this family has not")
        kind = tensor.tensor_type.name
        if kind not in readable:
            try:
                dequantize(tensor.data[:1], tensor.tensor_type)
            except (NotImplementedError, ValueError) as error:
                raise UserError(
                    "quantised_checkpoint", f"{file}: weights of type {kind} cannot be read; get a file of another type"
                ) from error
            readable.add(kind)
        layer = "" if found[1] is None else f"model.layers.{found[1]}."
        yield tensor.name, f"{layer}{_PARTS[found[2]]}.{found[3]}"


def _save_weights(reader: Any, names: dict[str, str], config: dict[str, Any], folder: Path) -> dict[str, str]:
    """Writes the weights in shards, one in memory at a time; the sha256 of each by its name."""
    from gguf import dequantize
    from safetensors.numpy import save_file

    shards: list[list[Any]] = [[]]
    size = 0
    for tensor in reader.tensors:
        grown = int(np.prod(tensor.shape)) * _kind(tensor).itemsize
        if shards[-1] and size + grown > _SHARD_BYTES:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += grown
    hashes: dict[str, str] = {}
    places: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        name = "model.safetensors" if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        weights = {}
        for tensor in shard:
            values = dequantize(tensor.data, tensor.tensor_type).astype(_kind(tensor), copy=False)
            if config["model_type"] == "llama" and ".attn_q." in tensor.name:
                values = _in_halves(values, config["num_attention_heads"])
            if config["model_type"] == "llama" and ".attn_k." in tensor.name:
                values = _in_halves(values, config["num_key_value_heads"])
            weights[names[tensor.name]] = np.ascontiguousarray(values)
            places[names[tensor.name]] = name
        save_file(weights, folder / name, metadata={"format": "pt"})
        hashes[name] = sha256_of(folder / name)
    if len(shards) > 1:
        index = {"metadata": {}, "weight_map": places}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index) + "\n", encoding="utf-8")
    return hashes


def _in_halves(values: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Rows of a query or key projection as transformers rotates them: the two of a pair lie half a head apart.

    >>> _in_halves(np.array([0, 2, 1, 3]), 1).tolist()
    [0, 1, 2, 3]
    """
    pairs = values.reshape(heads, -1, 2, *values.shape[1:])
    return pairs.swapaxes(1, 2).reshape(values.shape)


def _check_tokenizer(file: Path, reader: Any) -> None:
    """Raises UserError for a tokenizer that would split text otherwise than the original."""
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    kind, split = _value(reader, "tokenizer.ggml.model"), _value(reader, "tokenizer.ggml.pre")
    byte_level = kind == "gpt2" and split in (*GGUF_PRE_TOKENIZER_SPLITS, _DIGITS_APART, "gpt-2")
    keeps_spaces = not _value(reader, "tokenizer.ggml.remove_extra_whitespaces")
    if not (byte_level or (kind == _SENTENCEPIECE and keeps_spaces)):
        raise UserError(
            "unknown_tokenizer", f"{file}: tokenizer '{kind}' with pre-tokenizer '{split}' cannot be read from GGUF"
        )


def _save_tokenizer(file: Path, reader: Any, folder: Path) -> None:
    """tokenizer.json, its configuration and the chat template, as the original model had them."""
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    tokenizer: Any = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
    if _value(reader, "tokenizer.ggml.pre") == _DIGITS_APART:
        digits = pre_tokenizers.Digits(individual_digits=True)
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [digits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
        )
    if _value(reader, "tokenizer.ggml.model") == _SENTENCEPIECE:
        _split_as_sentencepiece(
            tokenizer.backend_tokenizer, bool(_value(reader, "tokenizer.ggml.add_space_prefix", True))
        )
    kept = {name: token for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}
    plain: Any = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, **kept)  # type: ignore[no-untyped-call]
    plain.chat_template = tokenizer.chat_template
    plain.save_pretrained(str(folder))


def _split_as_sentencepiece(tokenizer: Any, space_first: bool) -> None:
    """Sets how a sentencepiece vocabulary reads text: every space counts, and a first one is added if it says so.

    transformers' own reader gives other ids for two spaces.
    """
    from tokenizers import decoders, normalizers

    space = "\u2581"
    spaces = normalizers.Replace(" ", space)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(space), spaces]) if space_first else spaces
    tokenizer.pre_tokenizer = None
    parts = [decoders.Replace(space, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)] if space_first else parts)
