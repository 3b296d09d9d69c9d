"""The job that trains the modules of any method that is a decoding.trainable.Trainable, and its memory by formula."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

from benchctl import bundled
from benchctl.decoding.method import Method
from benchctl.decoding.model.families import check_family
from benchctl.decoding.model.target import DTYPES, TargetInfo
from benchctl.decoding.model.tokenizer import from_pretrained
from benchctl.decoding.modules.trainable import (
    MadeFor,
    SecondStage,
    Tally,
    Trainable,
    TrainingBatch,
    check_modules,
    go_on_from_modules,
    modules_sha256,
    read_facts,
    save_modules,
)
from benchctl.errors import UserError
from benchctl.registry import Label, build, method_class, method_names, method_options, parse_label
from benchctl.training.checkpoint import writing
from benchctl.training.jobs import CHECKPOINTS, JobContext, check, train
from benchctl.training.models import parameter_count
from benchctl.training.modules.frozen import (
    FrozenTarget,
    ModuleObjective,
    batch_maker,
    chat_of,
    check_method,
    check_rows,
    find_target,
)
from benchctl.training.modules.objective import HeldOut
from benchctl.training.modules.training_text import TrainingText, readable, stage_of
from benchctl.training.optim import Stage, is_matrix
from benchctl.training.record import Result, write_result
from benchctl.training.train_options import Learning, TeacherOptions

BATCH_TOKENS = 8192


def trainable(label: Label) -> Trainable:
    """The method that a label asks for. Raises UserError, listing what can be trained, where it has no modules."""
    if label.name not in method_names() or not issubclass(method_class(label.name), Trainable):
        names = ("draft", *trainable_names())
        raise UserError(
            "nothing_to_train", f"'{label.name}' has nothing to train; what can be trained: {', '.join(names)}."
        )
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
    return [name for name in method_names() if issubclass(method_class(name), Trainable)]


def train_modules(options: TeacherOptions, label_text: str, job_context: JobContext) -> Result | None:
    """Trains the modules of a method for `options.model` and writes them; None in all but the first process.

    Where the method's options ask for a second stage, it goes on from the folder that they name, and what was trained
    before is written again as it was.
    """
    method = trainable(parse_label(label_text))
    assert isinstance(method, Method)  # as all that the registry builds
    label = _without_modules(parse_label(label_text))
    _check_first_stage(method, label)
    options = options.with_defaults(_learning(method))
    check(options, job_context, options.model, method.modules)
    files = find_target(options.model, method_class(label.name).supports_encoder_decoder)
    check_method(method, label, files)
    check_rows(files, options.row_tokens)
    chat = chat_of(files)
    corpus = readable(job_context.read_corpus(options.data), files, job_context)
    text = TrainingText(files, chat, corpus, options, job_context)
    target, facts = text.load_target({"method": label.text} | _first_stage_fact(method))
    torch.manual_seed(options.seed)
    module = method.build(target.info, target.lm_head)
    if _second_stage(method):
        go_on_from_modules(module, method, label.name, target.info, target.weights_sha256)
    objective = ModuleObjective(method, batch_maker(target.model, target.device))
    data = text.data(target)
    run = train(module, objective, data, (stage_of(options),), options, job_context, facts)
    if not job_context.world.leads:
        return None
    held_out = (objective.training_batch_of(batch) for batches in data.held_out.values() for batch in batches)
    _save(module, method, label, target, run.held_out.values(), held_out, options)
    result = Result(
        part=label.text,
        parameters=parameter_count(module),
        shape=f"Modules of {label.text} for {files.name} (weights {target.weights_sha256[:8]}).",
        purpose=f"They serve the method {label.name} on {files.name}, and on no other target.",
        method=f"{files.name} itself stood still{_what_else(method)}. It read {text.described}.",
        use=f"benchctl run --model {{model}} --method '{_with_modules(label)}'",
        held_out=run.held_out,
        tokens="decoder tokens" if target.info.is_encoder_decoder else "tokens",
    )
    write_result(options.out, result, run, corpus, files.name, job_context.provenance)
    return result


def _second_stage(method: Trainable) -> SecondStage | None:
    """That which is to be trained, from modules that are there and then stand still; None where it is the first."""
    stage = method.second_stage
    return stage if stage is not None and stage.needed else None


def _check_first_stage(method: Trainable, label: Label) -> None:
    """Raises UserError where there is nothing that a second stage could go on from."""
    if not _second_stage(method):
        return
    owner = method.modules_name(label.name)
    if not method.modules:
        wanted = Label(label.name, (*label.options, ("modules", "FOLDER")))
        raise UserError(
            "modules_missing",
            f"{label.text} is trained on top of other modules; train those first: benchctl train {owner} "
            f"--model MODEL --out FOLDER, then: benchctl train '{wanted.text}' --model MODEL --out NEW",
        )
    check_modules(owner, method.modules)


def _first_stage_fact(method: Trainable) -> dict[str, str]:
    """Which modules a second stage goes on from: a resumed one must go on from the same."""
    return {"modules": modules_sha256(method.modules)[:16]} if _second_stage(method) else {}


def _what_else(method: Trainable) -> str:
    """What else was not trained, in words for a card."""
    stage = _second_stage(method)
    if stage is None:
        return ""
    return f", and so did modules of it ({modules_sha256(method.modules)[:8]}): only the {stage.part} learnt"


def _without_modules(label: Label) -> Label:
    """The label without the place of modules on this machine."""
    return Label(label.name, tuple(option for option in label.options if option[0] != "modules"))


def _learning(method: Trainable) -> Learning:
    stage = _second_stage(method)
    how = stage.training if stage else method.training
    return Learning("adamw", how.rate, how.rate, how.schedule, how.warmup, BATCH_TOKENS, how.epochs)


def _save(
    module: nn.Module,
    method: Trainable,
    label: Label,
    target: FrozenTarget,
    measured: Iterable[HeldOut],
    held_out: Iterable[TrainingBatch],
    options: TeacherOptions,
) -> None:
    info, chosen = target.info, [option.name for option in method_options(label.name) if option.name != "modules"]
    made_for = MadeFor(target.files.name, target.weights_sha256, info.layers, info.hidden_size, info.vocabulary)
    facts = {
        "method": method.modules_name(label.name),
        "options": {name: getattr(method, name) for name in chosen},
        "target": asdict(made_for),
        "yardsticks": {**_earlier_yardsticks(method), **_shares(measured)},
        "findings": dict(_findings(module, method, held_out)),
    }
    with writing(options.out / CHECKPOINTS, "the modules"):
        save_modules(options.out, module, facts)


def _earlier_yardsticks(method: Trainable) -> Mapping[str, float]:
    """What was measured of the modules that a second stage goes on from: they are as they were."""
    return read_facts(method.modules).yardsticks if _second_stage(method) else {}


@torch.no_grad()
def _findings(module: nn.Module, method: Trainable, held_out: Iterable[TrainingBatch]) -> Mapping[str, Any]:
    """What the method finds with its trained modules in held-out text."""
    return method.findings(module.eval(), held_out)


def _shares(held_out: Iterable[HeldOut]) -> dict[str, float]:
    """The method's own yardsticks over all held-out sets."""
    total: dict[str, Tally] = {}
    for measured in held_out:
        for name, tally in measured.items():
            total[name] = total[name] + tally if name in total else tally
    total.pop("loss", None)
    return {name: tally.share for name, tally in total.items()}


