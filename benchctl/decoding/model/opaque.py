"""Any decoder of transformers as a target: its forward and its cache are transformers' own, all else is benchctl's.

Layers, states and heads are out of reach, so a row of residuals holds logits once the model has run it. Methods that
need layers cannot run on such a target; see Method.needs_layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from benchctl.decoding.kv.cache import Cache, Layout, branches
from benchctl.decoding.model.families import check_family, facts_of
from benchctl.decoding.model.forms import check_quantised
from benchctl.decoding.model.kernels import Linear
from benchctl.decoding.model.loading import DTYPES, probe, read_model
from benchctl.decoding.model.target import ROUNDING, Target, TargetInfo
from benchctl.decoding.model.tokenizer import TargetTokenizer, downloaded, load_tokenizer
from benchctl.errors import UserError, is_out_of_memory

_SHORT = 6  # window and chunk of attention in the probe, which is shorter than those of real models
_RECURRENT = ("linear", "conv", "mamba", "recurrent")
_AGAIN = 4  # rows at the end of the probe that stand where others were taken back


class OpaqueCache(Cache):
    """Keys and values of one sequence in a cache of transformers, which keeps all slots of all layers.

    Windows are the work of masks, so that rows can be taken back.
    """

    def __init__(self, layers: int) -> None:
        from transformers import DynamicCache

        self.held = DynamicCache()
        self.lengths, self.absent, self.encoded = [0] * layers, [[] for _ in range(layers)], ()
        self._layers = layers

    def advance(self, length: int) -> None:
        """Count the rows that transformers has added."""
        self.lengths = [length] * self._layers

    def absent_bias(self, layer: int, end: int) -> None:
        return None

    def truncate(self, length: int) -> None:
        if length < self.lengths[0]:
            self._take(slice(length))
            self.advance(length)

    def keep(self, start: int, slots: Sequence[int]) -> None:
        if list(slots) == list(range(start, start + len(slots))):
            self.truncate(start + len(slots))
            return
        kept = [*range(start), *slots]
        self._take(torch.tensor(kept))
        self.advance(len(kept))

    def _take(self, slots: slice | Tensor) -> None:
        for layer in cast(Any, self.held).layers:
            if layer.is_initialized and layer.keys.numel():  # layers that share keys and values hold none
                index = slots if isinstance(slots, slice) else slots.to(layer.keys.device)
                layer.keys, layer.values = layer.keys[..., index, :], layer.values[..., index, :]


class OpaqueTarget(Target):
    """A model of transformers that runs as a whole.

    runs_trees  whether a row may see its own branch only; some attention allows no such mask
    """

    def __init__(
        self, model: Any, tokenizer: TargetTokenizer | None, folder: Path | None = None, *, has_weights: bool = True
    ) -> None:
        """Raises UserError for a model that does not give the same logits again after rows were taken back."""
        self._model = model.eval()
        self.config = model.config.get_text_config()
        self.tokenizer_or_none, self.folder, self._weights = tokenizer, folder, "auto"
        self.parameters = sum(p.numel() for p in model.parameters())
        embedding = model.get_input_embeddings().weight
        self.dtype, self.device, self.embeddings = embedding.dtype, embedding.device, int(embedding.shape[0])
        self.form, self.encoder = "plain", None
        self.attention = str(model.config._attn_implementation)  # by transformers' names
        family = facts_of(self.config)
        self.vocabulary, self.context_tokens = int(self.config.vocab_size), family.context_tokens(self.config)
        self.blocks = [cast(Any, None)] * family.layers(self.config)
        self.rotary = torch.zeros(self.context_tokens, 1, device=self.device)  # where the context ends; nothing turns
        self.more_rotary = ()
        if has_weights:
            self._check()

    @classmethod
    def load_whole(cls, path: str | Path, *, dtype: str = "float32", device: str = "cpu") -> OpaqueTarget:
        """Load a folder or hub id in ``dtype`` onto ``device``. Raises UserError where that fails."""
        tokenizer = load_tokenizer(path)
        check_opaque(tokenizer.config)
        experts = "eager" if dtype == "float64" else None  # the others have no products in float64
        model = read_model(path, tokenizer, dtype=dtype, device=device, experts=experts)
        return cls(model, tokenizer, Path(path) if Path(path).is_dir() else downloaded(str(path)))

    @property
    def info(self) -> TargetInfo:
        return TargetInfo.of(self.config, opaque=True)

    def _tensors(self) -> Iterator[Tensor]:
        yield from self._model.parameters()

    def new_cache(self, tokens: int) -> OpaqueCache:
        return OpaqueCache(self.layers)

    def embed(self, tokens: Sequence[int], positions: Sequence[int]) -> Tensor:
        """[rows, vocabulary] without numbers: the model reads the ids and positions of the layout."""
        return torch.full((1, 1), torch.nan, dtype=self.dtype, device=self.device).expand(len(tokens), self.vocabulary)

    def layout(
        self,
        base: int,
        positions: Sequence[int],
        ancestors: Sequence[Sequence[int]] | None = None,
        skip: int = 0,
    ) -> Layout:
        return Layout(base, positions, ancestors, self.rotary, skip)

    def run(self, rows: Tensor, cache: Cache, first: int, last: int, layout: Layout) -> Tensor:
        """Logits [rows, vocabulary] of the layout's ids; of its last row alone, repeated, where no other is read."""
        assert isinstance(cache, OpaqueCache) and layout.tokens is not None, "rows of a stream"
        assert (first, last) == (0, self.layers), "the model runs as a whole"
        logits = self._logits(layout.tokens, layout, cache)
        cache.advance(layout.start + layout.rows)
        return logits.expand(layout.rows, -1)

    def _logits(self, tokens: Sequence[int], layout: Layout, cache: OpaqueCache) -> Tensor:
        masks: Any = None
        if layout.is_tree:
            if not self.runs_trees:
                raise ValueError("this model runs no trees; see check_trees")
            masks = self._tree_masks(layout)
        output = self._model(
            input_ids=torch.tensor([list(tokens)], device=self.device),
            position_ids=torch.tensor([list(layout.positions)], device=self.device),
            past_key_values=cache.held,
            use_cache=True,
            attention_mask=masks,
            logits_to_keep=1 if layout.last_only else 0,
        )
        logits: Tensor = output.logits[0, :, : self.vocabulary]
        return logits[-1:] if layout.last_only else logits

    def _tree_masks(self, layout: Layout) -> Tensor | dict[str, Tensor]:
        """The mask [1, 1, rows, slots] of a tree; where the configuration lists kinds of layers, one for each kind."""
        window = getattr(self.config, "sliding_window", None)
        whole = cast(Tensor, layout.bias(None, self.dtype))[None, None]
        if window is None:
            return whole
        narrow = cast(Tensor, layout.bias(window, self.dtype))[None, None]
        kinds = set(getattr(self.config, "layer_types", None) or ("sliding_attention",))
        masks = {"full_attention": whole, "sliding_attention": narrow}
        return masks if len(kinds) > 1 else masks.get(kinds.pop(), narrow)

    def fill(self, states: Tensor, cache: Cache, first: int, layout: Layout) -> None:
        raise AssertionError("no method that leaves early runs on this target")

    def head(self, rows: Tensor) -> Tensor:
        return rows

    def final_norm(self, rows: Tensor) -> Tensor:  # type: ignore[override]
        return rows

    lm_head = final_norm  # type: ignore[assignment]

    def head_rows(self, ids: Tensor) -> Linear:
        """The logits of tokens ``ids`` [k] of rows that hold those of all."""
        return cast(Linear, lambda rows: rows[:, ids.to(rows.device)])

    def _run_parts(self, prompt_ids: Sequence[int], tokens: Sequence[int], split: int) -> Iterator[Tensor]:
        cache = self.new_cache(len(tokens))
        for start, part in ((0, tokens[:split]), (split, tokens[split:])):
            if part:
                layout = self.layout(start, range(start, start + len(part)))
                layout.tokens, layout.last_only = part, True
                yield self.run(self.embed(part, layout.positions), cache, 0, self.layers, layout)[-1:]

    @torch.inference_mode()
    def _check(self) -> None:
        """Compare rows behind rows that were taken back, and branches of a tree, with passes without a cache.

        Windows and chunks are shorter meanwhile, so that masks show whether they have them. Raises UserError.
        """
        with _short_attention(self.config):
            ids, theirs = probe(self._model, self.config)
            kept, reason = len(ids) - _AGAIN, "answer differently after a rejected draft, look ahead or keep no cache"
            try:
                agrees = self._rows_agree(ids, theirs, kept)
            except Exception as error:  # each model raises its own kind
                if is_out_of_memory(error):
                    raise
                agrees, reason = False, f"need a cache of their own ({str(error).partition(chr(10))[0]})"
            if not agrees:
                raise UserError(
                    "rows_not_taken_back",
                    f"models of type {self.config.model_type!r} {reason}, so benchctl cannot run them; measure them "
                    "with an engine (benchctl list engines)",
                )
            self.runs_trees = self._branches_agree(ids[:kept])

    def _rows_agree(self, ids: list[int], theirs: Tensor, kept: int) -> bool:
        """Whether the rows from ``kept`` on are as without a cache, after others in their place were taken back."""
        cache = self.new_cache(len(ids))
        self._feed(ids[:kept], cache)
        self._feed(ids[: len(ids) - kept], cache)
        cache.truncate(kept)
        return self._agree(self._feed(ids[kept:], cache), theirs[kept:])

    def _branches_agree(self, text: list[int]) -> bool:
        """Whether two branches, rows 0 2 4 and 1 3, are as each alone behind the text."""
        nodes, parents = [node % self.vocabulary for node in (7, 11, 5, 3, 9)], [-1, -1, 0, 1, 2]
        cache = self.new_cache(len(text) + len(nodes))
        self._feed(text, cache)
        layout = self.layout(len(text), *branches(len(text), parents))
        layout.tokens = nodes
        try:
            tree = self._logits(nodes, layout, cache)
        except Exception as error:  # models that take no such mask raise their own kinds
            if is_out_of_memory(error):
                raise
            return False
        for branch in ([0, 2, 4], [1, 3]):
            whole = torch.tensor([[*text, *(nodes[row] for row in branch)]], device=self.device)
            alone = self._model(whole, use_cache=False).logits[0, len(text) :, : self.vocabulary]
            if not self._agree(tree[branch], alone):
                return False
        return True

    def _feed(self, ids: Sequence[int], cache: OpaqueCache) -> Tensor:
        start = cache.lengths[0]
        layout = self.layout(start, range(start, start + len(ids)))
        layout.tokens = ids
        return self.run(self.embed(ids, layout.positions), cache, 0, self.layers, layout)

    def _agree(self, ours: Tensor, theirs: Tensor) -> bool:
        theirs = theirs[:, : self.vocabulary].double()
        error = (ours.double() - theirs).square().mean(-1).sqrt() / theirs.std(-1)
        return bool(error.median() < ROUNDING[self.dtype])


