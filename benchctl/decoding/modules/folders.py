"""Folders of trained modules: weights, and a file of facts about them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from benchctl.decoding.model.target import DRAFT_VOCABULARY, Target, TargetInfo
from benchctl.decoding.modules.others import CONFIG, EAGLE_WEIGHTS, MEDUSA_WEIGHTS, modules_folder, weights_file
from benchctl.decoding.modules.trainable import Trainable
from benchctl.errors import UserError

WEIGHTS = "modules.safetensors"
FACTS = "modules.json"
SLACK = 1e-6  # a mean of cosines in float32 may end a little beyond 1


@dataclass(frozen=True)
class MadeFor:
    """The target that modules were trained for; ``weights_sha256`` is the hash of its files."""

    name: str
    weights_sha256: str
    layers: int
    hidden_size: int
    vocabulary: int


@dataclass(frozen=True)
class ModuleFacts:
    """What modules.json says.

    options     of the method when its modules were trained
    asked       those of them that the label of the training gave; empty for modules of version 0.1
    yardsticks  shares by name, measured on held-out text when training ended; empty where none were measured
    findings    see Trainable.findings
    """

    method: str
    options: Mapping[str, str | int | float | bool | None]
    target: MadeFor
    yardsticks: Mapping[str, float]
    findings: Mapping[str, Any]
    asked: Mapping[str, str] = field(default_factory=dict)


def no_modules(name: str) -> str:
    train = f"benchctl train {name} --model MODEL --out FOLDER"
    return f"no trained modules; train some with: {train}, then name them: {name}[modules=FOLDER]"


def save_modules(folder: Path, module: nn.Module, facts: Mapping[str, Any]) -> None:
    """Write the weights of ``module`` and ``facts``: method, options, target (as MadeFor), yardsticks, and any others.

    The facts are written last, so a folder without them was not finished.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FACTS).unlink(missing_ok=True)
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in module.state_dict().items()}
    save_file(weights, folder / WEIGHTS)
    partial = folder / f"{FACTS}.partial"
    partial.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    partial.replace(folder / FACTS)


def check_modules(name: str, folder: str) -> ModuleFacts:
    """The facts of modules of the method ``name``; UserError for unreadable ones, and those of another method."""
    facts = read_facts(folder)
    if facts.method != name:
        message = f"{folder}: holds modules of {facts.method}, not of {name}; name those of {name}"
        raise UserError("modules_of_other_method", message)
    return facts


def trained_options(method: Trainable, name: str, folder: str) -> Mapping[str, Any]:
    """The options that the modules in ``folder`` were trained with, ours or published ones, without loading a model.

    Raises UserError as check_modules does, for no folder, and for modules that cannot serve the method's options.
    """
    if not folder:
        raise UserError("modules_missing", f"{name} cannot run: {no_modules(name)}")
    published = method.published(folder)
    options = check_modules(method.modules_name(name), folder).options if published is None else published
    method.refuse(folder, options)
    return options


def check_sizes(method: Trainable, info: TargetInfo) -> None:
    """Raises UserError where ``method`` names modules for a target of other sizes than these."""
    if not method.modules or method.published(method.modules) is not None:
        return
    made = read_facts(method.modules).target
    if (made.layers, made.hidden_size, made.vocabulary) != (info.layers, info.hidden_size, info.vocabulary):
        raise _of_other_target(method.modules, made, info)


def read_facts(folder: str) -> ModuleFacts:
    """What modules.json in ``folder`` says. Raises UserError where it is missing or cannot be read."""
    facts_file = Path(folder) / FACTS
    if not (facts_file.is_file() and (Path(folder) / WEIGHTS).is_file()):
        lack = f"holds no {FACTS} with its {WEIGHTS}" if Path(folder).is_dir() else "no such folder"
        raise UserError("no_modules_folder", f"{folder}: {lack}; name the folder that benchctl train wrote")
    try:
        facts = json.loads(facts_file.read_text(encoding="utf-8"))
        target = MadeFor(**{name: facts["target"][name] for name in MadeFor.__dataclass_fields__})
        measured, findings = shares(facts.get("yardsticks", {})), dict(facts.get("findings", {}))
        asked = dict(facts.get("asked", {}))
        return ModuleFacts(facts["method"], dict(facts["options"]), target, measured, findings, asked)
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"{facts_file}: cannot be read ({error!r}); train the modules again"
        raise UserError("file_not_readable", reason) from error


