"""Jobs that train a whole model by the reference recipe: a target, or a mixture of experts on its tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedModel

from benchctl.errors import UserError
from benchctl.training.checkpoint import checkpoints, writing
from benchctl.training.data.chats import ChatFormat, Message
from benchctl.training.data.packing import PROMPT_WEIGHT
from benchctl.training.data.reading import Corpus
from benchctl.training.jobs import CHECKPOINTS, JobContext, check, check_run, data_facts, train
from benchctl.training.models import (
    build_model,
    copy_tokenizer,
    llama_config,
    parameter_count,
    round_as_saved,
    save_config,
    save_model,
    token_settings,
)
from benchctl.training.modules.frozen import TargetFiles, chat_of, find_target, load_target, seen_tokens
from benchctl.training.modules.objective import HeldOut
from benchctl.training.modules.own_text import Answering, answer
from benchctl.training.record import Result, model_shape, trained_before, write_result
from benchctl.training.train_options import Learning, ModelShape, TrainOptions, check_shape
from benchctl.training.trainer import Data
from reference.bpe import chat_format, read_tokenizer, save_tokenizer, token_ids
from reference.mixture import (
    MixtureLoss,
    MoeShape,
    can_take_over,
    check_moe_shape,
    expert_load_metrics,
    expert_loads,
    olmoe_config,
    take_over,
)
from reference.objectives import LanguageModel
from reference.recipe import STAGES, corpus_data, fitting, tokenizer_for

MODEL_LEARNING = Learning("muon", 3e-3, 0.015, "cosine", 0.02, 4096)
BALANCE = 0.01  # share of the balance loss, as OLMoE was trained (arXiv:2409.02060)
PURPOSE = "A target to measure decoding methods with. How well it writes: see its held-out loss and its samples."
SCRATCH = "From scratch."
METHOD = "{began} Rows grow from 256 to 512 and 1,024 tokens, as the context allows{weighed}.{counted}"


SAMPLE_PROMPTS = (
    "What is the capital of France?",
    "Write a short story about a cat.",
    "Explain why the sky is blue.",
    "Give me three tips for staying healthy.",
    "What is 7 + 5?",
    "Sort these numbers from small to large: 31, 4, 17, 9",
    "Take on the role of a pirate. Tell me about your ship.",
)
SAMPLE_TOKENS = 160


@dataclass(frozen=True)
class _Begun:
    """A model before its training, how its chats are written, how to write its tokenizer into a folder, and in words
    what it began as."""

    model: PreTrainedModel
    chat: ChatFormat
    write_tokenizer: Callable[[Path], None]
    began: str = SCRATCH
    facts: Mapping[str, str] = field(default_factory=dict)


def train_target(
    options: TrainOptions,
    shape: ModelShape,
    vocabulary: int,
    init_from: str,
    job_context: JobContext,
) -> Result | None:
    """Trains a target into a folder that transformers reads; None in all but the first process.

    It has a tokenizer of its own, or goes on from the model `init_from`, whose tokenizer and sizes it then has.
    """
    options = options.with_defaults(MODEL_LEARNING)
    check(options, job_context, init_from)
    check_shape(shape)
    files = find_target(init_from) if init_from else None
    corpus = job_context.read_corpus(options.data)
    if files is not None:
        begun = _going_on(files, corpus, options, job_context)
        return _train_model("target", begun, seen_tokens(files), corpus, options, job_context)
    tokenizer = _tokenizer(options, corpus, vocabulary)
    chat, facts = chat_format(tokenizer), {"vocabulary asked for": str(vocabulary)}
    _check_run(chat, shape.positions, corpus, options, job_context)
    model = build_model(llama_config(shape, token_ids(tokenizer)), options.seed)
    begun = _Begun(model, chat, lambda folder: save_tokenizer(tokenizer, folder, shape.positions), facts=facts)
    return _train_model("target", begun, shape.positions, corpus, options, job_context)


def train_moe(
    options: TrainOptions, shape: MoeShape, model_name: str, init_from: str, job_context: JobContext
) -> Result | None:
    """Trains a mixture of experts that shares the tokenizer of `model_name`; None in all but the first process.

    It begins with the embedding and attention of that model where `init_from` is "model", or empty and the sizes fit.
    """
    options = options.with_defaults(MODEL_LEARNING)
    check(options, job_context, model_name)
    check_moe_shape(shape)
    files = find_target(model_name)
    fits = can_take_over(shape, files.config)
    if init_from == "model" and not fits:
        raise UserError(
            "shapes_do_not_fit",
            f"these sizes do not fit those of {files.name}; leave them out, or give --init-from scratch",
        )
    chat = chat_of(files)
    corpus = job_context.read_corpus(options.data)
    _check_run(chat, shape.positions, corpus, options, job_context)
    model = build_model(olmoe_config(shape, token_settings(files.config)), options.seed)
    if not fits or init_from == "scratch":
        begun = _Begun(model, chat, partial(copy_tokenizer, files.folder))
        return _train_model("moe", begun, shape.positions, corpus, options, job_context)
    dense = load_target(files, torch.device("cpu"), "float32")
    take_over(model, dense.model)
    began = f"It began with the embedding, norms and attention of {files.name}; its experts with random weights."
    begun = _Begun(model, chat, partial(copy_tokenizer, files.folder), began, {"began as": dense.weights_sha256[:16]})
    return _train_model("moe", begun, shape.positions, corpus, options, job_context)


def _train_model(
    part: str,
    begun: _Begun,
    longest_row: int,
    corpus: Corpus,
    options: TrainOptions,
    job_context: JobContext,
) -> Result | None:
    model, chat, stages = begun.model, begun.chat, fitting(STAGES, longest_row)
    data = corpus_data(corpus, chat, stages, options.seed, 0 if options.answers_only else PROMPT_WEIGHT)
    mixture, shape = part == "moe", model_shape(model.config)
    objective = MixtureLoss(data.token_bytes, BALANCE) if mixture else LanguageModel(data.token_bytes)
    facts = {**data_facts(corpus, chat), **begun.facts, "shape": shape}
    facts |= {"prompts": "count for nothing"} if options.answers_only else {}

    def begin() -> None:
        save_config(model, options.out)
        begun.write_tokenizer(options.out)

    run = train(model, objective, data, stages, options, job_context, facts, begin, partial(round_as_saved, model))
    if not job_context.world.leads:
        return None
    with writing(options.out / CHECKPOINTS, "the model"):
        save_model(model, options.out)
    model.eval()  # type: ignore[no-untyped-call]
    experts = {"experts": _loads(model, data)} if mixture else {}
    result = Result(
        part=part,
        parameters=parameter_count(model),
        shape=shape,
        purpose=PURPOSE,
        method=_method(begun, corpus, options),
        use="benchctl run --model {folder}",
        held_out={**run.measured, **experts},
        samples=_greedy_samples(model, chat, find_target(str(options.out)).tokenizer.stop_ids),
    )
    write_result(options.out, result, run, corpus, "", job_context.provenance)
    return result


def _greedy_samples(model: PreTrainedModel, chat: ChatFormat, stop_ids: frozenset[int]) -> dict[str, str]:
    """The model's greedy answers to a few fixed prompts; it is in eval mode."""
    heads = chat.heads([(Message("user", prompt),) for prompt in SAMPLE_PROMPTS])
    answers = answer(model, [head.tolist() for head in heads], stop_ids, Answering(SAMPLE_TOKENS))
    return {prompt: chat.text_of(ids) for prompt, ids in zip(SAMPLE_PROMPTS, answers, strict=True)}


