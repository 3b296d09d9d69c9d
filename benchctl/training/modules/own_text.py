"""The target's own answers, kept on disk as they come: what a draft model and a method's modules learn from.

Self-distillation: trained on the target's own text, modules learn to say what the target will say, not what a data set
says (Zhou et al., "DistillSpec", 2023, arXiv:2310.08461; Cai et al., "Medusa", 2024, arXiv:2401.10774, section 2.3).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from benchctl.decoding.model.families import context_tokens
from benchctl.errors import UserError
from benchctl.training.checkpoint import Notify, locked
from benchctl.training.data.chat import ChatFormat
from benchctl.training.data.corpus import Message, Record
from benchctl.training.data.packing import Document, token_dtype
from benchctl.training.modules.frozen import FrozenTarget, TargetFiles
from benchctl.training.modules.generate import Answering, answer
from benchctl.training.sources import LATE, weight

SOURCE = "own"
CACHE_BYTES = 8e9  # keys and values of a batch; rows that need more are answered in smaller batches

Prompt = tuple[Message, ...]
Ids = tuple[int, ...]


@dataclass(frozen=True)
class Answered:
    """How far the answering is: prompts done of all that had to be answered now, and new tokens a second."""

    done: int
    of: int
    tokens_per_s: float


def pick_prompts(records: Sequence[Record], count: int, seed: int, weighed: bool) -> list[Prompt]:
    """`count` different prompts of chats at most; `weighed`: those of a source as often as the late stage reads it."""
    random = np.random.default_rng(seed)
    unique = dict.fromkeys((record.source, record.prompt) for record in records if record.prompt)
    chosen = [prompt for source, prompt in unique if not weighed or random.random() < weight(source, LATE)]
    return [chosen[index] for index in random.permutation(len(chosen))[:count]]


def heads_of(prompts: Sequence[Prompt], files: TargetFiles, chat: ChatFormat, new_tokens: int) -> list[Ids]:
    """The ids of the prompts, less those that leave no room for so many tokens of answer in the target's context.

    Raises UserError when that leaves none of them.
    """
    context, room = context_tokens(files.config), prompt_room(files, new_tokens)
    heads = [ids for head in chat.heads(prompts) if len(ids := tuple(map(int, head))) <= room]
    if prompts and not heads:
        raise UserError(
            f"no prompt and {new_tokens} tokens of answer fit into the {context} tokens of {files.name}; "
            "give fewer --answer-tokens or shorter prompts"
        )
    return heads


def prompt_room(files: TargetFiles, new_tokens: int) -> int:
    """How long a prompt may be that so many tokens are to answer; one that an encoder reads shares no context."""
    context = context_tokens(files.config)
    if not files.tokenizer.is_encoder_decoder:
        return context - new_tokens
    return context - 1 if new_tokens < context else 0  # the decoder's text begins with a start token


class OwnText:
    """Answers of one target in one way, in a file below `folder`: what is there is not answered again.

    `clock` gives seconds. Answers of prompts that with them would not fit into the target's context are left out.
    """

    def __init__(
        self,
        target: FrozenTarget,
        chat: ChatFormat,
        settings: Answering,
        folder: Path,
        clock: Callable[[], float],
        notify: Notify = lambda notice: None,
    ) -> None:
        self._target = target
        self._chat = chat
        self._settings = settings
        self._clock = clock
        self._notify = notify
        self.path = folder / f"{_key(target, settings)}.jsonl"

    def documents(self, prompts: Sequence[Prompt], report: Callable[[Answered], None]) -> list[Document]:
        """A document per prompt, in this order: the prompt as the target is given it, and its answer."""
        heads = heads_of(prompts, self._target.files, self._chat, self._settings.new_tokens)
        with self._alone():
            known = self._read()
            for head, body in self._answer(list(dict.fromkeys(heads)), set(known), report):
                known[head] = body
        dtype = token_dtype(self._target.info.vocabulary)
        pairs = ((np.asarray(head, dtype=dtype), np.asarray(known[head], dtype=dtype)) for head in heads)
        return [self._chat.answered(SOURCE, head, body) for head, body in pairs]

    def _alone(self) -> AbstractContextManager[object]:
        """The file's lock: what another run is answering now, this one waits for and then reads.

        None where the folder can only be read: nobody writes there, and who has something to add is told.
        """
        if self.path.is_file() and not os.access(self.path.parent, os.W_OK):
            return nullcontext()
        busy = f"{self.path}: another run is writing these answers; waiting for it, to use them too"
        with self._kept():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return locked(self.path.with_suffix(".lock"), lambda: self._notify(busy))

    @contextmanager
    def _kept(self) -> Iterator[None]:
        """Turns a failure to write into a UserError."""
        try:
            yield
        except OSError as error:
            raise UserError(
                f"{self.path}: cannot be written ({error.strerror}); free some space, then repeat the command with "
                "--resume: the answers that are there are kept"
            ) from error

    def _answer(
        self, heads: Sequence[Ids], known: Collection[Ids], report: Callable[[Answered], None]
    ) -> Iterator[tuple[Ids, Ids]]:
        """The answers that are not known, each batch written to the file before it is given.

        Batches are made as if none were known: one that a kill kept from being answered draws what it would have drawn.
        """
        missing = sum(head not in known for head in heads)
        done, tokens, began = 0, 0, self._clock()
        for number, whole in enumerate(_batches(heads, self._rows(heads))):
            batch = [head for head in whole if head not in known]
            if not batch:
                continue
            settings = replace(self._settings, seed=self._settings.seed + number)
            answers = answer(self._target.model, batch, self._target.files.tokenizer.stop_ids, settings)
            pairs = [(head, tuple(body)) for head, body in zip(batch, answers, strict=True)]
            self._append(pairs)
            done, tokens = done + len(batch), tokens + sum(map(len, answers))
            report(Answered(done, missing, tokens / max(self._clock() - began, 1e-9)))
            yield from pairs

    def _rows(self, heads: Sequence[Ids]) -> int:
        info = self._target.info
        size = 2 * info.layers * info.kv_size * self._target.model.dtype.itemsize
        longest = max(map(len, heads), default=0) + self._settings.new_tokens
        return max(1, min(self._settings.rows, int(CACHE_BYTES / (size * longest))))

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

    def _append(self, pairs: Sequence[tuple[Ids, Ids]]) -> None:
        lines = "".join(json.dumps({"prompt": head, "answer": body}) + "\n" for head, body in pairs)
        with self._kept(), self.path.open("a") as file:
            file.write(lines)


def _key(target: FrozenTarget, settings: Answering) -> str:
    """What decides an answer besides its prompt: weights, tokenizer, precision, length, and how tokens are drawn."""
    how = {name: value for name, value in asdict(settings).items() if name != "rows"}
    identity = {"weights": target.weights_sha256, "tokenizer": target.files.tokenizer.sha256}
    told = {**identity, "dtype": str(target.model.dtype), **how}
    return f"own-{hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]}"


def _batches(heads: Sequence[Ids], rows: int) -> Iterator[list[Ids]]:
    """Batches of prompts of similar length, in an order that mixes short and long ones."""
    by_length = sorted(heads, key=len)
    batches = [by_length[start : start + rows] for start in range(0, len(by_length), rows)]
    for index in np.random.default_rng(0).permutation(len(batches)):
        yield batches[index]
