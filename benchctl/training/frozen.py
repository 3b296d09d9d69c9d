"""A target as training needs it: transformers' own model, which stands still, with its tokenizer and its identity."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from benchctl import packs
from benchctl.decoding.families import context_tokens
from benchctl.decoding.hub import downloaded
from benchctl.decoding.target import DTYPES, Target, TargetInfo, check_complete, quiet
from benchctl.decoding.tokenizer import TargetTokenizer, from_pretrained, load_tokenizer
from benchctl.errors import UserError
from benchctl.training.chat import ChatFormat


@dataclass(frozen=True)
class TargetFiles:
    """A target before its weights are read: what it is called, where its files are, its tokenizer and configuration."""

    name: str
    path: Path | str
    tokenizer: TargetTokenizer
    config: Any

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


def find_target(name_or_path: str) -> TargetFiles:
    """Tokenizer and configuration of an embedded name, a folder or a hub id. Raises UserError where that fails."""
    path = packs.resolve(name_or_path)
    tokenizer = load_tokenizer(path)
    if tokenizer.encodes:
        raise UserError(f"{name_or_path} has an encoder; so far only targets without one can be trained for")
    return TargetFiles(_name(name_or_path, path), path, tokenizer, from_pretrained(AutoConfig, path))


def chat_of(files: TargetFiles) -> ChatFormat:
    """How chats are written for it. Raises UserError for a tokenizer with ids that the model has no embedding of."""
    chat, known = ChatFormat.load(files.path), int(files.config.vocab_size)
    if chat.vocabulary > known:
        raise UserError(
            f"{files.name}: its tokenizer has {chat.vocabulary:,} ids and its configuration a vocabulary of {known:,}; "
            "put the tokenizer that belongs to the model into its folder"
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
        raise UserError(f"{files.name} sees {sees} tokens at a time; give --row-tokens {sees} or fewer")


def load_target(files: TargetFiles, device: torch.device, dtype: str) -> FrozenTarget:
    """Reads the weights in `dtype`, a name of DTYPES. Raises UserError where that fails or the family is unknown.

    What decoding makes of the weights, only to be asked who the target is, is made and dropped on the CPU: a GPU never
    holds both.
    """
    options = {"dtype": DTYPES[dtype], "attn_implementation": "sdpa", "output_loading_info": True}
    with quiet() if isinstance(files.path, Path) else nullcontext():  # a download keeps its bar
        model, loading = from_pretrained(AutoModelForCausalLM, files.path, **options)
    check_complete(files.path, loading)
    model = model.eval().requires_grad_(False)
    info, weights_sha256 = _identity(model, files)
    return FrozenTarget(files, model.to(device), info, weights_sha256)


def _identity(model: PreTrainedModel, files: TargetFiles) -> tuple[TargetInfo, str]:
    target = Target(model, files.tokenizer, files.folder)
    return target.info, target.weights_sha256


def _name(asked: str, path: Path | str) -> str:
    """The name for cards: an embedded name or hub id as it is, a folder by its own name only."""
    embedded = any(model.name == asked for model in packs.models())
    return asked if embedded or isinstance(path, str) else path.resolve().name
