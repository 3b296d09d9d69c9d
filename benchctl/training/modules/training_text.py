"""What a draft model or modules learn from: the records as they are, or the target's own answers to their prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from benchctl.decoding.sampling import check_temperature
from benchctl.errors import UserError
from benchctl.training.data.chats import ChatFormat
from benchctl.training.data.packing import (
    FULL,
    NO_TOKENS,
    PROMPT_WEIGHT,
    Batch,
    CutPieces,
    Document,
    PackedCorpus,
    Piece,
    batch_of,
    cut_pieces,
    fill_rows,
)
from benchctl.training.data.reading import Corpus
from benchctl.training.jobs import JobContext, check_run, data_facts, target_dtype
from benchctl.training.modules.frozen import (
    BatchMaker,
    FrozenTarget,
    TargetFiles,
    batch_maker,
    chat_of,
    load_target,
    seen_tokens,
)
from benchctl.training.modules.own_text import SOURCE, Answering, OwnText, Prompt, heads_of, pick_prompts
from benchctl.training.modules.store import StoredBatches, TeacherStore
from benchctl.training.optim import Stage
from benchctl.training.train_options import TeacherOptions
from benchctl.training.trainer import Data

HELD_OUT_PROMPTS = 128  # of each held-out set
HELD_OUT_ROWS = 64  # of each held-out set
LARGE_VOCABULARY, DRAFT_TOKENS = 32768, 8192  # from where on a head costs more than layers, and what drafters keep


def stage_of(options: TeacherOptions) -> Stage:
    """The one stage of such a run."""
    return Stage(1.0, options.row_tokens, options.micro_rows)


def training_text(files: TargetFiles, options: TeacherOptions, job_context: JobContext) -> TrainingText:
    """The text of a run on this target. Raises UserError for rows longer than what it sees, and see `readable`."""
    sees = seen_tokens(files)
    if options.row_tokens > sees:
        raise UserError("row_too_long", f"{files.name} sees {sees} tokens at a time; give --row-tokens {sees} or fewer")
    chat = chat_of(files)
    corpus = readable(job_context.read_corpus(options.data), files, job_context)
    return TrainingText(files, chat, corpus, options, job_context)


def readable(corpus: Corpus, files: TargetFiles, job_context: JobContext) -> Corpus:
    """What the target can read of `corpus`: without plain texts where an encoder reads prompts, for they have none.

    Raises UserError where that leaves nothing to train on or to hold out; what is left out is reported.
    """
    if not files.tokenizer.is_encoder_decoder:
        return corpus
    train = [record for record in corpus.train if record.messages]
    held_out = {name: [record for record in records if record.messages] for name, records in corpus.held_out.items()}
    held_out = {name: chats for name, chats in held_out.items() if chats}
    if not (train and held_out):
        raise UserError(
            "chats_missing",
            f"{files.name} has an encoder, which reads prompts, and the {'held-out' if train else 'training'} data "
            "are plain texts only; give chats, some of them in a file whose name ends in _val",
        )
    left = len(corpus.train) - len(train)
    unseen = sum(map(len, corpus.held_out.values())) - sum(map(len, held_out.values()))
    if (left or unseen) and job_context.world.leads:
        job_context.notify(
            f"{left:,} plain texts to train on and {unseen:,} held-out ones are left out: the encoder of {files.name} "
            "reads prompts."
        )
    return replace(corpus, train=train, held_out=held_out)


@dataclass(frozen=True)
class TrainingText:
    """Makes the data of a run on a frozen target."""

    files: TargetFiles
    chat: ChatFormat
    corpus: Corpus
    options: TeacherOptions
    job_context: JobContext

    def load_target(self, facts: Mapping[str, str]) -> tuple[FrozenTarget, dict[str, str]]:
        """The target, and `facts` with all else that a resumed run must share with its beginning.

        Raises UserError, before the weights are read where that is possible, for what would come to nothing after hours
        of answering: a run that cannot be resumed, a step that cannot be shared, prompts that are none or too long.
        """
        check_temperature(self.options.self_distil_temperature)
        stages, dtype = (stage_of(self.options),), target_dtype(self.options)
        known = {**facts, "text": self.fact, "target dtype": dtype}
        known |= data_facts(self.corpus, self.chat)
        check_run(self.options, stages, known, self.job_context)
        self._check_text()
        target = load_target(self.files, self.job_context.world.device(self.options.device), dtype)
        known["target"] = target.weights_sha256[:16]
        check_run(self.options, stages, known, self.job_context)
        return target, known

    def data(self, target: FrozenTarget) -> Data:
        """`self_distil` prompts answered by the target, or every record once a pass where that is 0.

        Held-out text is the target's own too in the first case, answered greedily.
        """
        options, longest = self.options, seen_tokens(self.files)
        if not options.self_distil:
            return replace(self._recorded, longest_row=longest)
        how = Answering(options.answer_tokens, options.self_distil_temperature, options.seed)
        documents = self._answered(target, self._prompts, how)
        return replace(self._data_of(documents, self.greedy(target)), longest_row=longest)

    def _data_of(self, train: Sequence[Document], held_out: Mapping[str, Sequence[Document]]) -> Data:
        return data_of(train, held_out, self.chat, stage_of(self.options), self.options.seed, self._prompt_weight)

    def greedy(self, target: FrozenTarget) -> Mapping[str, list[Document]]:
        """The target's greedy answers to held-out prompts, by the name of the held-out set.

        All processes ask for them, since the others wait until the first one has written them.
        """
        how = Answering(self.options.answer_tokens)
        return {name: self._answered(target, prompts, how) for name, prompts in self._unseen.items()}

    def batch_maker(self, target: FrozenTarget, data: Data) -> BatchMaker:
        """What runs the target over these data, or reads what it made of them before."""
        store = self._store(target, data)
        return batch_maker(target.model, target.device) if store is None else StoredBatches(target, store)

    def _store(self, target: FrozenTarget, data: Data) -> TeacherStore | None:
        """Where the target's states for these data are kept, if they are; how large that becomes is told first."""
        options, notify = self.options, self.job_context.notify
        if not (options.cache and options.store_gb) or options.device != "cpu" or target.info.is_encoder_decoder:
            return None
        (rows,), leads = data.stages, self.job_context.world.leads
        assert isinstance(rows, PackedCorpus)
        store = TeacherStore(options.cache, target, int(options.store_gb * 1e9), leads, notify)
        self.job_context.held.enter_context(store)
        tokens = sum(len(piece.tokens) for piece in rows.pieces(np.random.default_rng(0)))
        tokens += sum(int((batch.documents >= 0).sum()) for batches in data.held_out.values() for batch in batches)
        needed, there = tokens * store.token_bytes, store.bytes_held
        over = (
            ""
            if needed <= options.store_gb * 1e9
            else f"; what is beyond --store-gb {options.store_gb:g} is computed each time"
        )
        if leads:
            notify(
                f"The target's states of {tokens:,} tokens take {needed / 1e9:.1f} GB in {store.folder}, which holds "
                f"{there / 1e9:.1f} GB now{over}."
            )
        return store

    @property
    def fact(self) -> str:
        """What a resumed run must have asked for too."""
        options = self.options
        own = f"{options.self_distil} own answers of {options.answer_tokens} at {options.self_distil_temperature:g}"
        mixed = ", half to requests" if self.corpus.recipe else ""
        return f"{own + mixed if options.self_distil else 'records'}, prompts weigh {self._prompt_weight:g}"

    @property
    def described(self) -> str:
        """What was read, in words for a card."""
        if not self.options.self_distil:
            return "the chats of the data" if self.files.tokenizer.is_encoder_decoder else "the data as they are"
        temperature = self.options.self_distil_temperature
        how = f"at temperature {temperature:g}" if temperature else "greedily"
        what = "prompts, half of the data and half made by rule" if self.corpus.recipe else "prompts of the data"
        return f"its own answers to at most {self.options.self_distil:,} {what}, written {how}"

    def _check_text(self) -> None:
        """Raises UserError for prompts that are none, or too long: as if the target had nothing to say to them."""
        if not self.options.self_distil:
            _ = self._recorded
            return
        if not self._unseen:
            raise UserError(
                "chats_missing",
                "no held-out record has a prompt that the target could answer; put chats into a file whose name ends "
                "in _val, or give --self-distil 0",
            )
        for prompts in (self._prompts, *self._unseen.values()):
            heads = heads_of(prompts, self.files, self.chat, self.options.answer_tokens)
            unanswered = [self.chat.answered(SOURCE, np.asarray(head), NO_TOKENS) for head in heads]
            self._data_of(unanswered, {})

    @cached_property
    def _recorded(self) -> Data:
        """Every record once a pass."""
        held_out = {name: self.chat.tokenize(records) for name, records in self.corpus.held_out.items()}
        return self._data_of(self.chat.tokenize(self.corpus.train), held_out)

    @cached_property
    def _unseen(self) -> Mapping[str, list[Prompt]]:
        """Held-out prompts by the name of the set, where it has any."""
        picked = {
            name: pick_prompts(records, HELD_OUT_PROMPTS, 0, self.corpus.recipe)
            for name, records in self.corpus.held_out.items()
        }
        return {name: prompts for name, prompts in picked.items() if prompts}

    @cached_property
    def _prompts(self) -> list[Prompt]:
        """Raises UserError when there are none; fewer than were asked for are reported.

        A prompt that is held out too is left out whatever its answer in the data: the target's own would be the same.
        """
        asked = self.options.self_distil
        held_out = {record.prompt for records in self.corpus.held_out.values() for record in records}
        records = [record for record in self.corpus.train if record.prompt not in held_out]
        recipe, seed = self.corpus.recipe, self.options.seed
        made = recipe.requests(records, asked // 2, seed) if recipe else []
        requests = [request for request in made if request not in held_out]
        prompts = requests + pick_prompts(records, asked - len(requests), seed, recipe)
        if not prompts:
            raise UserError(
                "chats_missing",
                "the data contain no prompts that the target could answer; give chats or --self-distil 0",
            )
        if len(prompts) < asked and self.job_context.world.leads:
            self.job_context.notify(f"There are {len(prompts)} prompts; --self-distil {asked} asks for more.")
        return prompts

    @property
    def _prompt_weight(self) -> float:
        """Nothing where an encoder reads the prompts: none of their tokens is to be predicted."""
        return 0.0 if self.options.answers_only or self.files.tokenizer.is_encoder_decoder else PROMPT_WEIGHT / FULL

    def _answered(self, target: FrozenTarget, prompts: Sequence[Prompt], how: Answering) -> list[Document]:
        """Answers that the first process writes and the others then read."""
        world = self.job_context.world
        folder = self.options.cache or self.options.out / "own_text"
        own = OwnText(target, self.chat, how, folder, self.job_context.clock, self.job_context.notify)
        documents = own.documents(prompts, self.job_context.answered) if world.leads else []
        world.sum(torch.zeros((), device=target.device))  # the others wait here for the first one
        return documents if world.leads else own.documents(prompts, lambda answered: None)


def draft_size(asked: int | None, vocabulary: int) -> int:
    """Tokens of a draft vocabulary of which `asked` are wanted; 0 for the whole vocabulary."""
    count = asked if asked is not None else DRAFT_TOKENS if vocabulary >= LARGE_VOCABULARY else 0
    return count if count < vocabulary else 0


def draft_tokens(asked: int | None, vocabulary: int, data: Data) -> Tensor | None:
    """The ids [k], ascending, that `asked` tokens of a draft vocabulary are; None for the whole vocabulary.

    Those that weigh most in the text to learn from, prompts less than answers; of equals the lower ids. Raises
    UserError for fewer than two.
    """
    count = draft_size(asked, vocabulary)
    if count == 1:
        raise UserError("draft_vocabulary_too_small", "--draft-vocabulary 1 leaves nothing to choose; give 2 or more")
    if not count:
        return None
    (rows,), weight = data.stages, np.zeros(vocabulary)
    assert isinstance(rows, PackedCorpus)
    for piece in rows.pieces(np.random.default_rng(0)):
        weight += np.bincount(piece.tokens, piece.weights, vocabulary)
    return torch.from_numpy(np.sort(np.argsort(-weight, kind="stable")[:count]))


def draft_text(ids: Tensor | None, drawn: int = 0) -> str:
    """A sentence for a card; empty for a loss over the whole vocabulary."""
    if drawn:
        return f" The loss of a pass is over {drawn:,} random tokens and the target's likeliest ones in that pass."
    return (
        "" if ids is None else f" The loss is over a draft vocabulary: the {len(ids):,} most frequent tokens of that."
    )


def data_of(
    train: Sequence[Document],
    held_out: Mapping[str, Sequence[Document]],
    chat: ChatFormat,
    stage: Stage,
    seed: int,
    prompt_weight: float,
) -> Data:
    """Rows in which every document is read once a pass, and a sample of the held-out ones; prompts weigh 0 to 1.

    A chat is cut at the end of a row, see PackedCorpus for what is left out then. Raises UserError when rows of that
    length hold no answer at all.
    """
    cut = _cut(train, stage.row_tokens, prompt_weight)
    left_out = (cut.dropped_answers, cut.long_prompts)
    rows = PackedCorpus(lambda random: cut.pieces, stage.row_tokens, chat.pad_id, seed, 0, *left_out)
    batches = {
        name: held_out_batches(_cut(documents, stage.row_tokens, prompt_weight).pieces, stage, chat.pad_id)
        for name, documents in held_out.items()
    }
    return Data([rows], batches, chat.token_bytes())


def held_out_batches(pieces: Sequence[Piece], stage: Stage, pad_id: int) -> list[Batch]:
    """A fixed sample of the pieces, at most HELD_OUT_ROWS rows, as batches of the stage's rows."""
    order = np.random.default_rng(0).permutation(len(pieces))
    rows = fill_rows([pieces[index] for index in order], stage.row_tokens)[:HELD_OUT_ROWS]
    micro_batches = [rows[start : start + stage.micro_rows] for start in range(0, len(rows), stage.micro_rows)]
    return [batch_of(each, stage.row_tokens, pad_id) for each in micro_batches]


def _cut(documents: Sequence[Document], row_tokens: int, prompt_weight: float) -> CutPieces:
    cut = cut_pieces(documents, row_tokens, round(FULL * prompt_weight))
    if not cut.pieces:
        raise UserError(
            "rows_too_short",
            f"every prompt is longer than a row of {row_tokens} tokens; give longer rows or shorter prompts",
        )
    return cut
