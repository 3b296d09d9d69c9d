"""The job that trains a draft model: distilled from a target on its own answers, usually from its own layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from benchctl.decoding.model.families import context_tokens
from benchctl.decoding.modules.draft_vocabulary import write_draft_vocabulary
from benchctl.decoding.modules.exits import read_exits
from benchctl.decoding.modules.trainable import Tally
from benchctl.errors import UserError
from benchctl.training.checkpoint import writing
from benchctl.training.data.packing import Document
from benchctl.training.jobs import CHECKPOINTS, JobContext, check, train
from benchctl.training.models import (
    build_from_target,
    build_model,
    copy_tokenizer,
    llama_config,
    parameter_count,
    round_as_saved,
    save_config,
    save_model,
    token_settings,
)
from benchctl.training.modules.frozen import FrozenTarget, TargetFiles, find_target, load_target
from benchctl.training.modules.objective import Distillation
from benchctl.training.modules.training_text import draft_text, draft_tokens, stage_of, training_text
from benchctl.training.record import Result, model_shape, trained_before, write_result
from benchctl.training.train_options import (
    DRAFT_LAYERS,
    DRAFT_LEARNING,
    FROM_SCRATCH,
    FROM_TARGET,
    DraftOptions,
    DraftStart,
    ModelShape,
    check_shape,
)

DRAFTED = 4  # tokens a draft whose acceptance is recorded
PURPOSE = "It drafts tokens for the target that it was distilled from; on its own it writes poor text."


def train_draft(options: DraftOptions, start: DraftStart, job_context: JobContext) -> Result | None:
    """Distils a draft model for `options.model` and writes it as a model folder; None in all but the first process."""
    options = options.with_defaults(DRAFT_LEARNING)
    check(
        options, job_context, options.model, "" if start.init_from in (FROM_TARGET, FROM_SCRATCH) else start.init_from
    )
    files = find_target(options.model)
    check_start(start, files)
    text = training_text(files, options, job_context)
    start = _resolved(start, files.config)
    own = start.init_from in (FROM_TARGET, FROM_SCRATCH)
    layers = start.layers if own else find_target(start.init_from).config.num_hidden_layers
    exits = _exits(options.exits, int(layers or 0))
    target, facts = text.load_target({"start": str(start)} | ({"exits": options.exits} if options.exits else {}))
    draft, began = _begin(start, target, options.seed)
    if exits:
        draft.config.draft_exits = list(exits)  # two_model reads it
    facts["shape"] = model_shape(draft.config)
    data, unseen = text.data(target), text.greedy(target)

    def begin() -> None:
        save_config(draft, options.out)
        copy_tokenizer(files.folder, options.out)

    maker, ids = text.batch_maker(target, data), draft_tokens(options.draft_vocabulary, target.info.vocabulary, data)
    facts |= maker.draft_over(ids)
    if ids is not None and start.init_from == FROM_TARGET:
        # Most rows of a large head are never scored, and most embeddings hardly read: they stay the target's.
        untyped: Any = draft
        for part in (untyped.get_input_embeddings(), untyped.get_output_embeddings()):
            part.requires_grad_(False)
        began = f"{began} Its embedding and head were not trained."
    objective = Distillation(maker, data.token_bytes, exits)
    run = train(
        draft, objective, data, (stage_of(options),), options, job_context, facts, begin, partial(round_as_saved, draft)
    )
    if not job_context.world.leads:
        return None
    with writing(options.out / CHECKPOINTS, "the draft model"):
        save_model(draft, options.out)
        if ids is not None:
            write_draft_vocabulary(options.out, ids)
    draft.eval()  # type: ignore[no-untyped-call]
    drafted = {f"{name}, drafting": drafting(draft, documents, ids) for name, documents in unseen.items()}
    result = Result(
        part="draft",
        parameters=parameter_count(draft),
        shape=model_shape(draft.config),
        purpose=PURPOSE,
        method=f"{began} The loss is the divergence from the target's distribution on {text.described}."
        f"{draft_text(ids)}{_exits_text(exits)}",
        use=f"benchctl run --method {_label(exits)} --model {{model}} --draft-model {{folder}}",
        held_out={**run.measured, **drafted},
    )
    write_result(options.out, result, run, text.corpus, files.name, job_context.provenance)
    return result


def check_start(start: DraftStart, files: TargetFiles) -> None:
    """Raises UserError for a start that this target does not allow."""
    config = files.config
    if start.init_from == FROM_TARGET and not _fits(start, config):
        raise UserError(
            "shapes_do_not_fit",
            f"the draft model cannot begin with layers of {files.name}, which are {config.hidden_size} wide with "
            f"{config.num_attention_heads} heads, {config.num_key_value_heads} key/value heads and an MLP of "
            f"{config.intermediate_size}; leave out the sizes or give --init-from {FROM_SCRATCH}",
        )
    if start.init_from in ("", FROM_TARGET, FROM_SCRATCH):
        resolved = _resolved(start, config)
        if resolved.init_from == FROM_SCRATCH:
            check_shape(_shape(resolved, config))
        elif (start.layers or 0) > config.num_hidden_layers:
            raise UserError(
                "too_many_layers", f"{files.name} has {config.num_hidden_layers} layers; give fewer --layers"
            )
        return
    other = find_target(start.init_from)
    if other.config.vocab_size != config.vocab_size or not other.tokenizer.same_vocabulary(files.tokenizer):
        raise UserError(
            "other_vocabulary",
            f"{start.init_from} has another vocabulary than {files.name}, so it cannot draft for it; give --init-from "
            f"a model of the same tokenizer, or {FROM_SCRATCH}",
        )
    if any((start.layers, start.hidden, start.heads, start.kv_heads, start.mlp)):
        raise UserError("shape_is_given", f"{start.init_from} has sizes of its own; leave out --layers and the like")


def _exits(text: str, layers: int) -> tuple[int, ...]:
    """The exits of a draft model of so many layers. Raises UserError for text that is no list, or has other layers."""
    try:
        exits = read_exits(text)
    except ValueError as error:
        raise UserError("bad_exits", f"--{error}") from error
    if exits and exits[-1] >= layers:
        message = f"--exits has layer {exits[-1]}, which is not below the {layers} layers of the draft model"
        raise UserError("bad_exits", f"{message}; give lower exits or more --layers")
    return exits


def _exits_text(exits: Sequence[int]) -> str:
    return (
        f" The losses of its exits after layers {', '.join(map(str, exits))} are added; they use the same head."
        if exits
        else ""
    )


def _label(exits: Sequence[int]) -> str:
    return f"'two_model[draft_exits={'+'.join(map(str, exits))}]'" if exits else "two_model"


def kept_layers(layers: int, of: int) -> list[int]:
    """The target's layers that a draft model begins with: the first ones and the last; 3 of 12 are 0, 1 and 11.

    Measured on an earlier target of 12 layers, after 60 steps on its own text: layers 0 and 11 agree with it on 48 % of
    the tokens, layers 0 and 1 on 42 %.
    """
    return [*range(layers - 1), of - 1]


def _resolved(start: DraftStart, config: Any) -> DraftStart:
    """With nothing left open, for a target of this configuration."""
    return DraftStart(
        start.init_from or (FROM_TARGET if _fits(start, config) else FROM_SCRATCH),
        start.layers or min(DRAFT_LAYERS, config.num_hidden_layers),
        start.hidden or config.hidden_size,
        start.heads or config.num_attention_heads,
        start.kv_heads or config.num_key_value_heads,
        start.mlp or config.intermediate_size,
    )


def _fits(start: DraftStart, config: Any) -> bool:
    """Whether layers of the target have the sizes asked for."""
    asked = (start.hidden, start.heads, start.kv_heads, start.mlp)
    own = (config.hidden_size, config.num_attention_heads, config.num_key_value_heads, config.intermediate_size)
    return all(size in (None, wanted) for size, wanted in zip(asked, own, strict=True))


def _shape(start: DraftStart, config: Any) -> ModelShape:
    """The sizes of a draft model with fresh weights; nothing in `start` is open."""
    return ModelShape(*[*astuple(start)[1:], context_tokens(config)])


def _begin(start: DraftStart, target: FrozenTarget, seed: int) -> tuple[PreTrainedModel, str]:
    """The draft model before training, in float32, and how it begins in words."""
    if start.init_from == FROM_TARGET:
        assert start.layers
        of_target = f"{start.layers} layers of {target.files.name}, the first ones and the last"
        draft = build_from_target(target.model, kept_layers(start.layers, target.info.layers))
        return draft, f"It began with {of_target}, and with its embedding, norm and head."
    if start.init_from == FROM_SCRATCH:
        config = target.files.config
        fresh = llama_config(_shape(start, config), token_settings(config))
        return build_model(fresh, seed), "It began with random weights."
    other = find_target(start.init_from)
    draft = load_target(other, target.device, "float32").model.requires_grad_(True)
    return draft, trained_before(f"It began as {other.name}", other.folder)


def drafting(draft: PreTrainedModel, documents: Sequence[Document], ids: Tensor | None = None) -> dict[str, Tally]:
    """Agreement of the two models token by token, and accepted of drafted tokens, where the target answered greedily.

    A draft is right as long as it repeats the target's text, so one pass over that text gives the result of drafting
    step by step. The first token comes from the prefill and is not drafted.
    """
    agreement = acceptance = Tally(0, 0)
    for document in documents:
        agreed = _agreed(draft, document, ids)
        agreement += Tally(sum(agreed), len(agreed))
        acceptance += accepted(agreed[1:], DRAFTED)
    return {"greedy_agreement": agreement, f"acceptance_{DRAFTED}": acceptance}


def accepted(agreed: Sequence[bool], draft_tokens: int) -> Tally:
    """Tokens accepted of those drafted, when drafts of `draft_tokens` are verified one after the other.

    Agreement yes yes no yes yes with drafts of 2: the first draft is accepted whole and the target adds the third
    token; the second draft is accepted whole too, so 4 of 4. With drafts of 3: 2 of 3, then 2 of 2, so 4 of 5.
    """
    right, of, place = 0, 0, 0
    while place < len(agreed):
        draft = agreed[place : place + draft_tokens]
        kept = next((index for index, good in enumerate(draft) if not good), len(draft))
        right, of, place = right + kept, of + len(draft), place + kept + 1
    return Tally(right, of)


@torch.inference_mode()
def _agreed(draft: PreTrainedModel, document: Document, ids: Tensor | None) -> list[bool]:
    """Whether the draft model's first choice, of `ids` or all tokens, is the next one of the answer, token by token."""
    (turn,) = document.turns
    tokens = torch.from_numpy(np.concatenate([turn.head, turn.answer]).astype(np.int64)).to(draft.device)
    logits: Tensor = draft(input_ids=tokens[None], use_cache=False).logits[0]
    first = len(turn.head)
    answered = logits[first - 1 : -1]
    scored = None if ids is None else ids.to(logits.device)
    picks = answered.argmax(-1) if scored is None else scored[answered[:, scored].argmax(-1)]
    agreed: list[bool] = (picks == tokens[first:]).tolist()
    return agreed