def outline_whole(config: Any, dtype: str = "float32") -> OpaqueTarget:
    """A target of this configuration with shapes only, as target.outline."""
    import transformers

    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    return OpaqueTarget(model.to(DTYPES[dtype]), None, has_weights=False)


def check_runs(config: Any) -> None:
    """Raises UserError for a model that neither our own layers nor transformers can run for benchctl."""
    try:
        check_family(config)
    except UserError:
        check_opaque(config)


def check_opaque(config: Any) -> None:
    """Raises UserError for a model, by its configuration, whose layers transformers cannot run for benchctl."""
    import transformers

    check_quantised(config)
    kind = config.model_type
    if config.is_encoder_decoder:
        message = f"models of type {kind!r} have an encoder; of these only T5 is supported, and by --executor static"
        raise UserError("unknown_family", message)
    causal = transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    if type(config) not in causal:
        message = f"models of type {kind!r} do not generate text in transformers; name a causal language model"
        raise UserError("unknown_family", message)
    kinds = " ".join(getattr(config, "layer_types", None) or ())
    if any(word in kinds for word in _RECURRENT) if kinds else getattr(causal[type(config)], "_is_stateful", False):
        raise UserError(
            "recurrent_state",
            f"models of type {kind!r} keep a recurrent state, from which rejected drafts cannot be taken back; measure "
            "them with an engine (benchctl list engines)",
        )


@contextmanager
def _short_attention(config: Any) -> Iterator[None]:
    """Windows and chunks of `_SHORT` tokens, if the configuration has them."""
    names = [name for name in ("sliding_window", "attention_chunk_size") if getattr(config, name, None)]
    before = {name: getattr(config, name) for name in names}
    try:
        for name in names:
            setattr(config, name, _SHORT)
        yield
    finally:
        for name, value in before.items():
            setattr(config, name, value)
