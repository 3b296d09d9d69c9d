"""A target as training needs it: transformers' own model, which stands still, with its tokenizer and its identity."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedModel

from benchctl import bundled
from benchctl.decoding.method import Method
from benchctl.decoding.model.families import context_tokens
from benchctl.decoding.model.target import DTYPES, Target, TargetInfo, check_complete, quiet
from benchctl.decoding.model.tokenizer import TargetTokenizer, downloaded, from_pretrained, load_tokenizer
from benchctl.decoding.modules.folder import check_sizes
from benchctl.decoding.modules.trainable import Trainable
from benchctl.errors import UserError
from benchctl.registry import Label, method_class, method_names
from benchctl.training.data.chats import ChatFormat, EncoderChat


@dataclass(frozen=True)
class TargetFiles:
    """A target before its weights are read: what it is called, where its files are, its tokenizer and configuration."""

    name: str
    path: Path | str
    tokenizer: TargetTokenizer

    @property
    def config(self) -> Any:
        return self.tokenizer.config

    @property
    def folder(self) -> Path:
        """Where the files are, also those of a hub id."""
        found = self.path if isinstance(self.path, Path) else downloaded(self.path)
        assert found is not None  # its configuration has been read
        return found


@dataclass(frozen=True)
class FrozenTarget:
    """A loaded target: its parameters take no gradient."""

    files: TargetFiles
    model: PreTrainedModel
    info: TargetInfo
    weights_sha256: str

    @property
    def lm_head(self) -> Tensor:
        """[vocabulary, width]"""
        model: Any = self.model
        weight: Tensor = model.get_output_embeddings().weight
        return weight.detach()

    @property
    def device(self) -> torch.device:
        return self.model.device


def find_target(name_or_path: str, encoders: bool = False) -> TargetFiles:
    """Tokenizer and configuration of an embedded name, a folder or a hub id.

    Raises UserError where that fails, and for a model with an encoder unless `encoders` says that it may have one.
    """
    path = bundled.resolve(name_or_path)
    tokenizer = load_tokenizer(path)
    if tokenizer.is_encoder_decoder and not encoders:
        raise UserError(
            "encoder_not_supported",
            f"{name_or_path} has an encoder, and what you ask for is for models without one; name another model, or "
            f"train modules that know encoders: {', '.join(_know_encoders())}",
        )
    return TargetFiles(_name(name_or_path, path), path, tokenizer)


def check_method(method: Method, label: Label, files: TargetFiles) -> None:
    """Raises UserError for a method that cannot run on this target, or whose modules are of one of other sizes."""
    info = TargetInfo.of(files.config)
    if problem := method.unsupported(info):
        raise UserError("label_cannot_run", f"{label.text} cannot run on {files.name}: {problem}")
    if isinstance(method, Trainable):
        check_sizes(method, info)


def chat_of(files: TargetFiles) -> ChatFormat:
    """How chats are written for it. Raises UserError for a tokenizer with ids that the model has no embedding of."""
    kind = EncoderChat if files.tokenizer.is_encoder_decoder else ChatFormat
    chat, known = kind.load(files.path), int(files.config.vocab_size)
    if chat.vocabulary > known:
        raise UserError(
            "other_vocabulary",
            f"{files.name}: its tokenizer has {chat.vocabulary:,} ids and its configuration a vocabulary of {known:,}; "
            "put the tokenizer that belongs to the model into its folder",
        )
    return chat


def seen_tokens(files: TargetFiles) -> int:
    """The longest rows it may be given: its context, or its sliding window, which rows with masks of their own lack."""
    window = getattr(files.config, "sliding_window", None)
    return min(context_tokens(files.config), window or sys.maxsize)


def check_rows(files: TargetFiles, row_tokens: int) -> None:
    """Raises UserError for rows longer than what the target sees."""
    sees = seen_tokens(files)
    if row_tokens > sees:
        raise UserError("row_too_long", f"{files.name} sees {sees} tokens at a time; give --row-tokens {sees} or fewer")


def load_target(files: TargetFiles, device: torch.device, dtype: str) -> FrozenTarget:
    """Reads the weights in `dtype`, a name of DTYPES. Raises UserError where that fails or the family is unknown.

    What decoding makes of the weights, only to be asked who the target is, is made and dropped on the CPU: a GPU never
    holds both.
    """
    options = {"dtype": DTYPES[dtype], "attn_implementation": "sdpa", "output_loading_info": True}
    with quiet() if isinstance(files.path, Path) else nullcontext():  # a download keeps its bar
        kind = AutoModelForSeq2SeqLM if files.tokenizer.is_encoder_decoder else AutoModelForCausalLM
        model, loading = from_pretrained(kind, files.path, **options)
    check_complete(files.path, loading)
    model = model.eval().requires_grad_(False)
    info, weights_sha256 = _identity(model, files)
    return FrozenTarget(files, model.to(device), info, weights_sha256)


def _identity(model: PreTrainedModel, files: TargetFiles) -> tuple[TargetInfo, str]:
    target = Target(model, files.tokenizer, files.folder)
    return target.info, target.weights_sha256


def _know_encoders() -> list[str]:
    kinds = {name: method_class(name) for name in method_names()}
    return [name for name, kind in kinds.items() if kind.supports_encoder_decoder and issubclass(kind, Trainable)]


def _name(asked: str, path: Path | str) -> str:
    """The name for cards: an embedded name or hub id as it is, a folder by its own name only."""
    embedded = any(model.name == asked for model in bundled.models())
    return asked if embedded or isinstance(path, str) else path.resolve().name
