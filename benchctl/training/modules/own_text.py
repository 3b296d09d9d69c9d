"""The target's own answers, kept on disk as they come: what a draft model and a method's modules learn from.

Self-distillation: trained on the target's own text, modules learn to say what the target will say, not what a data set
says (Zhou et al., "DistillSpec", 2023, arXiv:2310.08461; Cai et al., "Medusa", 2024, arXiv:2401.10774, section 2.3).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from benchctl.decoding.model.families import context_tokens, family_of
from benchctl.decoding.model.families.t5 import decoder_start
from benchctl.errors import UserError
from benchctl.training.checkpoint import Notify, kept, locked
from benchctl.training.data.chats import ChatFormat, Message, Record
from benchctl.training.data.packing import Document, side_by_side, token_dtype
from benchctl.training.data.reading import Recipe
from benchctl.training.modules.frozen import FrozenTarget, TargetFiles

SOURCE = "own"
CACHE_BYTES = 8e9  # keys and values of a batch on a CPU; rows that need more are answered in smaller batches
_WORTH_DROPPING = 0.9  # of a batch's rows still run; copying the cache pays from there on

Prompt = tuple[Message, ...]
Ids = tuple[int, ...]


@dataclass(frozen=True)
class Answering:
    """How answers are written: greedily at temperature 0, else drawn with a generator of this seed.

    ``rows`` are answered together on a CPU, four times as many on a GPU.
    """

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

    def batch_select_indices(self, indices: Tensor) -> None:
        assert self._held is not None
        stop = self.get_seq_length()
        keys, values = (held[indices] for held in self._held)
        self._held = (keys, values)
        self.keys, self.values = keys[:, :, :stop], values[:, :, :stop]


class _Batch:
    """Rows being answered together, padded on the left."""

    def __init__(self, model: Any, prompts: Sequence[Sequence[int]], new_tokens: int) -> None:
        self._model = model
        self.numbers = list(range(len(prompts)))  # which prompt each row answers
        self._begin(prompts, new_tokens)

    def _begin(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> None:
        longest, device = max(map(len, prompts)), self._model.device
        self._new = torch.tensor([[0] * (longest - len(prompt)) + [*prompt] for prompt in prompts], device=device)
        self._columns = torch.arange(longest + new_tokens, device=device)
        self._cache: Cache = _cache(self._model.config.num_hidden_layers, longest + new_tokens)
        start = torch.tensor([longest - len(prompt) for prompt in prompts], device=device)
        self._of_rows = {"start": start[:, None]}  # column of each row's first token

    def logits(self) -> Tensor:
        """Target logits [rows, vocabulary] after the tokens put in last."""
        start, seen = self._of_rows["start"], self._cache.get_seq_length()
        columns = self._columns[: seen + self._new.shape[1]]
        logits: Tensor = self._model(
            input_ids=self._new,
            attention_mask=(columns >= start).long(),
            position_ids=(columns[seen:] - start).clamp(min=0),
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]
        return logits

    def put(self, tokens: Tensor) -> None:
        """One more token [rows] in every row."""
        self._new = tokens[:, None]

    def keep(self, rows: Sequence[int]) -> None:
        """Only these rows stay."""
        index = torch.tensor(rows, device=self._new.device)
        self._new = self._new[index]
        self._of_rows = {name: tensor[index] for name, tensor in self._of_rows.items()}
        self._cache.batch_select_indices(index)
        self.numbers = [self.numbers[row] for row in rows]


class _EncodedBatch(_Batch):
    """Rows being answered together whose prompts an encoder has read, padded on the right."""

    def _begin(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> None:
        ids = side_by_side(prompts).to(self._model.device)
        mask = (ids >= 0).long()
        encoded = self._model.encoder(ids.clamp(min=0), attention_mask=mask).last_hidden_state
        self._new = torch.full((len(prompts), 1), decoder_start(self._model), device=ids.device)
        self._cache = EncoderDecoderCache(
            _cache(family_of(self._model.config).layers(self._model.config), new_tokens), DynamicCache()
        )
        self._of_rows = {"encoded": encoded, "mask": mask}

    def logits(self) -> Tensor:
        logits: Tensor = self._model(
            encoder_outputs=BaseModelOutput(last_hidden_state=self._of_rows["encoded"]),
            attention_mask=self._of_rows["mask"],
            decoder_input_ids=self._new,
            past_key_values=self._cache,
            use_cache=True,
        ).logits[:, -1]
        return logits


def _cache(layers: int, room: int) -> DynamicCache:
    cache = DynamicCache()
    cache.layers = [_RoomyLayer(room) for _ in range(layers)]
    return cache


@torch.inference_mode()
def answer(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], stop_ids: frozenset[int], settings: Answering
) -> list[list[int]]:
    """Each prompt's answer, the stop id included where it came; all prompts as one batch."""
    generator = torch.Generator(model.device).manual_seed(settings.seed)
    kind = _EncodedBatch if model.config.is_encoder_decoder else _Batch
    batch = kind(model, prompts, settings.new_tokens)
    answers: list[list[int]] = [[] for _ in prompts]
    ended: set[int] = set()
    for left in range(settings.new_tokens, 0, -1):
        logits = batch.logits()
        if settings.temperature == 0:
            tokens = logits.argmax(-1)
        else:
            probs = (logits.float() / settings.temperature).softmax(-1)
            tokens = torch.multinomial(probs, 1, generator=generator)[:, 0]
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


