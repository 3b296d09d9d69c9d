"""Lessons of a frozen target with an encoder: it reads the prompts, and the states are those of its decoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from benchctl.decoding.t5 import decoder_start, head_scale
from benchctl.decoding.trainable import Lesson
from benchctl.errors import UserError
from benchctl.training.lessons import LessonMaker, residuals
from benchctl.training.packing import Batch

TOKENS_AT_ONCE = 16384  # of padded prompts: a row of short answers has many, and each of them is encoded


def lesson_maker(target: Any, device: torch.device) -> Callable[[Batch], Lesson]:
    """What makes lessons of batches for this transformers model, with an encoder or without one."""
    return (EncoderLessons if target.config.is_encoder_decoder else LessonMaker)(target, device)


class EncoderLessons:
    """Runs a T5 of transformers over batches with prompts, without gradient and in eval mode, on `device`.

    Each document of a row goes through the decoder by itself, beside its own prompt; its states are then put where its
    tokens stand in the row. States of padding are 0.
    """

    def __init__(self, target: nn.Module, device: torch.device) -> None:
        self._target: Any = target.eval().requires_grad_(False)
        self._device = device

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    @torch.no_grad()
    def __call__(self, batch: Batch) -> Lesson:
        """The lesson of a batch; everything in it lies on the device."""
        batch = batch.to(self._device)
        assert batch.prompts is not None
        real = batch.documents >= 0
        tokens = torch.where(real & (batch.positions == 0), decoder_start(self._target), batch.tokens)
        number, place = _documents(batch, real), batch.positions[real]
        texts = tokens.new_zeros(len(batch.prompts), int(place.max()) + 1)
        texts[number, place] = tokens[real]
        states = [_placed(state[number, place], real) for state in self._states(batch.prompts, texts)]
        return Lesson(
            tokens=tokens,
            weights=batch.weights,
            documents=batch.documents,
            positions=batch.positions,
            states=tuple(states),
            final=self._norm(states[-1]),
            norm=self._norm,
            head=self._target.get_output_embeddings(),
            layer=_not_there,
            rotary=_not_there,
        )

    def _states(self, prompts: Tensor, texts: Tensor) -> list[Tensor]:
        """Of each text [documents, tokens] with its prompt: layers + 1 residuals [documents, tokens, width]."""
        count = max(1, TOKENS_AT_ONCE // prompts.shape[1])
        starts = range(0, len(texts), count)
        parts = [self._pass(prompts[start : start + count], texts[start : start + count]) for start in starts]
        return [torch.cat(part) for part in zip(*parts, strict=True)]

    def _pass(self, prompts: Tensor, texts: Tensor) -> list[Tensor]:
        """The decoder needs no mask of its own: what pads a text stands behind it."""
        mask = prompts >= 0
        encoded = self._target.encoder(input_ids=prompts.clamp(min=0), attention_mask=mask.long()).last_hidden_state
        beside = {"encoder_hidden_states": encoded, "encoder_attention_mask": mask.long()}
        decoder = self._target.decoder
        with residuals(decoder.block) as states:
            decoder(input_ids=texts, use_cache=False, **beside)
        return states

    def _norm(self, residual: Tensor) -> Tensor:
        normed: Tensor = self._target.decoder.final_layer_norm(residual)
        return normed * head_scale(self._target.config)


def _documents(batch: Batch, real: Tensor) -> Tensor:
    """Of each token that is no padding: the number of its document in the whole batch, row by row."""
    begins = (batch.positions == 0)[real]
    return begins.cumsum(0) - 1


def _placed(states: Tensor, real: Tensor) -> Tensor:
    """[rows, n, width] with the states [tokens, width] where ``real`` [rows, n] is."""
    placed = states.new_zeros(*real.shape, states.shape[-1])
    placed[real] = states
    return placed


def _not_there(asked: object) -> NoReturn:
    raise UserError(
        "lessons of a target with an encoder hold states, norm and head, not its layers or rotations; a method that "
        "learns from those is for targets without an encoder: leave knows_encoders False"
    )
