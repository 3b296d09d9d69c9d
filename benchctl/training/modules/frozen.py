"""A frozen target as training needs it: transformers' own model, its tokenizer and identity, and its states.

Packed rows go in, and what the target made of them comes out: what a method's modules learn from.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedModel

from benchctl import bundled
from benchctl.decoding.method import Method, why_unsupported
from benchctl.decoding.model.families import context_tokens, family_of
from benchctl.decoding.model.families.t5 import decoder_start
from benchctl.decoding.model.forms import dequantising, quantised_form
from benchctl.decoding.model.layers import Layer
from benchctl.decoding.model.loading import DTYPES, check_complete, in_dtype, quiet
from benchctl.decoding.model.target import Target, TargetInfo
from benchctl.decoding.model.tokenizer import TargetTokenizer, downloaded, from_pretrained, load_tokenizer
from benchctl.decoding.modules.folders import check_sizes, shares
from benchctl.decoding.modules.trainable import TeacherOutput, Trainable, TrainingBatch
from benchctl.errors import UserError
from benchctl.registry import METHODS, Label, method_class, names
from benchctl.training.data.chats import ChatFormat, EncoderChat
from benchctl.training.data.packing import Batch
from benchctl.training.modules.objective import HeldOut, head_rows, inputs_of, mean_loss


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
    tokenizer.check_layers()
    if tokenizer.is_encoder_decoder and not encoders:
        kinds = {name: method_class(name) for name in names(METHODS)}
        known = [name for name, kind in kinds.items() if kind.supports_encoder_decoder and issubclass(kind, Trainable)]
        raise UserError(
            "encoder_not_supported",
            f"{name_or_path} has an encoder, and what you ask for is for models without one; name another model, or "
            f"train modules that know encoders: {', '.join(known)}",
        )
    embedded = any(model.name == name_or_path for model in bundled.models())
    name = name_or_path if embedded or isinstance(path, str) else path.resolve().name  # not where a folder lies
    return TargetFiles(name, path, tokenizer)


def check_method(method: Method, label: Label, files: TargetFiles) -> None:
    """Raises UserError for a method that cannot run on this target, or whose modules are of one of other sizes."""
    info = TargetInfo.of(files.config)
    if problem := why_unsupported(method, info):
        raise UserError("label_cannot_run", f"{label.text} cannot run on {files.name}: {problem}")
    if isinstance(method, Trainable):
        check_sizes(method, method.modules, info)


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


def load_target(files: TargetFiles, device: torch.device, dtype: str) -> FrozenTarget:
    """Reads the weights in `dtype`, a name of DTYPES. Raises UserError where that fails or the family is unknown.

    What decoding makes of the weights, only to be asked who the target is, is made and dropped on the CPU: a GPU never
    holds both.
    """
    options = {"dtype": DTYPES[dtype], "output_loading_info": True}
    options["attn_implementation"] = family_of(files.config).training_attention
    with quiet() if isinstance(files.path, Path) else nullcontext():  # a download keeps its bar
        kind = AutoModelForSeq2SeqLM if files.tokenizer.is_encoder_decoder else AutoModelForCausalLM
        model, loading = from_pretrained(kind, files.path, **options, **dequantising(files.config))
    check_complete(files.path, loading)
    if quantised_form(files.config):
        in_dtype(model, DTYPES[dtype])
    model = model.eval().requires_grad_(False)
    decoding = Target(model, files.tokenizer, files.folder)
    info, weights_sha256 = decoding.info, decoding.weights_sha256
    del decoding
    return FrozenTarget(files, model.to(device), info, weights_sha256)


class BatchMaker:
    """Runs a transformers model of a known family over batches, without gradient and in eval mode, on `device`.

    The residuals are taken where they pass from layer to layer, so states[-1] is what the final norm reads, which
    transformers' own `output_hidden_states` does not give.
    """

    def __init__(self, target: nn.Module, device: torch.device) -> None:
        self._target: Any = target.eval().requires_grad_(False)
        self._device = device
        self._rotary: Tensor | None = None
        self.draft_ids: Tensor | None = None
        self._draft_rows: Callable[[Tensor], Tensor] | None = None
        self._layers: dict[int, Layer] = {}

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    @torch.no_grad()
    def __call__(self, batch: Batch) -> TrainingBatch:
        """What the frozen target makes of a batch of packed rows; all of it lies on the device."""
        batch = self._as_read(batch.to(self._device))
        states, teacher = self._teacher_pass(batch)
        return TrainingBatch(
            tokens=batch.tokens,
            weights=batch.weights,
            documents=batch.documents,
            positions=batch.positions,
            states=states,
            final=self._norm(states[-1]),
            norm=self._norm,
            head=head_rows(self._target, None),
            layer=self._layer,
            rotary=self._rotate,
            stored_teacher=teacher,
            draft_ids=self.draft_ids,
            draft_rows=self._draft_rows,
            head_rows=partial(head_rows, self._target),
        )

    def draft_over(self, ids: Tensor | None) -> dict[str, str]:
        """From now on drafters score these tokens only, [k] ascending, or all; as a fact of the run."""
        if ids is None:
            return {}
        self.draft_ids = ids.to(self._device, torch.int64)
        self._draft_rows = head_rows(self._target, self.draft_ids)
        return {"draft vocabulary": hashlib.sha256(ids.to("cpu", torch.int64).numpy().tobytes()).hexdigest()[:16]}

    def _teacher_pass(self, batch: Batch) -> tuple[Sequence[Tensor], TeacherOutput | None]:
        """The residuals, and the target's predictions where a store has them."""
        return tuple(self._states(batch)), None

    def _as_read(self, batch: Batch) -> Batch:
        """The batch with the tokens that the model is given."""
        return batch

    def _states(self, batch: Batch) -> list[Tensor]:
        """layers + 1 residuals [rows, row_tokens, width]."""
        body = self._target.base_model
        with residuals(family_of(self._target.config).stack(self._target)) as states:
            body(**inputs_of(self._target, batch))
        return states

    def _norm(self, residual: Tensor) -> Tensor:
        config = self._target.config
        normed: Tensor = family_of(config).final_norm(self._target)(residual)
        scale = family_of(config).head_scale(config)
        return normed if scale == 1.0 else normed * scale

    def _layer(self, index: int) -> Layer:
        """Read when first asked for: its products are copies, and no method needs all of a large target's layers."""
        if index not in self._layers:
            self._layers[index] = family_of(self._target.config).read_layer(self._target, index, "plain")
        return self._layers[index]

    def _rotate(self, positions: Tensor) -> Tensor:
        if self._rotary is None:
            config, weight = self._target.config, self._target.get_input_embeddings().weight
            self._rotary = family_of(config).tables(self._target, context_tokens(config), weight.dtype)[0]
        return self._rotary[positions]


