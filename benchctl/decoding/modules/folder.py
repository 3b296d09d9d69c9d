"""The trained modules of a method as a folder: modules.safetensors has the weights, modules.json what they are for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from benchctl.decoding.model.target import Target, TargetInfo
from benchctl.decoding.modules.trainable import Trainable
from benchctl.errors import UserError

WEIGHTS = "modules.safetensors"
FACTS = "modules.json"
SLACK = 1e-6  # a mean of cosines in float32 may end a little beyond 1


@dataclass(frozen=True)
class MadeFor:
    """The target that modules were trained for."""

    name: str
    weights_sha256: str
    layers: int
    hidden_size: int
    vocabulary: int


@dataclass(frozen=True)
class ModuleFacts:
    """What modules.json says.

    options     the options of the method when its modules were trained
    yardsticks  shares by name, measured on held-out text when training ended; empty where nobody measured
    findings    what else the method found there, by name: Trainable.findings
    """

    method: str
    options: Mapping[str, str | int | float | bool | None]
    target: MadeFor
    yardsticks: Mapping[str, float]
    findings: Mapping[str, Any]


def no_modules(name: str) -> str:
    """Why a method cannot run whose modules nobody named, and what to do about it."""
    return (
        f"no trained modules; train some with: benchctl train {name} --model MODEL --out FOLDER, "
        f"then name them: {name}[modules=FOLDER]"
    )


def save_modules(folder: Path, module: nn.Module, facts: Mapping[str, Any]) -> None:
    """Write the weights of ``module`` and ``facts``: method, options, target (as MadeFor), yardsticks, and any others.

    The facts are written last: a folder without them is one whose writing was interrupted.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FACTS).unlink(missing_ok=True)
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in module.state_dict().items()}
    save_file(weights, folder / WEIGHTS)
    partial = folder / f"{FACTS}.partial"
    partial.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    partial.replace(folder / FACTS)


def check_modules(name: str, folder: str) -> ModuleFacts:
    """The facts of modules of the method ``name``, without reading weights.

    Raises UserError where there is no folder, nothing readable in it, or the modules of another method.
    """
    facts = read_facts(folder)
    if facts.method != name:
        raise UserError(
            "modules_of_other_method", f"{folder}: holds modules of {facts.method}, not of {name}; name those of {name}"
        )
    return facts


def trained_options(method: Trainable, name: str, folder: str) -> Mapping[str, Any]:
    """The options that the modules in ``folder`` were trained with, ours or published ones, without loading a model.

    Raises UserError as check_modules does, where no folder was named, and where they cannot serve the method's options.
    """
    if not folder:
        raise UserError("modules_missing", f"{name} cannot run: {no_modules(name)}")
    published = method.published(folder)
    options = check_modules(method.modules_name(name), folder).options if published is None else published
    method.refuse(folder, options)
    return options


def check_sizes(method: Trainable, info: TargetInfo) -> None:
    """Raises UserError where the folder that ``method`` names holds modules for a target of other sizes than these.

    That is what can be told before weights are read; load_modules compares their hash. Published modules do not say
    what they are for.
    """
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
        return ModuleFacts(facts["method"], dict(facts["options"]), target, measured, findings)
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"{facts_file}: cannot be read ({error!r}); train the modules again"
        raise UserError("file_not_readable", reason) from error


def shares(yardsticks: Mapping[str, Any]) -> dict[str, float]:
    """Yardsticks as they are kept. Raises ValueError or TypeError for anything but shares and cosines: they would shape
    drafts."""
    numbers = {name: float(share) for name, share in dict(yardsticks).items()}
    for name, number in numbers.items():
        if not abs(number) <= 1 + SLACK:
            raise ValueError(f"yardstick '{name}' is {number:g}; yardsticks lie between -1 and 1")
    return {name: min(1.0, max(-1.0, number)) for name, number in numbers.items()}


