"""Lessons of a frozen target with an encoder: it reads the prompts, and the states are those of its decoder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from benchctl.decoding.t5 import decoder_start, head_scale
from benchctl.decoding.trainable import Lesson
from benchctl.errors import UserError
from benchctl.training.lessons import LessonMaker, residuals
from benchctl.training.packing import Batch

TOKENS_AT_ONCE = 16384  # of padded prompts or texts: a row of short answers has many, and each of them is encoded


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
        texts = torch.split(tokens[real], _sizes(batch.positions[real]))
        states = [_placed(state, real) for state in self._states(batch.prompts, texts)]
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

    def _states(self, prompts: Tensor, texts: Sequence[Tensor]) -> list[Tensor]:
        """Of all texts, one after the other, each beside its prompt: layers + 1 residuals [tokens, width]."""
        asked, said = (prompts >= 0).sum(1).tolist(), [len(text) for text in texts]
        found: dict[int, list[Tensor]] = {}
        for part in _parts(asked, said):
            width = max(asked[number] for number in part)
            padded = self._pass(prompts[part, :width], pad_sequence([texts[n] for n in part], batch_first=True))
            for row, number in enumerate(part):
                found[number] = [state[row, : said[number]] for state in padded]
        return [torch.cat(layer) for layer in zip(*(found[number] for number in range(len(texts))), strict=True)]

    def _pass(self, prompts: Tensor, texts: Tensor) -> list[Tensor]:
        """Of padded prompts and texts [documents, tokens]: layers + 1 residuals [documents, tokens, width].

        The decoder needs no mask of its own: what pads a text stands behind it.
        """
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


def _sizes(positions: Tensor) -> list[int]:
    """The tokens of each document, from the positions of all of them: 0, 1, 2, 0, 0, 1 are documents of 3, 1 and 2."""
    begins: list[int] = (positions == 0).nonzero().flatten().tolist()
    return [end - begin for begin, end in zip(begins, [*begins[1:], len(positions)], strict=True)]


def _parts(prompts: Sequence[int], texts: Sequence[int]) -> Iterator[list[int]]:
    """The numbers of documents that go through the model together, given the tokens of each.

    No text of a part is twice as long as another, so that less than half of what the decoder reads is padding, however
    long one answer among short ones is; of those, prompts of similar length stand together.
    """
    order = sorted(range(len(texts)), key=lambda number: (texts[number].bit_length(), prompts[number]))
    for _, similar in groupby(order, key=lambda number: texts[number].bit_length()):
        part, widest = list[int](), 0
        for number in similar:
            widest = max(widest, prompts[number], texts[number])
            if part and widest * (len(part) + 1) > TOKENS_AT_ONCE:
                yield part
                part, widest = [], max(prompts[number], texts[number])
            part.append(number)
        yield part


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
