"""Batched generation with a transformers model: a row that has ended leaves the batch and costs nothing more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from benchctl.decoding.model.families import decoder_layers
from benchctl.decoding.model.t5 import decoder_start
from benchctl.training.data.packing import side_by_side

_WORTH_DROPPING = 0.9  # copying the cache pays once so small a share of the rows still runs


@dataclass(frozen=True)
class Answering:
    """How answers are written: greedily at temperature 0, else drawn with a generator of this seed."""

    new_tokens: int = 160
    temperature: float = 0.0
    seed: int = 0
    rows: int = 256


class _RoomyLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """Keys and values with room for what is still to come: transformers' own copies all of them at every token."""

    def __init__(self, room: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._room = room
        self._held: tuple[Tensor, Tensor] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        start = self.get_seq_length()
        stop = start + key_states.shape[2]
        if self._held is None:
            self.lazy_initialization(key_states, value_states)
            size = (*key_states.shape[:2], self._room, key_states.shape[3])
            self._held = (key_states.new_empty(size), value_states.new_empty(size))
        keys, values = self._held
        keys[:, :, start:stop], values[:, :, start:stop] = key_states, value_states
        self.keys, self.values = keys[:, :, :stop], values[:, :, :stop]
        return self.keys, self.values

    def keep(self, rows: Tensor) -> None:
        """Only these rows stay."""
        assert self._held is not None
        stop = self.get_seq_length()
        keys, values = (held[rows] for held in self._held)
        self._held = (keys, values)
        self.keys, self.values = keys[:, :, :stop], values[:, :, :stop]


class _Batch:
    """Rows being answered together, padded on the left."""

    def __init__(self, model: PreTrainedModel, prompts: Sequence[Sequence[int]], new_tokens: int) -> None:
        longest = max(map(len, prompts))
        device = model.device
        self._model = model
        self._new = torch.tensor([[0] * (longest - len(prompt)) + [*prompt] for prompt in prompts], device=device)
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
        self._start = longest - lengths  # column of each row's first token
        self._columns = torch.arange(longest + new_tokens, device=device)
        self._seen = 0
        self._layers = [_RoomyLayer(longest + new_tokens) for _ in range(model.config.num_hidden_layers)]
        self._cache = Cache(layers=list(self._layers))
        self.numbers = list(range(len(prompts)))  # which prompt each row answers

    def logits(self) -> Tensor:
        """Target logits [rows, vocabulary] after the tokens put in last."""
        stop = self._seen + self._new.shape[1]
        positions = (self._columns[self._seen : stop] - self._start[:, None]).clamp(min=0)
        output = self._model(
            input_ids=self._new,
            attention_mask=(self._columns[:stop] >= self._start[:, None]).long(),
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        self._seen = stop
        logits: Tensor = output.logits[:, -1]
        return logits

    def put(self, tokens: Tensor) -> None:
        """One more token [rows] in every row."""
        self._new = tokens[:, None]

    def keep(self, rows: Sequence[int]) -> None:
        """Only these rows stay."""
        index = torch.tensor(rows, device=self._start.device)
        self._start, self._new = self._start[index], self._new[index]
        self.numbers = [self.numbers[row] for row in rows]
        for layer in self._layers:
            layer.keep(index)


class _EncodedBatch:
    """Rows being answered together whose prompts an encoder has read, padded on the right."""

    def __init__(self, model: Any, prompts: Sequence[Sequence[int]], new_tokens: int) -> None:
        ids = side_by_side(prompts).to(model.device)
        self._model = model
        self._mask = (ids >= 0).long()
        self._encoded = self._model.encoder(ids.clamp(min=0), attention_mask=self._mask).last_hidden_state
        self._layers = [_RoomyLayer(new_tokens) for _ in range(decoder_layers(model.config))]
        self._cache = EncoderDecoderCache(Cache(layers=list(self._layers)), DynamicCache())
        self._new = torch.full((len(prompts), 1), decoder_start(model), device=model.device)
        self.numbers = list(range(len(prompts)))  # which prompt each row answers

    def logits(self) -> Tensor:
        """Target logits [rows, vocabulary] after the tokens put in last."""
        output = self._model(
            encoder_outputs=BaseModelOutput(last_hidden_state=self._encoded),
            attention_mask=self._mask,
            decoder_input_ids=self._new,
            past_key_values=self._cache,
            use_cache=True,
        )
        logits: Tensor = output.logits[:, -1]
        return logits

    def put(self, tokens: Tensor) -> None:
        """One more token [rows] in every row."""
        self._new = tokens[:, None]

    def keep(self, rows: Sequence[int]) -> None:
        """Only these rows stay."""
        index = torch.tensor(rows, device=self._mask.device)
        self._encoded, self._mask, self._new = self._encoded[index], self._mask[index], self._new[index]
        self.numbers = [self.numbers[row] for row in rows]
        self._cache.cross_attention_cache.batch_select_indices(index)
        for layer in self._layers:
            layer.keep(index)


@torch.inference_mode()
def answer(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], stop_ids: frozenset[int], settings: Answering
) -> list[list[int]]:
    """Each prompt's answer, the stop id included where it came; all prompts as one batch."""
    generator = torch.Generator(model.device).manual_seed(settings.seed)
    encodes = model.config.is_encoder_decoder
    batch = (_EncodedBatch if encodes else _Batch)(model, prompts, settings.new_tokens)
    answers: list[list[int]] = [[] for _ in prompts]
    ended: set[int] = set()
    for left in range(settings.new_tokens, 0, -1):
        tokens = _pick(batch.logits(), settings.temperature, generator)
        for number, token in zip(batch.numbers, tokens.tolist(), strict=True):
            if number not in ended:
                answers[number].append(token)
                ended |= {number} if token in stop_ids else set()
        running = [row for row, number in enumerate(batch.numbers) if number not in ended]
        if not running or left == 1:
            break
        batch.put(tokens)
        if len(running) <= _WORTH_DROPPING * len(batch.numbers):
            batch.keep(running)
    return answers


def _pick(logits: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
    """The next tokens [rows] for logits [rows, vocabulary]."""
    if temperature == 0:
        return logits.argmax(-1)
    probs = (logits.float() / temperature).softmax(-1)
    return torch.multinomial(probs, 1, generator=generator)[:, 0]