def shares(yardsticks: Mapping[str, Any]) -> dict[str, float]:
    """Yardsticks as they are kept. Raises ValueError or TypeError for anything but shares and cosines."""
    numbers = {name: float(share) for name, share in dict(yardsticks).items()}
    for name, number in numbers.items():
        if not abs(number) <= 1 + SLACK:
            raise ValueError(f"yardstick '{name}' is {number:g}; yardsticks lie between -1 and 1")
    return {name: min(1.0, max(-1.0, number)) for name, number in numbers.items()}


def modules_sha256(folder: str) -> str:
    """Hash of weights, facts, which may shape drafts too, and draft vocabulary.

    Of published modules, of the weights that are read and config.json. Raises UserError for a folder of neither.
    """
    digest, path = hashlib.sha256(), modules_folder(folder)
    files = [path / WEIGHTS, path / FACTS, *path.glob(DRAFT_VOCABULARY)]
    if not files[1].is_file():
        if (weights := weights_file(folder, (*MEDUSA_WEIGHTS, *EAGLE_WEIGHTS))) is None:
            message = f"{folder}: holds none of {', '.join((WEIGHTS, *MEDUSA_WEIGHTS, *EAGLE_WEIGHTS))}"
            raise UserError("no_modules_folder", f"{message}; name the folder of a method's modules")
        files = [weights, path / CONFIG]
    for file in files:
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def load_modules(method: Trainable, name: str, target: Target, folder: str) -> Any:
    """The ``method.build`` whose weights ``folder`` holds, for ``name``: in eval mode, where and as the target is.

    Raises UserError for an unreadable folder, and for modules of another method, target, or shape.
    """
    if not folder:
        raise UserError("modules_missing", f"{name} cannot run: {no_modules(name)}")
    with torch.random.fork_rng(devices=[]):
        module = method.build(target.info, target.lm_head.weight)
    stage = method.second_stage
    whole = stage is None or stage.needed
    take_weights(module, method, name, folder, (target.info, target.files_sha256), whole)
    return module.to(target.device, target.dtype).eval().requires_grad_(False)


def take_weights(
    module: nn.Module, method: Trainable, name: str, folder: str, target: tuple[TargetInfo, str], whole: bool
) -> None:
    """Give ``module`` the weights in ``folder``, made for a target with these facts and this hash of its files.

    Not ``whole``: all but those of the second stage. Raises UserError as load_modules does.
    """
    facts, (info, weights_sha256) = check_modules(method.modules_name(name), folder), target
    if facts.target.weights_sha256 != weights_sha256:
        raise _of_other_target(folder, facts.target, info, weights_sha256)
    try:
        weights = load_file(Path(folder) / WEIGHTS)
    except (OSError, SafetensorError) as error:
        reason = f"{folder}: {WEIGHTS} cannot be read ({error}); train the modules again"
        raise UserError("file_not_readable", reason) from error
    needed, stage = module.state_dict(), method.second_stage
    if stage is not None:
        of_stage = {part for part in (*weights, *needed) if part.startswith(f"{stage.part}.")}
        if whole and not of_stage & weights.keys():
            raise UserError(
                "modules_missing",
                f"{folder}: holds no {stage.part}; train one on top of it with: benchctl train "
                f"'{name}[{stage.options},modules={folder}]' --model MODEL --out NEW (and the label's other options); "
                "NEW will hold both",
            )
        for part in () if whole else of_stage:
            weights.pop(part, None)
            needed.pop(part, None)
    if {part: weight.shape for part, weight in weights.items()} != {part: own.shape for part, own in needed.items()}:
        # One of the options that differ from those of the training must be why.
        others = {key: value for key, value in facts.options.items() if getattr(method, key, value) != value}
        others.pop("modules", None)
        reason = f"train others with: benchctl train {name}"
        if others:
            reason = f"they were trained with {', '.join(f'{key}={value}' for key, value in others.items())}"
        raise UserError("shapes_do_not_fit", f"{folder}: these modules have other shapes than {name} needs; {reason}")
    for option in method.trained_for:
        made, asked = facts.options.get(option), getattr(method, option)
        if option in facts.options and made != asked:
            message = f"{folder}: trained with {option}={made}, not {asked}; give {option}={made}"
            raise UserError("trained_with_other_option", message)
    module.load_state_dict(weights, strict=False)


def _of_other_target(folder: str, made: MadeFor, info: TargetInfo, weights_sha256: str = "") -> UserError:
    theirs, ours = (f"{of.layers} layers of {of.hidden_size}, vocabulary {of.vocabulary}" for of in (made, info))
    if weights_sha256:
        theirs, ours = f"weights {made.weights_sha256[:8]}, {theirs}", f"weights {weights_sha256[:8]}, {ours}"
    return UserError(
        "modules_of_other_target",
        f"{folder}: made for {made.name} ({theirs}), but the target has {ours}; name modules trained for this target",
    )
