"""Reading a model of transformers from a folder or hub id: its files, their hash, and the logits it must give."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchctl.decoding.model.families import context_tokens, family_of
from benchctl.decoding.model.forms import dequantising, quantised_form
from benchctl.decoding.model.tokenizer import TargetTokenizer, downloaded, from_pretrained
from benchctl.errors import UserError

_TOKENS = 24


@torch.inference_mode()
def probe(model: Any, config: Any) -> tuple[list[int], Tensor]:
    """Token ids spread over the vocabulary, and the transformers model's own logits [rows, vocabulary] for them.

    ``config`` is that of the text part, where the model reads images too.
    """
    rows = min(_TOKENS, context_tokens(config))
    ids = torch.linspace(0, config.vocab_size - 1, rows).long()
    both = ids[None].to(model.device)
    decoder = {"decoder_input_ids": both} if model.config.is_encoder_decoder else {}
    return ids.tolist(), model(both, **decoder, use_cache=False).logits[0]


DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in ("float32", "float64", "bfloat16", "float16")}


@contextmanager
def quiet() -> Iterator[None]:
    """transformers without progress bars, and afterwards as it was."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


DRAFT_VOCABULARY = "draft_vocabulary.safetensors"  # in the folder of a draft model, next to its weights


def weight_files(folder: Path) -> list[Path]:
    """Files whose hash identifies a model: safetensors or, where there are none, files that torch pickled."""
    kept = sorted(folder.glob("*.safetensors"))
    if all(file.name == DRAFT_VOCABULARY for file in kept):
        pickled = sorted(folder.glob("pytorch_model*.bin"))
        kept = [*kept, *pickled] if pickled else []
    return kept


def folder_sha256(folder: Path) -> str:
    """Hash of a model folder's weights and of the configuration that says how they are read."""
    digest = hashlib.sha256()
    for file in (*weight_files(folder), folder / "config.json"):
        with file.open("rb") as stream:
            hashlib.file_digest(stream, lambda: digest)
    return digest.hexdigest()


def files_sha256(path: str | Path) -> str:
    """Hash of the files of a folder or hub id; "" where they have none that identify it, or are not here yet."""
    folder = Path(path) if Path(path).is_dir() else downloaded(str(path))
    return folder_sha256(folder) if folder is not None and weight_files(folder) else ""


def form_sha256(files: str, weights: str) -> str:
    """`weights_sha256` of a target whose files have this hash and whose ``weights`` are kept so; "" of ""."""
    if weights == "auto" or not files:
        return files
    return hashlib.sha256(f"{files} {weights}".encode()).hexdigest()


def check_weights(weights: str, config: Any, dtype: str, device: str) -> None:
    """Raises UserError where a model cannot be kept with such ``weights``, before they are read."""
    if weights == "auto":
        return
    family = family_of(config)
    if dtype != "float32":
        reason = f"it computes in float32, not in {dtype}; leave out --dtype, or --weights"
    elif torch.device(device).type != "cpu":
        reason = "its products exist on CPUs alone; add --device cpu, or give --dtype float16 instead"
    elif family.has_encoder or family.experts_per_token(config):
        what = "a model with an encoder" if family.has_encoder else "a mixture of experts"
        reason = f"{what} is not supported; leave out --weights"
    elif "fbgemm" not in torch.backends.quantized.supported_engines:
        reason = "torch has no FBGEMM on this machine; leave out --weights"
    else:
        return
    raise UserError("weights_unsupported", f"--weights {weights} cannot be used: {reason}.")


@torch.no_grad()
def round_weights(model: Any, path: str | Path) -> None:
    """Round each weight matrix of a float32 ``model`` to float16, in place; gains and biases stay.

    Raises UserError for weights beyond the range of float16.
    """
    for name, weight in model.named_parameters():
        _round(weight, name, path)


def _round(weight: Tensor, name: str, path: str | Path) -> None:
    if weight.ndim > 1:
        weight.copy_(weight.half())
        if weight.isinf().any():
            reason = "is beyond the range of float16; leave out --weights"
            raise UserError("weights_overflow", f"{path}: a number in {name} {reason}.")


def weight_reader(path: str | Path, dtype: str, device: str, weights: str) -> Callable[[str, Tensor], Tensor]:
    """Function of a weight's name and what a file holds: a copy in ``dtype`` on ``device``, rounded if so asked."""

    def read(name: str, stored: Tensor) -> Tensor:
        weight = stored.to(device).to(DTYPES[dtype], copy=True)
        if weights == "float16":
            _round(weight, name, path)
        return weight

    return read


def in_dtype(model: Any, dtype: torch.dtype) -> None:
    """Convert all weights: next to quantised ones, transformers leaves others as the file has them."""
    for weight in model.parameters():
        weight.data = weight.data.to(dtype)


def check_complete(path: str | Path, info: Mapping[str, Any]) -> None:
    """Raises UserError where loading info says that weights are missing, which transformers makes up, or left over."""
    for key, told in (("missing_keys", "lacks {} weights of"), ("unexpected_keys", "has {} weights that are not in")):
        if names := sorted(info[key]):
            what = told.format(len(names))
            raise UserError("weights_do_not_fit", f"{path} {what} its configuration, such as {names[0]}; get it again")


def read_model(
    path: str | Path,
    tokenizer: TargetTokenizer,
    *,
    dtype: str,
    device: str,
    weights: str = "auto",
    experts: str | None = "eager",
) -> Any:
    """The model of transformers in a folder or hub id, in ``dtype`` on ``device``, its ``weights`` rounded if so asked.

    ``experts`` names transformers' implementation of their products; None leaves the choice to transformers.
    Raises UserError where it cannot be read.
    """
    import transformers
    from transformers import CONFIG_MAPPING

    # Reading a local folder takes no time worth a bar; a download keeps its own.
    with quiet() if Path(path).is_dir() else nullcontext():
        options = {"dtype": DTYPES[dtype], "output_loading_info": True}
        options |= {"experts_implementation": experts} if experts else {}
        kind: Any = transformers.AutoModelForCausalLM
        if tokenizer.is_encoder_decoder:
            kind = transformers.AutoModelForSeq2SeqLM
        elif tokenizer.wrapper and CONFIG_MAPPING[tokenizer.wrapper] not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
            kind = transformers.AutoModelForImageTextToText  # it also answers text alone
        model, info = from_pretrained(kind, path, **options, **dequantising(tokenizer.config))
    check_complete(path, info)
    if quantised_form(tokenizer.config):
        in_dtype(model, DTYPES[dtype])
    model = model.to(device).eval()
    if weights == "float16":
        round_weights(model, path)
    return model