@dataclass(frozen=True)
class ModuleObjective:
    """What a method says of its modules as the trainer's objective.

    ``drawn`` of the ``vocabulary`` are compared in each pass of the training, see TrainingBatch; 0 for all.
    """

    method: Trainable
    training_batch_of: Callable[[Batch], TrainingBatch]
    drawn: int = 0
    vocabulary: int = 0

    def pace(self, module: nn.Module, progress: float) -> None:
        """What changes as the training goes on; see Trainable.pace."""
        self.method.pace(module, progress)

    def __call__(self, module: nn.Module, batch: Batch) -> Tensor:
        seen = self.training_batch_of(batch)
        if self.drawn:
            seen = replace(seen, drawn=torch.randint(self.vocabulary, (self.drawn,), device=seen.tokens.device))
        return self.method.loss(module, seen)

    def measure(self, module: nn.Module, batch: Batch) -> HeldOut:
        """`loss`, and the method's own yardsticks. Raises UserError for those that modules.json could not hold."""
        target_batch = self.training_batch_of(batch)
        loss = mean_loss(self.method.loss(module, target_batch), batch)
        measured = self.method.yardsticks(module, target_batch)
        try:
            shares({name: tally.share for name, tally in measured.items()})
        except ValueError as error:
            raise UserError(
                "wrong_yardsticks", f"{type(self.method).__name__}: {error}; correct what its yardsticks() returns"
            ) from error
        return {"loss": loss, **measured, **target_batch.covered}