def _method(begun: _Begun, corpus: Corpus, options: TrainOptions) -> str:
    """How it was trained, in words for a card."""
    weighed = "; late stages weigh sources again" if corpus.recipe else ""
    counted = " Only answers counted in the loss." if options.answers_only else ""
    return METHOD.format(began=begun.began, weighed=weighed, counted=counted)


def _check_run(
    chat: ChatFormat, longest_row: int, corpus: Corpus, options: TrainOptions, job_context: JobContext
) -> None:
    check_run(options, fitting(STAGES, longest_row), data_facts(corpus, chat), job_context)


def _going_on(files: TargetFiles, corpus: Corpus, options: TrainOptions, job_context: JobContext) -> _Begun:
    """The model of `files`, to be trained further with its own tokenizer."""
    chat = chat_of(files)
    _check_run(chat, seen_tokens(files), corpus, options, job_context)
    found = load_target(files, torch.device("cpu"), "float32")
    facts = {"began as": found.weights_sha256[:16]}
    began = trained_before(f"It began as {files.name}", files.folder)
    write_tokenizer = partial(copy_tokenizer, files.folder)
    return _Begun(found.model.requires_grad_(True), chat, write_tokenizer, began, facts)


def _loads(model: PreTrainedModel, data: Data) -> HeldOut:
    return expert_load_metrics(expert_loads(model, [batch for batches in data.held_out.values() for batch in batches]))


def _tokenizer(options: TrainOptions, corpus: Corpus, vocabulary: int) -> Tokenizer:
    """That of the run to be resumed, else a new one; the same in every process."""
    if options.resume and checkpoints(options.out / CHECKPOINTS):
        return read_tokenizer(options.out)
    return tokenizer_for(corpus, vocabulary)