def _with_modules(label: Label) -> str:
    """The label that runs what was trained, with {folder} where the folder's name goes."""
    return Label(label.name, (("modules", "{folder}"), *label.options)).text


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
    a matrix). With n tokens a pass, L layers of width d and vocabulary V: (L + 1) n d values of residuals, and 3 n V of
    logits for each head or exit, of which one is counted. Raises UserError for a method without modules and for a
    model of an unknown family.
    """
    config = from_pretrained(AutoConfig, bundled.resolve(options.model))
    check_family(config)
    info = TargetInfo.of(config)
    kind = AutoModelForSeq2SeqLM if info.is_encoder_decoder else AutoModelForCausalLM
    with torch.device("meta"):  # shapes without memory
        target = kind.from_config(config)  # type: ignore[no-untyped-call]
        lm_head = torch.empty(info.vocabulary, info.hidden_size)
        module = trainable(parse_label(label)).build(info, lm_head)
    size = DTYPES["bfloat16" if options.dtype == "auto" else options.dtype].itemsize
    trained = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
    gradients = sum(parameter.numel() for _, parameter in trained) * WIDE
    single = sum(p.numel() for name, p in trained if options.optimizer == "muon" and is_matrix(name, p)) * WIDE
    tokens = options.micro_rows * options.row_tokens
    passes = Stage(1.0, options.row_tokens, options.micro_rows).micro_batches(options.batch_tokens or BATCH_TOKENS)
    memory_bytes = {
        "target": _parameters(target) * size,
        "modules": _parameters(module) * WIDE,
        "gradients": gradients,
        "optimizer": 2 * gradients - single,
        "residuals": (info.layers + 1) * tokens * info.hidden_size * size,
        "logits": LOGIT_COPIES * tokens * info.vocabulary * WIDE,
    }
    return Estimate(_parameters(target), _parameters(module), memory_bytes, passes * tokens)


def _parameters(module: nn.Module) -> int:
    """Parameters, tied ones once."""
    return sum(parameter.numel() for parameter in module.parameters())