@dataclass(frozen=True)
class Answered:
    """How far the answering is: prompts done of all that had to be answered now, and new tokens a second."""

    done: int
    of: int
    tokens_per_s: float


def pick_prompts(records: Sequence[Record], count: int, seed: int, recipe: Recipe | None) -> list[Prompt]:
    """At most `count` different prompts of chats; with a recipe, those of a source as often as it weighs."""
    random = np.random.default_rng(seed)
    unique = dict.fromkeys((record.source, record.prompt) for record in records if record.prompt)
    chosen = [prompt for source, prompt in unique if not recipe or random.random() < recipe.weight(source)]
    return [chosen[index] for index in random.permutation(len(chosen))[:count]]


def heads_of(prompts: Sequence[Prompt], files: TargetFiles, chat: ChatFormat, new_tokens: int) -> list[Ids]:
    """The ids of the prompts, less those that leave no room for so many tokens of answer in the target's context.

    Raises UserError when that leaves none of them.
    """
    context, room = context_tokens(files.config), prompt_room(files, new_tokens)
    heads = [ids for head in chat.heads(prompts) if len(ids := tuple(map(int, head))) <= room]
    if prompts and not heads:
        raise UserError(
            "answers_too_long",
            f"With answers of {new_tokens} tokens, no prompt fits into the context of {files.name} ({context} tokens). "
            "Give fewer --answer-tokens or shorter prompts.",
        )
    return heads


def prompt_room(files: TargetFiles, new_tokens: int) -> int:
    """How long a prompt may be that so many tokens are to answer; one that an encoder reads shares no context."""
    context = context_tokens(files.config)
    if not files.tokenizer.is_encoder_decoder:
        return context - new_tokens
    return context - 1 if new_tokens < context else 0  # the decoder's text begins with a start token


