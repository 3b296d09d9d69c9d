"""Jobs that train a whole model by the reference recipe: a target, or a mixture of experts on its tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedModel

from benchctl.errors import UserError
from benchctl.packs import WEIGHTS
from benchctl.training.chat import ChatFormat
from benchctl.training.checkpoint import load_checkpoint, load_weights, writing
from benchctl.training.experts import expert_loads, load_yardsticks
from benchctl.training.frozen import TargetFiles, chat_of, find_target, load_target, seen_tokens
from benchctl.training.jobs import CHECKPOINTS, Surroundings, check, corpus_of, data_facts, train
from benchctl.training.models import (
    TokenIds,
    build_model,
    can_take_over,
    copy_tokenizer,
    empty_model,
    parameter_count,
    save_config,
    save_model,
    take_over,
)
from benchctl.training.objective import HeldOut, LanguageModel, MixtureLoss
from benchctl.training.options import MODEL_LEARNING, TrainOptions
from benchctl.training.recipe import STAGES, Corpus, corpus_data, tokenizer_for
from benchctl.training.record import Result, greedy_samples, model_shape, trained_before, write_result
from benchctl.training.schedule import fitting
from benchctl.training.settings import Data
from benchctl.training.shapes import ModelShape, MoeStart, check_shape
from benchctl.training.tokenizer import load_tokenizer, save_tokenizer

BALANCE = 0.01  # share of the balance loss, as OLMoE was trained (arXiv:2409.02060)
PURPOSE = "A target to measure decoding methods with. How well it writes: see its held-out loss and its samples."
SCRATCH = "From scratch."
METHOD = "{began} Rows grow from 256 to 512 and 1,024 tokens, as the context allows; late stages weigh sources anew."


@dataclass(frozen=True)
class _Begun:
    """A model before its training, how its chats are written, and in words what it began as."""

    model: PreTrainedModel
    chat: ChatFormat
    began: str = SCRATCH
    facts: Mapping[str, str] = field(default_factory=dict)


def train_target(
    options: TrainOptions, shape: ModelShape, vocabulary: int, init_from: str, around: Surroundings
) -> Result | None:
    """Trains a target into a folder that transformers reads; None in all but the first process.

    It has a tokenizer of its own, or goes on from the model `init_from`, whose tokenizer and sizes it then has.
    """
    options = options.with_defaults(MODEL_LEARNING)
    check(options, around.world)
    check_shape(shape)
    files = find_target(init_from) if init_from else None
    corpus = corpus_of(options)
    if files is not None:
        begun = _going_on(files, options, around)
        return _train_model("target", begun, seen_tokens(files), corpus, options, around)
    tokenizer = _tokenizer(options, corpus, vocabulary, shape.positions, around)
    model = build_model(shape, TokenIds.of(tokenizer), options.seed)
    return _train_model("target", _Begun(model, ChatFormat.of(tokenizer)), shape.positions, corpus, options, around)


def train_moe(options: TrainOptions, shape: ModelShape, init_from: MoeStart, around: Surroundings) -> Result | None:
    """Trains a mixture of experts that shares the tokenizer of `options.model`; None in all but the first process.

    It begins with the embedding and attention of that model where `init_from` is "model", or empty and the sizes fit.
    """
    options = options.with_defaults(MODEL_LEARNING)
    check(options, around.world)
    check_shape(shape)
    files = find_target(options.model)
    fits = can_take_over(shape, files.config)
    if init_from == "model" and not fits:
        raise UserError(f"these sizes do not fit those of {files.name}; leave them out, or give --init-from scratch")
    chat = chat_of(files)
    corpus = corpus_of(options)
    if around.world.leads:
        copy_tokenizer(files.folder, options.out)
    model = build_model(shape, TokenIds.of_config(files.config), options.seed)
    if not fits or init_from == "scratch":
        return _train_model("moe", _Begun(model, chat), shape.positions, corpus, options, around)
    dense = load_target(files, torch.device("cpu"), "float32")
    take_over(model, dense.model)
    began = f"It began with the embedding, norms and attention of {files.name}; its experts with random weights."
    begun = _Begun(model, chat, began, {"began as": dense.weights_sha256[:16]})
    return _train_model("moe", begun, shape.positions, corpus, options, around)


def export_checkpoint(run: Path, out: Path) -> None:
    """Writes the newest checkpoint of an unfinished run of a model as a model folder."""
    found = load_checkpoint(run / CHECKPOINTS)
    if found is None:
        raise UserError(f"{run}: no checkpoint in its folder '{CHECKPOINTS}' yet")
    if not (run / "config.json").is_file():
        raise UserError(f"{run}: trains modules of a method, not a model; finish it with --resume instead")
    if (out / WEIGHTS).exists():
        raise UserError(f"{out}: holds {WEIGHTS} already; name another folder with --out")
    model = empty_model(run)
    load_weights(model, found.weights)
    save_model(model, out)
    copy_tokenizer(run, out)


def _train_model(
    part: str, begun: _Begun, longest_row: int, corpus: Corpus, options: TrainOptions, around: Surroundings
) -> Result | None:
    model, chat, stages = begun.model, begun.chat, fitting(STAGES, longest_row)
    data = corpus_data(corpus, chat, stages, options.seed)
    mixture = part == "moe"
    objective = MixtureLoss(data.token_bytes, BALANCE) if mixture else LanguageModel(data.token_bytes)
    if around.world.leads:
        save_config(model, options.out)
    facts = {**data_facts(corpus, options), **begun.facts}
    run = train(model, objective, data, stages, options, around, facts)
    if not around.world.leads:
        return None
    with writing(options.out / CHECKPOINTS, "the model"):
        save_model(model, options.out)
    model.eval()  # type: ignore[no-untyped-call]
    experts = {"experts": _loads(model, data)} if mixture else {}
    result = Result(
        part=part,
        parameters=parameter_count(model),
        shape=model_shape(model.config),
        purpose=PURPOSE,
        method=METHOD.format(began=begun.began),
        use="benchctl run --model {folder}",
        held_out={**run.held_out, **experts},
        samples=greedy_samples(model, chat, find_target(str(options.out)).tokenizer.stop_ids),
    )
    write_result(options.out, result, run, corpus, "", around.provenance)
    return result


def _going_on(files: TargetFiles, options: TrainOptions, around: Surroundings) -> _Begun:
    """The model of `files`, to be trained further with its own tokenizer."""
    chat = chat_of(files)
    if around.world.leads:
        copy_tokenizer(files.folder, options.out)
    found = load_target(files, torch.device("cpu"), "float32")
    facts = {"began as": found.weights_sha256[:16]}
    return _Begun(found.model.requires_grad_(True), chat, trained_before(files.name, files.folder), facts)


def _loads(model: PreTrainedModel, data: Data) -> HeldOut:
    return load_yardsticks(expert_loads(model, [batch for batches in data.held_out.values() for batch in batches]))


def _tokenizer(
    options: TrainOptions, corpus: Corpus, vocabulary: int, positions: int, around: Surroundings
) -> Tokenizer:
    """The tokenizer already in the folder when resuming, else a new one; the same in every process."""
    if options.resume and (options.out / "tokenizer.json").is_file():
        return load_tokenizer(options.out)
    tokenizer = tokenizer_for(corpus, vocabulary)
    if around.world.leads:
        save_tokenizer(tokenizer, options.out, positions)
    return tokenizer
