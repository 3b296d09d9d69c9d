"""The target model: load it, turn text into tokens and back, run rows through its layers.

The only door to transformers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchctl.decoding.cache import Cache
from benchctl.decoding.families import check_family, context_tokens, read_layers, read_norm, rotary_table
from benchctl.decoding.kernels import Linear, may_copy
from benchctl.decoding.layers import Layer, Layout, fill_layers, run_layers
from benchctl.errors import UserError

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


_HEAD_ROWS = 8  # the head's kernel depends on the number of rows too; all rows would take much memory


@dataclass(frozen=True)
class TargetInfo:
    """Plain facts of a target, for records."""

    family: str
    layers: int
    hidden_size: int
    parameters: int
    vocabulary: int
    context_tokens: int


class TargetTokenizer:
    """Text to ids and back, with what the configuration says of context and stop ids; needs no weights."""

    def __init__(self, tokenizer: Any, config: Any, stop_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self.context_tokens = context_tokens(config)
        self.vocabulary = int(config.vocab_size)
        self.stop_ids = stop_ids

    @cached_property
    def sha256(self) -> str:
        """Hash of the vocabulary and of everything else that decides how text becomes ids."""
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        whole = backend.to_str() if backend is not None else json.dumps(self._tokenizer.get_vocab(), sort_keys=True)
        return hashlib.sha256(whole.encode()).hexdigest()

    @property
    def chat_template_sha256(self) -> str:
        template = self._tokenizer.chat_template
        return hashlib.sha256(str(template).encode()).hexdigest() if template else ""

    def same_vocabulary(self, other: TargetTokenizer) -> bool:
        """Whether every id means the same text in both, as drafting with another model requires."""
        return bool(self._tokenizer.get_vocab() == other._tokenizer.get_vocab())

    def encode_chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Ids of a conversation that asks for the assistant's next answer.

        Without a chat template the contents are joined by blank lines, after the tokenizer's own first token if any.
        """
        if self._tokenizer.chat_template:
            text = self._tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
            ids = self._tokenizer.encode(text, add_special_tokens=False)
        else:
            ids = self._tokenizer.encode("\n\n".join(message["content"] for message in messages))
            first = self._tokenizer.bos_token_id
            ids = ids if first is None or ids[:1] == [first] else [first, *ids]
        return [int(token) for token in ids]

    def decode_text(self, ids: Sequence[int]) -> str:
        """Text of ``ids`` without special tokens."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))


def load_tokenizer(path: str | Path) -> TargetTokenizer:
    """Tokenizer and configuration of a folder or hub id; UserError when there is none or the family is unknown."""
    import transformers

    config = _from_pretrained(transformers.AutoConfig, path)
    check_family(config)
    tokenizer = _from_pretrained(transformers.AutoTokenizer, path)
    return TargetTokenizer(tokenizer, config, _stop_ids(path, config, tokenizer))


def _from_pretrained(kind: Any, path: str | Path, **options: Any) -> Any:
    try:
        return kind.from_pretrained(str(path), **options)
    except Exception as error:  # a broken folder raises whatever the reader of the broken file happens to raise
        lines = str(error).strip().splitlines() or ["no reason given"]
        reason = lines[0] if isinstance(error, OSError | ValueError) else f"{type(error).__name__}: {lines[0]}"
        hint = "" if Path(path).is_dir() else " (a hub id needs network; a local model is named by its folder)"
        raise UserError(f"cannot load {path}: {reason}{hint}") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """transformers without progress bars, and afterwards as it was."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def _stop_ids(path: str | Path, config: Any, tokenizer: Any) -> frozenset[int]:
    """Every id that ends an answer: generation configuration first, as transformers' generate does."""
    import transformers

    try:
        found = transformers.GenerationConfig.from_pretrained(str(path)).eos_token_id
    except OSError:
        found = None
    for value in (found, config.eos_token_id, tokenizer.eos_token_id):
        if value is not None:
            return frozenset(value if isinstance(value, list) else [value])
    return frozenset()


