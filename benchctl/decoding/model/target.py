"""The target model: load it, check it, and run rows of one sequence through its layers.

Every load compares our logits with transformers' own, so an unknown variant is refused. Too short for windows or rotary
scaling beyond its length: tests/decoding/test_families.py covers those.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchctl.decoding.kv.cache import Cache, Encoded, Layout
from benchctl.decoding.model.families import check_family, context_tokens, facts_of, family_of
from benchctl.decoding.model.families.family import rotations
from benchctl.decoding.model.kernels import Form, Linear, may_copy
from benchctl.decoding.model.layers import Filler, Layer, RelativeLayout, run_layers
from benchctl.decoding.model.layerwise import open_layerwise
from benchctl.decoding.model.loading import (
    DTYPES,
    check_weights,
    folder_sha256,
    form_sha256,
    probe,
    read_model,
    weight_files,
    weight_reader,
)
from benchctl.decoding.model.tokenizer import TargetTokenizer, downloaded, load_tokenizer
from benchctl.errors import UserError

SPLIT = 20  # more rows than the batched attention takes, then fewer: both ways of attending are checked
# The share of the logits' spread that rounding may move; a part left out or read wrongly moves far more.
ROUNDING = {torch.float64: 1e-4, torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.1}
_HEAD_ROWS = 8  # the head's kernel depends on the number of rows too; all rows would take much memory


@dataclass(frozen=True)
class TargetInfo:
    """Plain facts of a target, known before its weights are read.

    query_size, kv_size  width of all query heads, and of all key heads, of a layer together; its values are as wide
    mlp_size             inner width of each layer's MLP; 0 for a mixture of experts, also where some layers are dense
    experts_per_token    that a token goes to in a layer that has experts; 0 for a dense target
    is_encoder_decoder   whether an encoder reads the prompt
    opaque               whether transformers runs all layers, so that no method sees one of them
    plain_layers         whether each layer computes what Llama's does, see Family
    """

    family: str
    layers: int
    hidden_size: int
    vocabulary: int
    context_tokens: int
    query_size: int
    mlp_size: int
    kv_size: int
    experts_per_token: int
    is_encoder_decoder: bool
    head_dim: int
    opaque: bool = False
    plain_layers: bool = True

    @classmethod
    def of(cls, config: Any, opaque: bool = False) -> TargetInfo:
        family = facts_of(config)
        head_dim = family.head_dim(config)
        return cls(
            family=config.model_type,
            layers=family.layers(config),
            hidden_size=int(config.hidden_size),
            vocabulary=int(config.vocab_size),
            context_tokens=family.context_tokens(config),
            query_size=family.heads(config) * head_dim,
            mlp_size=family.mlp_size(config),
            kv_size=family.kv_heads(config) * head_dim,
            experts_per_token=family.experts_per_token(config),
            is_encoder_decoder=family.has_encoder,
            head_dim=head_dim,
            opaque=opaque,
            plain_layers=family.plain_layers,
        )


def _form_of(model: Any, weights: str) -> Form:
    """The form in which products hold the weights of a ``model`` of transformers."""
    if weights == "float16":
        return "float16"
    return "fast" if may_copy(sum(p.numel() * p.element_size() for p in model.parameters())) else "plain"


class Target:
    """A loaded model as embed -> layers a..b -> head over rows of one sequence.

    dtype    of residuals, keys and values; ``weights`` "float16" keeps matrices in half of that, else they have it too
    form     in which products hold their weights
    runs_trees  whether rows of one pass may see different branches of a draft
    """

    runs_trees: bool = True
    attention: str = "bmm+sdpa"  # how it is computed, see layers.mix

    def __init__(
        self,
        model: Any,
        tokenizer: TargetTokenizer | None,
        folder: Path | None = None,
        *,
        weights: str = "auto",
        release: bool = False,
        blocks: Sequence[Layer] = (),
    ) -> None:
        """``release`` frees the weights of ``model`` while they are read, as far as they are held in another form.

        For ``weights`` "float16" those of ``model`` are rounded: see round_weights. ``blocks`` are its layers, if they
        are read already.
        """
        check_family(model.config)
        self.parameters: int = sum(p.numel() for p in model.parameters())
        self.form: Form = _form_of(model, weights)
        self.tokenizer_or_none, self.folder, self._weights = tokenizer, folder, weights
        self.config = model.config
        self._tied: bool = model.get_output_embeddings().weight is model.get_input_embeddings().weight
        parts = family_of(model.config).read(model, self.form, release, blocks)
        self.dtype, self.device = parts.embedding.dtype, parts.embedding.device
        self.embedding = parts.embedding.half() if self.form == "float16" else parts.embedding
        self._embedding_scale, self.positions = parts.embedding_scale, parts.positions
        self.context_tokens = context_tokens(model.config)
        self.blocks: list[Layer] = parts.blocks
        self._fillers: dict[int, Filler] = {}
        self._kv_products: list[Linear] = []  # of each layer, for keys and values only
        self.final_norm, self.lm_head, self.rotary = parts.final_norm, parts.lm_head, parts.rotary
        self.more_rotary = parts.more_rotary
        self.vocabulary: int = parts.lm_head.out_features
        self.encoder = parts.encoder

    @classmethod
    def load(cls, path: str | Path, *, dtype: str = "float32", device: str = "cpu", weights: str = "auto") -> Target:
        """Load a folder or hub id of a supported family in ``dtype`` onto ``device``, "float16" ``weights`` or "auto".

        Raises UserError where that fails, and where this forward does not say what transformers' own says.
        """
        tokenizer = load_tokenizer(path)
        tokenizer.check_layers()
        check_weights(weights, tokenizer.config, dtype, device)
        folder = Path(path) if Path(path).is_dir() else downloaded(str(path))
        if (layerwise := open_layerwise(path, tokenizer.config, DTYPES[dtype])) is not None:
            model, family, blocks = layerwise.model, family_of(tokenizer.config), list[Layer]()
            form, read = _form_of(model, weights), weight_reader(path, dtype, device, weights)
            layerwise.read_outside(read, device)
            layerwise.each_layer(read, lambda index: blocks.append(family.read_layer(model, index, form)))
            ids, their_logits = probe(model, model.config)
            target = cls(model, tokenizer, folder, weights=weights, blocks=blocks)
        else:
            model = read_model(path, tokenizer, dtype=dtype, device=device, weights=weights)
            ids, their_logits = probe(model, model.config)
            target = cls(model, tokenizer, folder, weights=weights, release=True)
        layerwise = model = None
        error = target._error(ids, their_logits.double())
        if not error < ROUNDING[their_logits.dtype]:  # nan is refused too
            raise UserError(
                "logits_differ",
                f"{path}: logits differ from those of transformers by {error:.2g} of their spread; this variant of "
                f"{target.config.model_type!r} is not supported, or its weights overflow {dtype}: try another --dtype, "
                "or --executor transformers",
            )
        return target

    @torch.inference_mode()
    def _error(self, ids: list[int], theirs: Tensor) -> float:
        """Of our logits for ``ids``, run in two parts, as a share of the spread of ``theirs`` [rows, vocabulary].

        The median over rows, since half precision may send a row to another expert in either forward.
        """
        ours = torch.cat([self.head(part) for part in self._run_parts(ids, ids, SPLIT)]).double()
        return float(((ours - theirs).square().mean(-1).sqrt() / theirs.std(-1)).median())

    def _run_parts(self, prompt_ids: Sequence[int], tokens: Sequence[int], split: int) -> Iterator[Tensor]:
        """Final residuals [rows, width] of the tokens before ``split`` and of those from it on, run one by one.

        An encoder reads the prompt.
        """
        cache = self.new_cache(len(tokens))
        cache.encoded = self.read(prompt_ids)
        for start, part in ((0, tokens[:split]), (split, tokens[split:])):
            if part:
                layout = self.layout(start, range(start, start + len(part)))
                rows = self.embed(part, range(start, start + len(part)))
                yield self.run(rows, cache, 0, self.layers, layout)

    @property
    def tokenizer(self) -> TargetTokenizer:
        if self.tokenizer_or_none is None:
            raise UserError("no_tokenizer", "this target was made without a tokenizer")
        return self.tokenizer_or_none

    @property
    def layers(self) -> int:
        return len(self.blocks)

    @property
    def stop_ids(self) -> frozenset[int]:
        return self.tokenizer_or_none.stop_ids if self.tokenizer_or_none else frozenset()

    @property
    def info(self) -> TargetInfo:
        return replace(TargetInfo.of(self.config), layers=self.layers)  # a view may have others

    def with_blocks(self, blocks: Sequence[Layer]) -> Target:
        """A view of this target whose layers are ``blocks``; all else is shared, and this one stays as it is."""
        view = copy.copy(self)
        view.blocks, view._fillers, view._kv_products = list(blocks), {}, []
        return view

    @cached_property
    def weights_sha256(self) -> str:
        """What tells this target from others: the hash of its files, and how its weights are kept."""
        return form_sha256(self.files_sha256, self._weights)

    @cached_property
    def files_sha256(self) -> str:
        """Hash of the weights and of the configuration that says how they are read; of all tensors without a folder."""
        if self.folder is not None and weight_files(self.folder):
            return folder_sha256(self.folder)
        digest = hashlib.sha256()
        for tensor in self._tensors():
            digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def _tensors(self) -> Iterator[Tensor]:
        """What tells apart models that come without safetensors."""
        yield from (self.embedding, self.lm_head.weight, *self.final_norm.tensors)
        if self.positions is not None:
            yield self.positions
        for block in self.blocks:
            yield from (block.attention.qkv.weight, block.attention.out.weight)
            yield from (tensor for norm in block.norms for tensor in norm.tensors)
            yield from block.mlp.weights
            if block.attention.sinks is not None:
                yield block.attention.sinks
        if self.encoder is not None:
            yield from self.encoder.tensors()

    def begin(self, prompt_ids: Sequence[int]) -> list[int]:
        """The first tokens of the decoder's text: the prompt itself, or a start token where an encoder reads it."""
        return list(prompt_ids) if self.encoder is None else [self.encoder.start]

    def read(self, prompt_ids: Sequence[int]) -> list[Encoded]:
        """The prompt for the cross attention of each layer, see Cache; empty where no encoder reads it."""
        return [] if self.encoder is None else self.encoder.read(prompt_ids)

    def new_cache(self, tokens: int) -> Cache:
        attention = self.blocks[0].attention
        like = self.embedding.new_empty(0, dtype=self.dtype)
        return Cache(self.layers, attention.kv_heads, attention.head_dim, tokens, like)

    def embed(self, tokens: Sequence[int], positions: Sequence[int]) -> Tensor:
        """Residual before the first layer, [rows, width], of tokens that stand at these ``positions`` of the text."""
        rows = self.embed_anywhere(tokens)
        if self.positions is None:
            return rows
        return rows + self.positions[torch.tensor(list(positions), device=self.device)]

    def embed_anywhere(self, tokens: Sequence[int]) -> Tensor:
        """[rows, width] of tokens alone, without what the model adds for positions."""
        ids = torch.tensor(list(tokens), device=self.device)
        rows = F.embedding(ids, self.embedding).to(self.dtype)
        return rows if self._embedding_scale == 1.0 else rows * self._embedding_scale

    def layout(
        self,
        base: int,
        positions: Sequence[int],
        ancestors: Sequence[Sequence[int]] | None = None,
        skip: int = 0,
    ) -> Layout:
        where = (base, positions, ancestors, self.rotary, skip, self.more_rotary)
        return Layout(*where) if self.encoder is None else RelativeLayout(self.encoder.biases, *where)

    def run(self, rows: Tensor, cache: Cache, first: int, last: int, layout: Layout) -> Tensor:
        """Residual ``rows`` [rows, width] through layers first .. last - 1; their keys and values enter the cache."""
        return run_layers(self.blocks[first:last], first, rows, cache, layout)

    def fill(self, states: Tensor, cache: Cache, first: int, layout: Layout) -> None:
        """Keys and values of one row in layers ``first`` .., each from its own of ``states`` [layers, width]."""
        if first not in self._fillers:
            if not self._kv_products:  # made once for all exits
                attentions = (block.attention for block in self.blocks)
                self._kv_products = [each.qkv.tail(each.heads * each.head_dim) for each in attentions]
            self._fillers[first] = Filler(self.blocks[first:], self._kv_products[first:], first)
        self._fillers[first].fill(states, cache, layout)

    def head(self, rows: Tensor) -> Tensor:
        """Target logits [rows, vocabulary] of residual ``rows`` [rows, width]."""
        return self.lm_head(self.final_norm(rows))

    def head_rows(self, ids: Tensor) -> Linear:
        """The LM head for tokens ``ids`` [k] only: normed rows [rows, width] to their logits [rows, k]. It copies."""
        if self.form == "float16" and self._tied and self.lm_head.bias is None:
            # The embedding has the same weights, and is not packed: to unpack the head takes longer than a pass.
            return self.lm_head.like(self.embedding[ids.to(self.device)].to(self.dtype), None, self.form)
        return self.lm_head.rows(ids)

    def head_table(self) -> Tensor:
        """[vocabulary, width] weights of the LM head to take rows of; a copy only of packed ones that are not tied."""
        if self._tied:
            return self.embedding
        return self.lm_head.weight.half() if self.form == "float16" else self.lm_head.weight

    @torch.inference_mode()
    def next_logits(self, prompt_ids: Sequence[int], answer: Sequence[int] = (), *, one_by_one: bool = False) -> Tensor:
        """Logits [vocabulary] after a prompt and an answer: in one pass, or with the last token as a row of its own.

        The two ways differ only by rounding, which is the noise floor a near-tie is judged against.
        """
        tokens = [*self.begin(prompt_ids), *answer]
        *_, rows = self._run_parts(prompt_ids, tokens, len(tokens) - 1 if one_by_one else 0)
        return self.head(rows[-_HEAD_ROWS:])[-1]

    @torch.inference_mode()
    def last_states(self, text: Sequence[int]) -> Tensor:
        """[layers + 1, width] of the last token of ``text`` before the first layer and after each; no encoder."""
        cache, places = self.new_cache(len(text)), range(len(text))
        rows, layout = self.embed(text, places), self.layout(0, places)
        states = [rows[-1]]
        for layer in range(self.layers):
            rows = self.run(rows, cache, layer, layer + 1, layout)
            states.append(rows[-1])
        return torch.stack(states)


def llama_rotary(settings: Mapping[str, Any], positions: int, like: Tensor) -> Tensor:
    """[positions, head_dim / 2] rotations of Llama layers with these ``settings`` of a config.json, see rotary_table.

    They are where ``like`` is, and of its kind.
    """
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = LlamaConfig(**settings)
    check_family(config)
    rotary_emb = LlamaRotaryEmbedding(config).to(like.device)
    pairs = int(rotary_emb.inv_freq.numel())
    return rotations(rotary_emb, pairs, family_of(config).head_dim(config), positions, like)


def outline(config: Any, dtype: str = "float32") -> Target:
    """A target of this configuration with shapes only, on torch's device "meta": it takes no memory and cannot run."""
    import transformers

    seq2seq, causal = transformers.AutoModelForSeq2SeqLM, transformers.AutoModelForCausalLM
    with torch.device("meta"):
        model = (seq2seq if config.is_encoder_decoder else causal).from_config(config)  # type: ignore[no-untyped-call]
    return Target(model.to(DTYPES[dtype]), None)
