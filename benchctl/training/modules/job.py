"""The job that trains the modules of any method that is a decoding.trainable.Trainable, and its memory by formula."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig

from benchctl import bundled
from benchctl.decoding.method import Method, why_unsupported
from benchctl.decoding.model.families import check_family
from benchctl.decoding.model.loading import DTYPES
from benchctl.decoding.model.target import outline
from benchctl.decoding.model.tokenizer import from_pretrained
from benchctl.decoding.modules.draft_vocabulary import (
    DraftVocabulary,
    UsesDraftVocabulary,
    read_draft_vocabulary,
    write_draft_vocabulary,
)
from benchctl.decoding.modules.folders import (
    MadeFor,
    check_modules,
    modules_sha256,
    read_facts,
    save_modules,
    take_weights,
)
from benchctl.decoding.modules.trainable import ROWS_AT_ONCE, SecondStage, Tally, Trainable
from benchctl.errors import UserError
from benchctl.registry import METHODS, Label, build, method_class, method_options, names, parse_label
from benchctl.training.checkpoint import writing
from benchctl.training.jobs import CHECKPOINTS, JobContext, check, target_dtype, train
from benchctl.training.models import parameter_count
from benchctl.training.modules.frozen import (
    FrozenTarget,
    ModuleObjective,
    check_method,
    find_target,
)
from benchctl.training.modules.objective import HeldOut
from benchctl.training.modules.training_text import draft_size, draft_text, draft_tokens, stage_of, training_text
from benchctl.training.optim import Stage, is_matrix
from benchctl.training.record import Result, trained_before, write_result
from benchctl.training.train_options import Learning, ModuleOptions, TeacherOptions
from benchctl.training.trainer import Data

BATCH_TOKENS = 8192


def trainable(label: Label) -> Trainable:
    """The method that a label asks for. Raises UserError, listing what can be trained, where it has no modules."""
    if label.name not in trainable_names():
        known = ", ".join(("draft", *trainable_names()))
        raise UserError("nothing_to_train", f"'{label.name}' has nothing to train; what can be trained: {known}.")
    method = build(label.text)
    assert isinstance(method, Trainable)
    if method.modules and not _second_stage(method):
        raise UserError(
            "modules_are_trained", f"{label.text}: leave out modules; what is trained goes to the folder --out"
        )
    if not method.needs_modules:
        raise UserError(
            "nothing_to_train", f"{label.text} works without modules, so there is nothing to train; give other options"
        )
    return method


def trainable_names() -> list[str]:
    """Every method with modules."""
    return [name for name in names(METHODS) if issubclass(method_class(name), Trainable)]


def train_modules(options: ModuleOptions, label_text: str, job_context: JobContext) -> Result | None:
    """Trains the modules of a method for `options.model` and writes them; None in all but the first process.

    Where the method's options ask for a second stage, it goes on from the folder that they name, and what was trained
    before is written again as it was.
    """
    method = trainable(parse_label(label_text))
    assert isinstance(method, Method)  # as all that the registry builds
    asked, stage = parse_label(label_text), _second_stage(method)
    label = Label(asked.name, tuple(option for option in asked.options if option[0] != "modules"))
    if stage:
        _check_first_stage(method, label)
    how = stage.training if stage else method.training
    learning = Learning("adamw", how.rate, how.rate, how.schedule, how.warmup, BATCH_TOKENS, how.epochs)
    options = options.with_defaults(learning)
    check(options, job_context, options.model, method.modules)
    files = find_target(options.model, method_class(label.name).supports_encoder_decoder)
    check_method(method, label, files)
    text = training_text(files, options, job_context)
    earlier = modules_sha256(method.modules) if stage else ""
    target, facts = text.load_target({"method": label.text} | ({"modules": earlier[:16]} if stage else {}))
    data = text.data(target)
    maker, ids = text.batch_maker(target, data), _draft_vocabulary(method, target, options, data)
    if isinstance(method, UsesDraftVocabulary):
        method.vocabulary = DraftVocabulary(ids)
    torch.manual_seed(options.seed)
    info = target.info
    module = method.build(info, target.lm_head)
    if stage:
        take_weights(module, method, label.name, method.modules, (info, target.weights_sha256), whole=False)
    drawn = draft_size(options.draft_vocabulary, info.vocabulary) if _draws(method) else 0
    objective = ModuleObjective(method, maker, drawn, info.vocabulary)
    facts |= maker.draft_over(ids) | ({"drawn tokens": str(drawn)} if drawn else {})
    finish = partial(_round, module, DTYPES[options.save_as])
    run = train(module, objective, data, (stage_of(options),), options, job_context, facts, finish=finish)
    if not job_context.world.leads:
        return None
    with torch.no_grad():
        held_out = (objective.training_batch_of(batch) for batches in data.held_out.values() for batch in batches)
        findings = dict(method.findings(module.eval(), held_out))
    with writing(options.out / CHECKPOINTS, "the modules"):
        kept = read_draft_vocabulary(method.modules) if stage else ids  # other methods may draft with the same modules
        if kept is not None:
            write_draft_vocabulary(options.out, kept)
        save_modules(
            options.out,
            module.to(DTYPES[options.save_as]),
            _facts(method, label, target, run.measured.values()) | {"findings": findings},
        )
    only = before = ""
    if stage:
        only = f" Its modules ({earlier[:8]}) did not change either: only the {stage.part} was trained."
        before = f" {trained_before('It went on from modules', Path(method.modules))}"
    trained = Label(label.name, (("modules", "{folder}"), *label.options))
    result = Result(
        part=label.text,
        parameters=parameter_count(module),
        shape=f"Modules of {label.text} for {files.name} (weights {target.weights_sha256[:8]}).",
        purpose=f"They serve the method {label.name} on {files.name}, and on no other target.",
        method=f"The weights of {files.name} did not change.{only} Training text: {text.described}."
        f"{draft_text(ids, drawn)}{before}",
        use=f"benchctl run --model {{model}} --method '{trained.text}'",
        held_out=run.measured,
        tokens="decoder tokens" if target.info.is_encoder_decoder else "tokens",
    )
    write_result(options.out, result, run, text.corpus, files.name, job_context.provenance)
    return result


def _round(module: nn.Module, dtype: torch.dtype) -> None:
    """To what ``dtype`` can hold, in float32. Raises UserError for a weight that it cannot hold."""
    module.to(dtype).float()
    if not all(bool(weight.isfinite().all()) for weight in module.state_dict().values()):
        raise UserError(
            "weights_overflow", "a trained weight is beyond the range of float16; add --resume and leave out --save-as"
        )


def _draft_vocabulary(method: Trainable, target: FrozenTarget, options: TeacherOptions, data: Data) -> Tensor | None:
    """The ids that the trained part scores when it drafts; those of its modules where it is a second stage.

    None for the whole vocabulary, also where the method's answers come from the part itself. Raises UserError for a
    size that would be ignored.
    """
    drafts, stage = scores_draft_vocabulary(method), _second_stage(method)
    if options.draft_vocabulary and (stage or not (drafts or _draws(method))):
        reason = "it takes that of its modules" if drafts else "its loss is over the whole vocabulary"
        raise UserError("no_draft_vocabulary", f"Leave out --draft-vocabulary: {reason}.")
    if not drafts:
        return None
    return (
        read_draft_vocabulary(method.modules)
        if stage
        else draft_tokens(options.draft_vocabulary, target.info.vocabulary, data)
    )


def scores_draft_vocabulary(method: Trainable) -> bool:
    """Whether the method, with these options, only drafts tokens that the target verifies."""
    return isinstance(method, UsesDraftVocabulary) and getattr(method, "mode", "draft") == "draft"


def _draws(method: Trainable) -> bool:
    """Whether each pass of its training may draw the tokens that it compares."""
    return method.draws_tokens and not scores_draft_vocabulary(method) and _second_stage(method) is None


def _second_stage(method: Trainable) -> SecondStage | None:
    """That which is to be trained, from modules that are there and then stand still; None where it is the first."""
    stage = method.second_stage
    return stage if stage is not None and stage.needed else None


def _check_first_stage(method: Trainable, label: Label) -> None:
    """Raises UserError where there is nothing that a second stage could go on from."""
    owner, stage = method.modules_name(label.name), method.second_stage
    if not method.modules:
        wanted = Label(label.name, (*label.options, ("modules", "FOLDER")))
        first = stage.first if stage and stage.first else owner
        raise UserError(
            "modules_missing",
            f"{label.text} is trained on top of other modules; train those first: benchctl train '{first}' "
            f"--model MODEL --out FOLDER, then: benchctl train '{wanted.text}' --model MODEL --out NEW",
        )
    check_modules(owner, method.modules)


def _facts(method: Trainable, label: Label, target: FrozenTarget, measured: Iterable[HeldOut]) -> dict[str, Any]:
    """What modules.json says; the yardsticks are over all held-out sets, with those of an earlier stage."""
    info, chosen = target.info, [option.name for option in method_options(label.name) if option.name != "modules"]
    made_for = MadeFor(target.files.name, target.weights_sha256, info.layers, info.hidden_size, info.vocabulary)
    total: dict[str, Tally] = {}
    for name, tally in (entry for held_out in measured for entry in held_out.items() if entry[0] != "loss"):
        total[name] = total.get(name, Tally(0, 0)) + tally
    earlier = read_facts(method.modules).yardsticks if _second_stage(method) else {}
    return {
        "method": method.modules_name(label.name),
        "options": {name: getattr(method, name) for name in chosen},
        "asked": dict(label.options),
        "target": asdict(made_for),
        "yardsticks": {**earlier, **{name: tally.share for name, tally in total.items() if tally.of}},
    }


WIDE = 4  # bytes of a float32, in which modules, their gradients and their moments are kept
LOGIT_COPIES = 3  # of each pass in float32: the logits, their log-softmax, their gradient


@dataclass(frozen=True)
class Estimate:
    """Parameters, bytes by what they hold, and tokens of one optimiser step. Activations are those of one pass."""

    target_parameters: int
    module_parameters: int
    memory_bytes: dict[str, int]
    step_tokens: int


def estimate(options: TeacherOptions, label: str) -> Estimate:
    """What `train_modules` with these options holds in memory.

    With P trained parameters in float32: weights 4 P, gradients 4 P, moments 8 P (AdamW; Muon keeps 4 for each value of
    a matrix). With n tokens a pass, L layers of width d, and k tokens that are scored: (L + 1) n d values of residuals,
    and 3 n k of logits for each LM head that is trained. The target's own head scores ROWS_AT_ONCE tokens at a time.
    Raises UserError for a method without modules and for a model of an unknown family.
    """
    config = from_pretrained(AutoConfig, bundled.resolve(options.model))
    check_family(config)
    target, method = outline(config), trainable(parse_label(label))
    info = target.info
    assert isinstance(method, Method)
    if problem := why_unsupported(method, info):
        raise UserError("cannot_be_trained", f"{label} cannot be trained for this target: {problem}")
    if isinstance(method, UsesDraftVocabulary) and (count := draft_size(options.draft_vocabulary, info.vocabulary)):
        method.vocabulary = DraftVocabulary(torch.arange(count))
    module = method.build(info, target.lm_head.weight)
    size = DTYPES[target_dtype(options)].itemsize
    trained = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
    gradients = sum(parameter.numel() for _, parameter in trained) * WIDE
    single = sum(p.numel() for name, p in trained if options.optimizer == "muon" and is_matrix(name, p)) * WIDE
    tokens = options.micro_rows * options.row_tokens
    passes = Stage(1.0, options.row_tokens, options.micro_rows).micro_batches(options.batch_tokens or BATCH_TOKENS)
    drafted = draft_size(options.draft_vocabulary, info.vocabulary) if scores_draft_vocabulary(method) else 0
    scored, lm_heads = drafted or info.vocabulary, sum(p.shape[0] == info.vocabulary for p in module.parameters())
    memory_bytes = {
        "target": target.parameters * size,
        "modules": parameter_count(module) * WIDE,
        "gradients": gradients,
        "optimizer": 2 * gradients - single,
        "residuals": (info.layers + 1) * tokens * info.hidden_size * size,
        "logits": LOGIT_COPIES * (lm_heads * tokens or ROWS_AT_ONCE) * scored * WIDE,
    }
    return Estimate(target.parameters, parameter_count(module), memory_bytes, passes * tokens)