class Target:
    """A loaded model as embed -> layers a..b -> head over rows of one sequence."""

    def __init__(self, model: Any, tokenizer: TargetTokenizer | None, folder: Path | None = None) -> None:
        check_family(model.config)
        weights = sum(p.numel() * p.element_size() for p in model.parameters())
        fast = may_copy(weights)
        self.tokenizer_or_none = tokenizer
        self._folder = folder
        self.config = model.config
        self.embedding: Tensor = model.model.embed_tokens.weight.detach()
        self._embedding_scale = float(getattr(model.model.embed_tokens, "scalar_embed_scale", 1.0))
        self.dtype = self.embedding.dtype
        self.device = self.embedding.device
        self.context_tokens = context_tokens(model.config)
        self.blocks: list[Layer] = read_layers(model, fast)
        self.final_norm = read_norm(model.model.norm, model.config)
        self.lm_head = Linear(model.lm_head.weight, model.lm_head.bias, fast)
        self.rotary = rotary_table(model, self.context_tokens, self.dtype)
        self.parameters = sum(p.numel() for p in model.parameters())

    @classmethod
    def load(cls, path: str | Path, *, dtype: str = "float32", device: str = "cpu") -> Target:
        """Load a folder or hub id of a supported family in ``dtype`` onto ``device``; UserError when that fails."""
        import transformers

        tokenizer = load_tokenizer(path)
        folder = Path(path) if Path(path).is_dir() else None
        # Reading a local folder takes no time worth a bar; a download keeps its own.
        with _quiet() if folder else nullcontext():
            options = {"dtype": DTYPES[dtype], "output_loading_info": True}
            model, info = _from_pretrained(transformers.AutoModelForCausalLM, path, **options)
        if info["missing_keys"]:
            names = sorted(info["missing_keys"])
            raise UserError(f"{path} lacks {len(names)} weights of its configuration, such as {names[0]}; get it anew")
        return cls(model.to(device).eval(), tokenizer, folder)

    @property
    def tokenizer(self) -> TargetTokenizer:
        if self.tokenizer_or_none is None:
            raise UserError("this target was made without a tokenizer")
        return self.tokenizer_or_none

    @property
    def layers(self) -> int:
        return len(self.blocks)

    @property
    def vocabulary(self) -> int:
        return int(self.lm_head.out_features)

    @property
    def stop_ids(self) -> frozenset[int]:
        return self.tokenizer_or_none.stop_ids if self.tokenizer_or_none is not None else frozenset()

    @property
    def info(self) -> TargetInfo:
        return TargetInfo(
            family=self.config.model_type,
            layers=self.layers,
            hidden_size=int(self.config.hidden_size),
            parameters=self.parameters,
            vocabulary=self.vocabulary,
            context_tokens=self.context_tokens,
        )

    @cached_property
    def weights_sha256(self) -> str:
        """Hash over the weight files of a local folder; of the embedding and head where there is no folder."""
        digest = hashlib.sha256()
        files = sorted(self._folder.glob("*.safetensors")) if self._folder is not None else []
        for file in files:
            digest.update(file.read_bytes())
        if not files:
            for tensor in (self.embedding, self.lm_head.weight, self.final_norm.gain):
                digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def new_cache(self, tokens: int) -> Cache:
        """An empty cache with room for ``tokens`` rows per layer."""
        attention = self.blocks[0].attention
        return Cache(self.layers, attention.kv_heads, attention.head_dim, tokens, like=self.embedding)

    def embed(self, tokens: Sequence[int]) -> Tensor:
        """Residual before the first layer, [rows, width]."""
        ids = torch.tensor(list(tokens), device=self.device)
        rows = F.embedding(ids, self.embedding)
        return rows if self._embedding_scale == 1.0 else rows * rows.new_tensor(self._embedding_scale)

    def layout(
        self, base: int, positions: Sequence[int], ancestors: Sequence[Sequence[int]] | None = None, skip: int = 0
    ) -> Layout:
        """Where rows stand; see Layout."""
        return Layout(base, positions, ancestors, self.rotary, skip)

    def run(self, rows: Tensor, cache: Cache, first: int, last: int, layout: Layout) -> Tensor:
        """Residual ``rows`` [rows, width] through layers first .. last - 1; their keys and values enter the cache."""
        return run_layers(self.blocks[first:last], first, rows, cache, layout)

    def fill(self, rows: Tensor, cache: Cache, first: int, layout: Layout) -> None:
        """Keys and values of layers ``first`` .. from the one residual ``rows``, nothing else (state propagation)."""
        fill_layers(self.blocks[first:], first, rows, cache, layout)

    def head(self, rows: Tensor) -> Tensor:
        """Target logits [rows, vocabulary] of residual ``rows`` [rows, width]."""
        return self.lm_head(self.final_norm(rows))

    @torch.inference_mode()
    def next_logits(self, tokens: Sequence[int], *, one_by_one: bool = False) -> Tensor:
        """Logits [vocabulary] after ``tokens``: in one pass, or with the last token as a row of its own.

        The two ways differ only by rounding, which is the noise floor a near-tie is judged against.
        """
        cache = self.new_cache(len(tokens))
        split = len(tokens) - 1 if one_by_one else 0
        for start, part in ((0, tokens[:split]), (split, tokens[split:])):
            if part:
                layout = self.layout(start, range(start, start + len(part)))
                rows = self.run(self.embed(part), cache, 0, self.layers, layout)
        return self.head(rows[-_HEAD_ROWS:])[-1]