def modules_sha256(folder: str) -> str:
    """Hash of the weights and of the facts, which may shape drafts too: it tells whether another run used the same.

    Of published modules, that of all files of weights and of their configuration.
    """
    digest, path = hashlib.sha256(), Path(folder)
    files = [path / WEIGHTS, path / FACTS]
    if not files[1].is_file():
        files = [
            *sorted(file for file in path.iterdir() if file.suffix in (".safetensors", ".pt")),
            path / "config.json",
        ]
    for file in files:
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def load_modules(method: Trainable, name: str, target: Target, folder: str) -> nn.Module:
    """The modules that ``folder`` holds for ``method``, called ``name``: in eval mode, where and as the target is.

    Raises UserError for no folder or an unreadable one, and for modules of another method, another target, or of
    options that make other modules.
    """
    if not folder:
        raise UserError("modules_missing", f"{name} cannot run: {no_modules(name)}")
    facts = check_modules(method.modules_name(name), folder)
    _check_target(folder, facts, target.info, target.weights_sha256)
    with torch.random.fork_rng(devices=[]):
        module = method.build(target.info, target.lm_head.weight)
    weights, stage = _read_weights(folder), method.second_stage
    if stage is not None:
        first = _without(weights, stage.part)
        if stage.needed and len(first) == len(weights):
            raise UserError(
                "modules_missing",
                f"{folder}: holds no {stage.part}; train one on top of it with: benchctl train "
                f"'{name}[{stage.options},modules={folder}]' --model MODEL --out NEW (and the label's other options); "
                "NEW will hold both",
            )
        weights = weights if stage.needed else first
    _check_fit(method, name, folder, facts, _shapes(module.state_dict()) == _shapes(weights))
    module.load_state_dict(weights)
    return module.to(target.device, target.dtype).eval().requires_grad_(False)


def go_on_from_modules(module: nn.Module, method: Trainable, name: str, info: TargetInfo, weights_sha256: str) -> None:
    """Give ``module`` the weights of the folder that ``method`` names, all but those of its second stage.

    ``info`` and ``weights_sha256`` are the target's. Raises UserError as load_modules does.
    """
    folder, stage = method.modules, method.second_stage
    assert folder and stage is not None
    facts = check_modules(method.modules_name(name), folder)
    _check_target(folder, facts, info, weights_sha256)
    weights = _without(_read_weights(folder), stage.part)
    wanted = _without(module.state_dict(), stage.part)
    _check_fit(method, name, folder, facts, _shapes(wanted) == _shapes(weights))
    module.load_state_dict(weights, strict=False)


def _read_weights(folder: str) -> dict[str, Tensor]:
    try:
        return load_file(Path(folder) / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise UserError(
            "file_not_readable", f"{folder}: {WEIGHTS} cannot be read ({error}); train the modules again"
        ) from error


def _without(weights: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in weights.items() if not name.startswith(f"{part}.")}


def _shapes(weights: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in weights.items()}


def _check_fit(method: Trainable, name: str, folder: str, facts: ModuleFacts, shapes_fit: bool) -> None:
    if not shapes_fit:  # one of the options that differ from those of the training must be why
        others = {key: value for key, value in facts.options.items() if getattr(method, key, value) != value}
        others.pop("modules", None)
        reason = f"train others with: benchctl train {name}"
        if others:
            reason = f"they were trained with {', '.join(f'{key}={value}' for key, value in others.items())}"
        raise UserError("shapes_do_not_fit", f"{folder}: these modules have other shapes than {name} needs; {reason}")
    for option in method.trained_for:
        made, asked = facts.options.get(option), getattr(method, option)
        if option in facts.options and made != asked:
            raise UserError(
                "trained_with_other_option",
                f"{folder}: trained with {option}={made}, not {asked}; give {option}={made}",
            )


def _check_target(folder: str, facts: ModuleFacts, info: TargetInfo, weights_sha256: str) -> None:
    if facts.target.weights_sha256 != weights_sha256:
        raise _of_other_target(folder, facts.target, info, weights_sha256)


def _of_other_target(folder: str, made: MadeFor, info: TargetInfo, weights_sha256: str = "") -> UserError:
    """``weights_sha256``, of the target, is empty where its weights have not been read."""
    theirs, ours = (f"{of.layers} layers of {of.hidden_size}, vocabulary {of.vocabulary}" for of in (made, info))
    if weights_sha256:
        theirs, ours = f"weights {made.weights_sha256[:8]}, {theirs}", f"weights {weights_sha256[:8]}, {ours}"
    return UserError(
        "modules_of_other_target",
        f"{folder}: made for {made.name} ({theirs}), but the target has {ours}; name modules trained for this target",
    )
