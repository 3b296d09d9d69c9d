"""Whole training jobs: read the data, build the model, train it, write the folder that transformers reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from benchctl.errors import UserError
from benchctl.training.checkpoint import load_checkpoint, load_weights
from benchctl.training.corpus import Record
from benchctl.training.models import ModelShape, build_model, empty_model, load_model, save_model
from benchctl.training.objective import Distillation, Objective, next_token_loss
from benchctl.training.optim import OptimizerSettings
from benchctl.training.own_text import acceptance, own_documents
from benchctl.training.packing import Document, PackedCorpus, tokenize
from benchctl.training.recipe import STAGES, Corpus, corpus_data, read_corpus, tokenizer_for
from benchctl.training.record import greedy_samples, outcome_of, write_card, write_record
from benchctl.training.schedule import Budget, Stage
from benchctl.training.sources import LATE, weight
from benchctl.training.tokenizer import load_tokenizer, save_tokenizer
from benchctl.training.trainer import Data, Progress, Trainer, TrainSettings

Clock = Callable[[], float]
Report = Callable[[Progress], None]

DRAFT_STAGES = (Stage(0.3, 256, 16), Stage(1.0, 256, 16))
OWN_ANSWER_TOKENS = 160
HELD_OUT_PROMPTS = 128
LONGEST_PROMPT = 200


@dataclass(frozen=True)
class RunOptions:
    """What every training job is told."""

    data: tuple[Path, ...]
    out: Path
    minutes: float | None = None
    steps: int | None = None
    resume: bool = False
    compiled: bool = False
    seed: int = 0
    batch_tokens: int = 8192
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)

    def settings(self, stages: tuple[Stage, ...]) -> TrainSettings:
        """The settings of a run in these stages. Raises UserError unless exactly one budget is given."""
        if (self.minutes is None) == (self.steps is None):
            raise UserError("Give the length of the training with either --minutes or --steps.")
        return TrainSettings(
            budget=Budget(steps=self.steps, seconds=None if self.minutes is None else self.minutes * 60),
            stages=stages,
            batch_tokens=self.batch_tokens,
            optimizer=self.optimizer,
            seed=self.seed,
            compiled=self.compiled,
        )

    def command(self, kind: str, target_folder: Path | None = None) -> str:
        """The command line that makes this run, with the names of folders instead of their paths."""
        data = " ".join(f"--data {path.name}" for path in self.data)
        length = f"--minutes {self.minutes:g}" if self.minutes is not None else f"--steps {self.steps}"
        model = f" --model {target_folder.name}" if target_folder is not None else ""
        tail = f"--batch-tokens {self.batch_tokens} --seed {self.seed}"
        return f"benchctl train {kind}{model} {data} --out {self.out.name} {length} {tail}"


def train_target(options: RunOptions, shape: ModelShape, vocabulary: int, clock: Clock, report: Report) -> None:
    """Trains a target and writes it to the output folder; checkpoints lie in its folder `checkpoints`."""
    settings = options.settings(STAGES)
    corpus = read_corpus(options.data)
    tokenizer = _tokenizer(options, corpus, vocabulary, shape.positions)
    model = build_model(shape, tokenizer, options.seed)
    data = corpus_data(corpus, tokenizer, STAGES, options.seed)
    trainer = _trained(model, next_token_loss, data, settings, options, clock, report)
    save_model(model, tokenizer, options.out)
    outcome = outcome_of(options.out, model, trainer, options.command("target"))
    write_record(options.out, outcome, settings, corpus)
    write_card(options.out, outcome, greedy_samples(model, tokenizer), corpus)


def train_draft(
    options: RunOptions, target_folder: Path, prompts: int, shape: ModelShape, clock: Clock, report: Report
) -> float:
    """Distils a draft model for a target: first on the corpus, then on its own answers. Returns the acceptance."""
    settings = options.settings(DRAFT_STAGES)
    target = load_model(target_folder)
    tokenizer = load_tokenizer(target_folder)
    corpus = read_corpus(options.data)
    own = own_documents(target, tokenizer, _heads(corpus.train, tokenizer, prompts, options.seed), OWN_ANSWER_TOKENS)
    unseen = _heads(corpus.held_out.get("instruct", corpus.train), tokenizer, HELD_OUT_PROMPTS, options.seed)
    unseen_own = own_documents(target, tokenizer, unseen, OWN_ANSWER_TOKENS)
    data = _draft_data(corpus, own, tokenizer, options.seed)
    draft = build_model(shape, tokenizer, options.seed)
    trainer = _trained(draft, Distillation(target), data, settings, options, clock, report)
    save_model(draft, tokenizer, options.out)
    reached = acceptance(draft, tokenizer, unseen_own)
    outcome = outcome_of(options.out, draft, trainer, options.command("draft", target_folder), reached)
    write_record(options.out, outcome, settings, corpus)
    write_card(options.out, outcome, greedy_samples(draft, tokenizer), corpus)
    return reached


def export_checkpoint(run: Path, out: Path) -> None:
    """Writes the newest checkpoint of an unfinished run as a model folder."""
    found = load_checkpoint(run / "checkpoints")
    if found is None:
        raise UserError(f"{run}: no checkpoint in its folder 'checkpoints' yet")
    tokenizer = load_tokenizer(run)
    model = empty_model(run)
    load_weights(model, found.weights)
    save_model(model, tokenizer, out)


def _trained(
    model: LlamaForCausalLM,
    objective: Objective,
    data: Data,
    settings: TrainSettings,
    options: RunOptions,
    clock: Clock,
    report: Report,
) -> Trainer:
    model.config.save_pretrained(options.out)
    trainer = Trainer(model, objective, data, settings, options.out / "checkpoints", clock, report)
    if options.resume:
        trainer.resume()
    trainer.train()
    return trainer


def _tokenizer(options: RunOptions, corpus: Corpus, vocabulary: int, positions: int) -> Tokenizer:
    """The tokenizer already in the folder when resuming, else a new one."""
    if options.resume and (options.out / "tokenizer.json").is_file():
        return load_tokenizer(options.out)
    tokenizer = tokenizer_for(corpus, vocabulary)
    save_tokenizer(tokenizer, options.out, positions)
    return tokenizer


def _heads(records: Sequence[Record], tokenizer: Tokenizer, count: int, seed: int) -> list[list[int]]:
    """`count` different prompts of chat records at most, picked by the weights of the late stage."""
    random = np.random.default_rng(seed)
    unique = {r.prompt: r for r in records if r.prompt is not None and weight(r.source, LATE) > 0}
    chats = [record for record in unique.values() if random.random() < weight(record.source, LATE)]
    picked = [chats[index] for index in random.permutation(len(chats))[: count * 2]]
    heads = [document.head.tolist() for document in tokenize(picked, tokenizer)]
    return [head for head in heads if len(head) <= LONGEST_PROMPT][:count]


def _draft_data(corpus: Corpus, own: Sequence[Document], tokenizer: Tokenizer, seed: int) -> Data:
    """First the corpus, then the target's own answers."""
    base = corpus_data(corpus, tokenizer, DRAFT_STAGES[:1], seed)
    packed = PackedCorpus(own, tokenizer, DRAFT_STAGES[1].row_tokens, seed, stage=1, weights=LATE)
    return Data([base.stages[0], packed], base.held_out, base.token_bytes)
