"""GGUF files as targets: a file becomes a folder that transformers reads, once, in the cache.

Format: github.com/ggml-org/ggml, docs/gguf.md. Quantised weights become the float32 values they stand for, so the
target is what the file holds, and not the model that was quantised.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from benchctl.errors import UserError

SUFFIX = ".gguf"
_VERSION = 2  # of what is written; another one is converted again. Version 1 knew one token that ends answers
DONE = "conversion.json"
_SHARD_BYTES = 4 << 30  # part of the identity of models that were converted before
# Families by GGUF's names. In files of "llama" the rows of queries and keys are interleaved.
CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_SENTENCEPIECE = "llama"
_DIGITS_APART = "smollm"  # each digit is a token; transformers has no entry for it
_TOKENS_FIRST = "llama-bpe"  # a piece that is a token as a whole is not merged
# Pre-tokenizers by family. transformers' Qwen2 tokenizer has its own and takes no other.
_SPLITS = {family: ("gpt-2", _DIGITS_APART, _TOKENS_FIRST, "qwen2") for family in ("llama", "qwen3")} | {
    "qwen2": ("qwen2",)
}
_CHANGES_ARITHMETIC = ("attention.sliding_window", "attention.scale", "logit_scale", "expert_count")

Notify = Callable[[str], None]


@cache
def converted(file: Path, folder: Path, notify: Notify = lambda line: None) -> Path:
    """The folder below `folder` with the model of a GGUF file, named after the file's hash: it is converted once.

    Raises UserError as `convert` does.
    """
    name = f"{file.stem}-{sha256_of(file)[:12]}-v"
    out, earlier = folder / f"{name}{_VERSION}", folder / f"{name}1"
    if not is_converted(out):
        if is_converted(earlier) and len(_ends(_read(file))) < 2:  # the same would be written
            return intact(earlier)
        convert(file, out, notify)
    return intact(out)


def is_converted(folder: Path) -> bool:
    return (folder / DONE).is_file()


def convert(file: Path, out: Path, notify: Notify = lambda line: None) -> None:
    """Writes the model of a GGUF file into the folder `out`: configuration, weights, tokenizer, chat template.

    Raises UserError for a file that is no GGUF file, is cut off or incomplete, or is of an architecture, a tokenizer or
    a type of weights that cannot be read, before any weight is read; and where `out` cannot be written or has too
    little room.
    """
    reader = _read(file)
    try:
        config = _config(file, reader)
        names = _names(file, reader, config)
        _check_tokenizer(file, reader, config["model_type"])
    except (ArithmeticError, KeyError, TypeError, ValueError) as error:
        raise _not_gguf(file, error) from error
    size = sum(map(_bytes, reader.tensors))
    notify(f"{file.name}: converting to {size / 1e6:,.0f} MB in {out}")
    with room_for(out, size) as partial:
        _save_tokenizer(file, reader, partial)
        _save_weights(reader, names, config, partial)
        (partial / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        publish(partial, out, {"gguf_sha256": sha256_of(file)})


def publish(partial: Path, out: Path, source: dict[str, str]) -> None:
    """Makes `partial` the folder `out` of a converted model; `source` has the hashes of what it is made of."""
    hashes = {each.name: sha256_of(each) for each in sorted(partial.iterdir())}
    done = {**source, "files_sha256": hashes}
    (partial / DONE).write_text(json.dumps(done, indent=2) + "\n", encoding="utf-8")
    if not is_converted(out):  # another process may have been faster
        shutil.rmtree(out, ignore_errors=True)
        partial.rename(out)


@cache
def intact(folder: Path) -> Path:
    """The folder of a converted model. Raises UserError where its files are not those that were written."""
    for name, sha256 in json.loads((folder / DONE).read_text(encoding="utf-8"))["files_sha256"].items():
        file = folder / name
        if not file.is_file() or sha256_of(file) != sha256:
            raise UserError(
                "damaged_cache",
                f"{file}: missing or altered. Delete the folder {folder} and repeat the command; for a fetched model "
                "repeat benchctl fetch first",
            )
    return folder


def sha256_of(file: Path) -> str:
    """Hash of a file."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def room_for(out: Path, size: int) -> Iterator[Path]:
    """A folder next to `out` for so many bytes, which may be renamed to it; otherwise it is removed.

    Raises UserError where so much is not free, and where the system refuses to write.
    """
    partial = out.with_name(f".partial-{os.getpid()}-{out.name}")
    try:
        partial.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(partial).free
        if free < size * 1.02:
            raise UserError(
                "disk_full",
                f"{out.parent}: {size / 1e6:,.0f} MB are needed and {free / 1e6:,.0f} MB are free; free some space, or "
                "set BENCHCTL_CACHE to a folder on another disk",
            )
        yield partial
    except OSError as error:
        if error.errno is None:  # not of the system
            raise
        raise UserError(
            "cache_not_writable",
            f"{out.parent}: cannot be written ({error.strerror}); set BENCHCTL_CACHE to a writable folder",
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
    except (ArithmeticError, LookupError, TypeError, ValueError, OSError) as error:
        raise _not_gguf(file, error) from error


def _not_gguf(file: Path, error: Exception) -> UserError:
    reason = f"{type(error).__name__}: {error}"
    return UserError(
        "not_a_gguf_file", f"{file}: is no GGUF file, or is cut off or incomplete; get it again ({reason})"
    )


def _value(reader: Any, key: str, default: Any = None) -> Any:
    field = reader.fields.get(key)
    return default if field is None else field.contents()


def _config(file: Path, reader: Any) -> dict[str, Any]:
    """config.json as transformers reads it. Raises UserError for what benchctl does not compute, KeyError and the like
    for what is missing or impossible."""
    family = _value(reader, "general.architecture", "unknown")
    if family not in CLASSES:
        known = ", ".join(CLASSES)
        raise UserError("unknown_family", f"{file}: architecture '{family}' cannot be read from GGUF; known: {known}")
    for name in _CHANGES_ARITHMETIC:
        if _value(reader, f"{family}.{name}"):
            raise UserError(
                "unknown_family", f"{file}: {family}.{name} cannot be read from GGUF; use the model's folder"
            )

    def size(key: str, default: int | None = None) -> int:
        value = (
            reader.fields[f"{family}.{key}"].contents()
            if default is None
            else _value(reader, f"{family}.{key}", default)
        )
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{family}.{key} is {value!r}")
        return int(value)

    heads, width = size("attention.head_count"), size("embedding_length")
    head_dim = size("attention.key_length", width // heads)
    prefixes = (f"{family}.rope.scaling.", f"{family}.rope.scale_linear")  # the latter in files of 2023
    scaled = [key for key in reader.fields if key.startswith(prefixes)]
    if (
        any(_value(reader, key) not in ("none", 1.0) for key in scaled)
        or _tensor(reader, "rope_freqs.weight")
        or size("rope.dimension_count", head_dim) != head_dim
    ):
        raise UserError(
            "unsupported_rope",
            f"{file}: scaled or partial rotary positions cannot be read from GGUF; use the model's own folder",
        )
    ends = _ends(reader)
    config = {
        "architectures": [CLASSES[family]],
        "model_type": family,
        "vocab_size": size("vocab_size", len(reader.fields["tokenizer.ggml.tokens"].data)),
        "hidden_size": width,
        "intermediate_size": size("feed_forward_length"),
        "num_hidden_layers": size("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": size("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": size("context_length"),
        "rms_norm_eps": float(reader.fields[f"{family}.attention.layer_norm_rms_epsilon"].contents()),
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": float(_value(reader, f"{family}.rope.freq_base", 10000.0)),
        },
        "hidden_act": "silu",
        "tie_word_embeddings": _tensor(reader, "output.weight") is None,
        "bos_token_id": _value(reader, "tokenizer.ggml.bos_token_id"),
        # One id as such: the hash of the folder identifies a model, also those fetched before there were several.
        "eos_token_id": ends if len(ends) > 1 else next(iter(ends), None),
        "dtype": "float32",
    }
    if family == "llama":
        config["attention_bias"] = _tensor(reader, "blk.0.attn_q.bias") is not None
    return config


def _ends(reader: Any) -> list[int]:
    """The tokens that end a text, a turn and a message."""
    ids = (_value(reader, f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom"))
    return list(dict.fromkeys(id for id in ids if id is not None))


def _tensor(reader: Any, name: str) -> Any:
    return next((tensor for tensor in reader.tensors if tensor.name == name), None)


def _is_half(tensor: Any) -> bool:
    """Whether its values are kept in float16, as they are; all others become float32."""
    return bool(tensor.tensor_type.name == "F16")


def _bytes(tensor: Any) -> int:
    return int(tensor.n_elements) * (2 if _is_half(tensor) else 4)


def _names(file: Path, reader: Any, config: dict[str, Any]) -> dict[str, str]:
    """transformers' name of each tensor by GGUF's. Raises UserError unless the file has those of its configuration."""
    from gguf import dequantize
    from transformers import CONFIG_MAPPING

    settings = {name: value for name, value in config.items() if name != "model_type"}
    if config["hidden_size"] % config["num_attention_heads"]:  # transformers refuses such a model
        raise UserError(
            "weights_do_not_fit",
            f"{file}: {config['hidden_size']} values cannot be split into {config['num_attention_heads']} heads; get "
            "another file of this model",
        )
    weights = weights_of(CONFIG_MAPPING[config["model_type"]](**settings))
    names = {theirs: name for name, (theirs, _) in weights.items()}
    expected = dict(weights.values())
    found = {tensor.name: tuple(map(int, tensor.shape[::-1])) for tensor in reader.tensors}
    if wrong := sorted(name for name in {*expected, *found} if expected.get(name) != found.get(name)):
        raise UserError(
            "weights_do_not_fit",
            f"{file}: {len(wrong)} tensors are missing, unexpected or of another shape, such as {wrong[0]}; get "
            "another file of this model",
        )
    for tensor in {tensor.tensor_type: tensor for tensor in reader.tensors}.values():
        try:
            dequantize(tensor.data[:1], tensor.tensor_type)
        except (NotImplementedError, ValueError) as error:
            kind = tensor.tensor_type.name
            raise UserError(
                "quantised_checkpoint", f"{file}: weights of type {kind} cannot be read; get a file of another type"
            ) from error
    return names


def weights_of(config: Any) -> dict[str, tuple[str, tuple[int, ...]]]:
    """GGUF's name and the shape of each weight of a model with this configuration, by transformers' name.

    Raises UserError for a weight that GGUF does not know.
    """
    from gguf import MODEL_ARCH, get_tensor_name_map
    from torch import device
    from transformers import AutoModelForCausalLM

    with device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    places = get_tensor_name_map(MODEL_ARCH[config.model_type.upper()], config.num_hidden_layers)
    weights = dict[str, tuple[str, tuple[int, ...]]]()
    for name, parameter in model.named_parameters():
        theirs = places.get_name(name, (".weight", ".bias"))
        if theirs is None:
            raise UserError("not_exportable", f"GGUF files have no place for the weight {name} of this model.")
        weights[name] = (theirs, tuple(parameter.shape))
    return weights


def _save_weights(reader: Any, names: dict[str, str], config: dict[str, Any], folder: Path) -> None:
    """Writes the weights in shards, one weight in memory at a time."""
    from gguf import dequantize

    shards: list[list[Any]] = [[]]
    size = 0
    for tensor in reader.tensors:
        grown = _bytes(tensor)
        if shards[-1] and size + grown > _SHARD_BYTES:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += grown
    interleaved = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}

    def values_of(tensor: Any) -> Any:
        kind = "float16" if _is_half(tensor) else "float32"
        values = dequantize(tensor.data, tensor.tensor_type).astype(kind, copy=False)
        heads = interleaved.get(tensor.name.split(".")[-2])
        if config["model_type"] == "llama" and heads is not None:
            values = _in_halves(values, heads)
        return values

    places: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        name = "model.safetensors" if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        places |= {names[tensor.name]: name for tensor in shard}
        # In the order of safetensors' own writer: the hash of the file identifies a model.
        ordered = sorted(shard, key=lambda tensor: (_is_half(tensor), names[tensor.name]))
        with (folder / name).open("wb") as file:
            file.write(_head({names[tensor.name]: tensor for tensor in ordered}))
            for tensor in ordered:
                values_of(tensor).tofile(file)
    if len(shards) > 1:
        index = {"metadata": {}, "weight_map": places}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index) + "\n", encoding="utf-8")


def _head(tensors: dict[str, Any]) -> bytes:
    """The head of a safetensors file with these tensors, in this order, as safetensors' own writer has it.

    Format: github.com/huggingface/safetensors.
    """
    head: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    start = 0
    for name, tensor in tensors.items():
        end = start + _bytes(tensor)
        shape = list(map(int, tensor.shape[::-1]))
        head[name] = {"dtype": "F16" if _is_half(tensor) else "F32", "shape": shape, "data_offsets": [start, end]}
        start = end
    text = json.dumps(head, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _in_halves(values: Any, heads: int) -> Any:
    """Rows of a query or key projection as transformers rotates them: the two of a pair lie half a head apart.

    Rows 0, 2, 1, 3 of one head become 0, 1, 2, 3.
    """
    pairs = values.reshape(heads, -1, 2, *values.shape[1:])
    return pairs.swapaxes(1, 2).reshape(values.shape)


def _check_tokenizer(file: Path, reader: Any, family: str) -> None:
    """Raises UserError for a tokenizer that is not known to split text as the original does."""
    kind, split = _value(reader, "tokenizer.ggml.model"), _value(reader, "tokenizer.ggml.pre")
    keeps_spaces = not _value(reader, "tokenizer.ggml.remove_extra_whitespaces")
    needed = "tokenizer.ggml.scores" if kind == _SENTENCEPIECE else "tokenizer.ggml.merges"
    known = (
        keeps_spaces and family != "qwen2" if kind == _SENTENCEPIECE else kind == "gpt2" and split in _SPLITS[family]
    )
    if not known:
        raise UserError(
            "unknown_tokenizer",
            f"{file}: tokenizer '{kind}' with pre-tokenizer '{split}' cannot be read from GGUF; use "
            "the model's own folder",
        )
    reader.fields[needed]


def _save_tokenizer(file: Path, reader: Any, folder: Path) -> None:
    """tokenizer.json, its configuration and the chat template, as the original model had them."""
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    alone = folder / f"source{SUFFIX}"  # a tokenizer.json next to the file would be read instead
    alone.symlink_to(file.resolve())
    tokenizer: Any = AutoTokenizer.from_pretrained(str(folder), gguf_file=alone.name)
    alone.unlink()
    if _value(reader, "tokenizer.ggml.pre") == _DIGITS_APART:
        digits = pre_tokenizers.Digits(individual_digits=True)
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [digits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
        )
    if _value(reader, "tokenizer.ggml.pre") == _TOKENS_FIRST:
        tokenizer.backend_tokenizer.model.ignore_merges = True
    if _value(reader, "tokenizer.ggml.model") == _SENTENCEPIECE:
        _split_as_sentencepiece(
            tokenizer.backend_tokenizer, bool(_value(reader, "tokenizer.ggml.add_space_prefix", True))
        )
    kept = {name: token for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}
    plain: Any = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, **kept)  # type: ignore[no-untyped-call]
    plain.chat_template = tokenizer.chat_template
    plain.save_pretrained(str(folder))


def _split_as_sentencepiece(tokenizer: Any, space_first: bool) -> None:
    """Sets how a sentencepiece vocabulary reads text: every space counts, and a first one is added if asked.

    transformers' own reader gives other ids for two spaces.
    """
    from tokenizers import decoders, normalizers

    space = "\u2581"
    spaces = normalizers.Replace(" ", space)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(space), spaces]) if space_first else spaces
    tokenizer.pre_tokenizer = None
    parts = [decoders.Replace(space, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)] if space_first else parts)