@contextmanager
def residuals(layers: Sequence[nn.Module]) -> Iterator[list[Tensor]]:
    """While open, each pass through `layers` leaves its residuals in the list: the embedding's, then each layer's."""
    states: list[Tensor] = []

    def keep_input(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        states.append(inputs[0] if inputs else named["hidden_states"])

    def keep_output(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        states.append(output[0] if isinstance(output, tuple) else output)

    handles = [layers[0].register_forward_pre_hook(keep_input, with_kwargs=True)]
    handles += [layer.register_forward_hook(keep_output) for layer in layers]
    try:
        yield states
    finally:
        for handle in handles:
            handle.remove()


TOKENS_AT_ONCE = 16384  # of padded prompts or texts: a row of short answers has many, and each of them is encoded


def batch_maker(target: Any, device: torch.device) -> BatchMaker:
    """Makes training batches of packed rows with this transformers model, with an encoder or without one."""
    return (EncoderBatches if target.config.is_encoder_decoder else BatchMaker)(target, device)


class EncoderBatches(BatchMaker):
    """Runs a T5 of transformers over batches with prompts.

    Each document of a row goes through the decoder by itself, with its own prompt; its states are then put where its
    tokens stand in the row. States of padding are 0.
    """

    def _as_read(self, batch: Batch) -> Batch:
        begins = (batch.documents >= 0) & (batch.positions == 0)
        return replace(batch, tokens=torch.where(begins, decoder_start(self._target), batch.tokens))

    def _states(self, batch: Batch) -> list[Tensor]:
        """Each document with its prompt, those of similar length together."""
        assert batch.prompts is not None
        real = batch.documents >= 0
        text_tokens = torch.bincount((batch.positions[real] == 0).cumsum(0))[1:].tolist()
        texts = torch.split(batch.tokens[real], text_tokens)
        prompt_tokens = (batch.prompts >= 0).sum(1).tolist()
        states: dict[int, list[Tensor]] = {}
        for group in _similar_groups(prompt_tokens, text_tokens):
            width = max(prompt_tokens[number] for number in group)
            padded = self._pass(batch.prompts[group, :width], pad_sequence([texts[n] for n in group], batch_first=True))
            for row, number in enumerate(group):
                states[number] = [state[row, : text_tokens[number]] for state in padded]
        in_order = zip(*(states[number] for number in range(len(texts))), strict=True)
        layers = [torch.cat(layer) for layer in in_order]
        return [
            state.new_zeros(*real.shape, state.shape[-1]).masked_scatter(real[..., None], state) for state in layers
        ]

    def _pass(self, prompts: Tensor, texts: Tensor) -> list[Tensor]:
        """Of padded prompts and texts [documents, tokens]: layers + 1 residuals [documents, tokens, width].

        The decoder needs no mask of its own: what pads a text stands behind it.
        """
        mask = (prompts >= 0).long()
        encoded = self._target.encoder(input_ids=prompts.clamp(min=0), attention_mask=mask).last_hidden_state
        prompt_states = {"encoder_hidden_states": encoded, "encoder_attention_mask": mask}
        decoder = self._target.decoder
        with residuals(decoder.block) as states:
            decoder(input_ids=texts, use_cache=False, **prompt_states)
        return states

    def _norm(self, residual: Tensor) -> Tensor:
        normed: Tensor = self._target.decoder.final_layer_norm(residual)
        return normed * family_of(self._target.config).head_scale(self._target.config)

    def _layer(self, index: int) -> NoReturn:
        raise UserError(
            "encoder_not_supported",
            "training batches of a target with an encoder hold states, norm and head, not its layers or rotations; a "
            "method that learns from those is for targets without an encoder: leave supports_encoder_decoder False",
        )

    def _rotate(self, positions: Tensor) -> NoReturn:
        self._layer(0)


def _similar_groups(prompts: Sequence[int], texts: Sequence[int]) -> Iterator[list[int]]:
    """The numbers of documents that go through the model together, given the tokens of each.

    No text of a group is twice as long as another, so that less than half of what the decoder reads is padding, however
    long one answer among short ones is; of those, prompts of similar length stand together.
    """
    order = sorted(range(len(texts)), key=lambda number: (texts[number].bit_length(), prompts[number]))
    for _, similar in groupby(order, key=lambda number: texts[number].bit_length()):
        group, widest = list[int](), 0
        for number in similar:
            widest = max(widest, prompts[number], texts[number])
            if group and widest * (len(group) + 1) > TOKENS_AT_ONCE:
                yield group
                group, widest = [], max(prompts[number], texts[number])
            group.append(number)
        yield group
