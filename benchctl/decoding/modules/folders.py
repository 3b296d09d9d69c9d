"""Folders of trained modules: weights, and a file of facts about them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from benchctl.decoding.model.loading import DRAFT_VOCABULARY
from benchctl.decoding.model.target import Target, TargetInfo
from benchctl.decoding.modules.draft_vocabulary import UsesDraftVocabulary
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
    _refuse_options(method, name, folder, options)
    method.refuse(folder, options)
    return options


def _refuse_options(method: Trainable, name: str, folder: str, options: Mapping[str, Any]) -> None:
    """Raises UserError where modules with these ``options`` were not trained for the method's."""
    for option in method.trained_for:
        made, asked = options.get(option, getattr(type(method), option)), getattr(method, option)
        if made != asked:
            message = f"{folder}: trained with {option}={made}, not {asked}; give {option}={made}"
            raise UserError("trained_with_other_option", message)
    if option := method.at_most:
        made, asked = options.get(option), getattr(method, option)
        if not isinstance(made, int) or asked > made:
            raise UserError(
                "trained_for_fewer",
                f"{folder}: trained with {option}={made}, and {option}={asked} asks for more; give fewer, or train as "
                f"many: benchctl train '{name}[{option}={asked}]' --model MODEL --out FOLDER (and the label's other "
                "options)",
            )


def check_sizes(method: Trainable, folder: str, info: TargetInfo) -> None:
    """Raises UserError where ``folder`` has modules for a target of other sizes than these."""
    if not folder or method.published(folder) is not None:
        return
    made = read_facts(folder).target
    if (made.layers, made.hidden_size, made.vocabulary) != (info.layers, info.hidden_size, info.vocabulary):
        raise _of_other_target(folder, made, info)


def check_fit(method: Trainable, name: str, folder: str, info: TargetInfo) -> None:
    """Raises UserError where ``folder`` has modules for another target, or for other options: reads no weights.

    Where ``build`` needs the numbers of the LM head, options are checked in load_modules.
    """
    check_sizes(method, folder, info)
    if method.published(folder) is not None:
        return
    lm_head = torch.empty(info.vocabulary, info.hidden_size, device="meta")
    try:
        made, module = _built(method, name, folder, info, lm_head)
    except (NotImplementedError, RuntimeError):
        return
    with _reading(folder) as file, safe_open(file, framework="pt") as stored:
        held = {part: stored.get_slice(part).get_shape() for part in list(stored.keys())}
    _refuse_shapes(made, name, folder, held, module.state_dict())


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
    made, module = _built(method, name, folder, target.info, target.lm_head.weight)
    take_weights(module, made, name, folder, (target.info, target.files_sha256))
    return module.to(target.device, target.dtype).eval().requires_grad_(False)


def _built(method: Trainable, name: str, folder: str, info: TargetInfo, lm_head: Tensor) -> tuple[Trainable, nn.Module]:
    """The method as the modules in ``folder`` were trained, and fresh ones; torch's generator is left as it was."""
    made = copy(method.as_trained(trained_options(method, name, folder)))
    if isinstance(made, UsesDraftVocabulary):
        made.load_vocabulary(folder, info.vocabulary)
    with torch.random.fork_rng(devices=[]):
        return made, made.build(info, lm_head)


def take_weights(
    module: nn.Module, method: Trainable, name: str, folder: str, target: tuple[TargetInfo, str], whole: bool = True
) -> None:
    """Give ``module`` the weights in ``folder``, made for a target with these facts and this hash of its files.

    Without those of the second stage, where it is not needed or not ``whole``. Raises UserError as load_modules does.
    """
    facts, (info, weights_sha256) = check_modules(method.modules_name(name), folder), target
    if facts.target.weights_sha256 != weights_sha256:
        raise _of_other_target(folder, facts.target, info, weights_sha256)
    _refuse_options(method, name, folder, facts.options)
    with _reading(folder) as file:
        weights = load_file(file)
    held = {part: weight.shape for part, weight in weights.items()}
    fitting = _refuse_shapes(method, name, folder, held, module.state_dict(), whole)
    module.load_state_dict({part: weights[part] for part in fitting}, strict=False)


@contextmanager
def _reading(folder: str) -> Iterator[Path]:
    """The file of the weights in ``folder``. Raises UserError for one that cannot be read."""
    try:
        yield Path(folder) / WEIGHTS
    except (OSError, SafetensorError) as error:
        reason = f"{folder}: {WEIGHTS} cannot be read ({error}); train the modules again"
        raise UserError("file_not_readable", reason) from error


def _refuse_shapes(
    method: Trainable,
    name: str,
    folder: str,
    held: Mapping[str, Sequence[int]],
    needed: Mapping[str, Tensor],
    whole: bool = True,
) -> Iterable[str]:
    """The names of the weights in ``folder``, of shapes ``held``, that serve ``method``; see take_weights.

    Raises UserError where they lack the second stage, or have other shapes than those ``needed``.
    """
    stage, left_out = method.second_stage, set[str]()
    if stage is not None:
        of_stage = {part for part in (*held, *needed) if part.startswith(f"{stage.part}.")}
        whole = whole and stage.needed
        if whole and not of_stage & held.keys():
            raise UserError(
                "modules_missing",
                f"{folder}: holds no {stage.part}; train one on top of it with: benchctl train "
                f"'{name}[{stage.options},modules={folder}]' --model MODEL --out NEW (and the label's other options); "
                "NEW will hold both",
            )
        left_out = set() if whole else of_stage
    shapes = {part: tuple(shape) for part, shape in held.items() if part not in left_out}
    if shapes != {part: tuple(own.shape) for part, own in needed.items() if part not in left_out}:
        reason = f"train others with: benchctl train {name}"
        if others := _others(method, read_facts(folder)):
            reason = f"they were trained with {others}; give that, or {reason}"
        raise UserError("shapes_do_not_fit", f"{folder}: these modules have other shapes than {name} needs; {reason}")
    return shapes


def _others(method: Trainable, facts: ModuleFacts) -> str:
    """Options of the training that differ from the method's; one of them must be why shapes do."""
    defaults = {option.name: option.default for option in fields(cast(Any, method))}
    return ", ".join(
        f"{name}={made}"
        for name, made in facts.options.items()
        if name != "modules" and (mine := getattr(method, name, made)) != made
        # A default that neither label names cannot be why.
        if not facts.asked or name in facts.asked or mine != defaults.get(name)
    )


def _of_other_target(folder: str, made: MadeFor, info: TargetInfo, weights_sha256: str = "") -> UserError:
    theirs, ours = (f"{of.layers} layers of {of.hidden_size}, vocabulary {of.vocabulary}" for of in (made, info))
    if weights_sha256:
        theirs, ours = f"weights {made.weights_sha256[:8]}, {theirs}", f"weights {weights_sha256[:8]}, {ours}"
    return UserError(
        "modules_of_other_target",
        f"{folder}: made for {made.name} ({theirs}), but the target has {ours}; name modules trained for this target",
    )