@dataclass(frozen=True)
class OwnText:
    """Answers of one target in one way, in a file below `folder`: what is there is not answered again.

    `clock` gives seconds. Answers of prompts that with them would not fit into the target's context are left out.
    """

    target: FrozenTarget
    chat: ChatFormat
    settings: Answering
    folder: Path
    clock: Callable[[], float]
    notify: Notify = lambda notice: None

    @cached_property
    def path(self) -> Path:
        """Named for all that decides an answer, except its prompt."""
        how = {name: value for name, value in asdict(self.settings).items() if name != "rows"}
        tokenizer, dtype = self.target.files.tokenizer, str(self.target.model.dtype)
        identity = {"weights": self.target.weights_sha256, "tokenizer": tokenizer.sha256, "dtype": dtype}
        decisive = json.dumps({**identity, "stops": sorted(tokenizer.stop_ids), **how}, sort_keys=True)
        return self.folder / f"own-{hashlib.sha256(decisive.encode()).hexdigest()[:16]}.jsonl"

    def documents(self, prompts: Sequence[Prompt], report: Callable[[Answered], None]) -> list[Document]:
        """A document per prompt, in this order: the prompt as the target is given it, and its answer."""
        heads = heads_of(prompts, self.target.files, self.chat, self.settings.new_tokens)
        with self._alone():
            known = self._read()
            self._answer(list(dict.fromkeys(heads)), known, report)
        dtype = token_dtype(self.target.info.vocabulary)
        pairs = ((np.asarray(head, dtype=dtype), np.asarray(known[head], dtype=dtype)) for head in heads)
        return [self.chat.answered(SOURCE, head, body) for head, body in pairs]

    def _alone(self) -> AbstractContextManager[object]:
        """The file's lock: what another run is answering now, this one waits for and then reads.

        No lock where the folder is read-only: nothing can write there, and an attempt to add answers is an error.
        """
        if self.path.is_file() and not os.access(self.path.parent, os.W_OK):
            return nullcontext()
        busy = f"{self.path}: another run is writing these answers; waiting for it, to use them too"
        with kept(self.path, "answers"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return locked(self.path.with_suffix(".lock"), lambda: self.notify(busy))

    def _answer(self, heads: Sequence[Ids], known: dict[Ids, Ids], report: Callable[[Answered], None]) -> None:
        """Adds the answers that are not known; each batch is written to the file before the next begins.

        Draws depend on all rows of a batch. So one of which a kill left only the beginning is answered as a whole, and
        draws what it would have drawn.
        """
        missing = sum(head not in known for head in heads)
        done, tokens, began = 0, 0, self.clock()
        for number, whole in enumerate(_batches(heads, self._rows(heads))):
            batch = [head for head in whole if head not in known]
            if not batch:
                continue
            is_cut = batch == list(whole[-len(batch) :])
            asked = whole if self.settings.temperature and is_cut else batch
            settings = replace(self.settings, seed=self.settings.seed + number)
            answers = answer(self.target.model, asked, self.target.files.tokenizer.stop_ids, settings)
            pairs = {head: tuple(body) for head, body in zip(asked, answers, strict=True) if head not in known}
            lines = "".join(json.dumps({"prompt": head, "answer": body}) + "\n" for head, body in pairs.items())
            with kept(self.path, "answers"), self.path.open("a") as file:
                file.write(lines)
            known |= pairs
            done, tokens = done + len(batch), tokens + sum(map(len, answers))
            report(Answered(done, missing, tokens / max(self.clock() - began, 1e-9)))
        if self.target.device.type == "cuda":
            torch.cuda.empty_cache()  # large batches are over, and other runs may share the GPU

    def _rows(self, heads: Sequence[Ids]) -> int:
        info = self.target.info
        size = 2 * info.layers * info.kv_size * self.target.model.dtype.itemsize
        longest = max(map(len, heads), default=0) + self.settings.new_tokens
        rows, room, device = self.settings.rows, CACHE_BYTES, self.target.device
        if device.type == "cuda":
            rows, room = 4 * rows, torch.cuda.get_device_properties(device).total_memory / 3
        return max(1, min(rows, int(room / (size * longest))))

    def _read(self) -> dict[Ids, Ids]:
        """What is in the file; a line torn by a kill is cut off."""
        if not self.path.is_file():
            return {}
        read = self.path.read_bytes()
        whole = read[: read.rfind(b"\n") + 1]
        if len(whole) < len(read):
            os.truncate(self.path, len(whole))
        pairs = (json.loads(line) for line in whole.splitlines())
        return {tuple(pair["prompt"]): tuple(pair["answer"]) for pair in pairs}


def _batches(heads: Sequence[Ids], rows: int) -> Iterator[list[Ids]]:
    """Batches of prompts of similar length, in an order that mixes short and long ones."""
    by_length = sorted(heads, key=len)
    batches = [by_length[start : start + rows] for start in range(0, len(by_length), rows)]
    for index in np.random.default_rng(0).permutation(len(batches)):
        yield batches[index]
