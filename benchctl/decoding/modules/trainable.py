"""What a method with trained modules writes: build, loss, yardsticks. benchctl.training does the rest."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from benchctl.decoding.model.layers import Layer
from benchctl.decoding.model.target import DRAFT_VOCABULARY, Target, TargetInfo
from benchctl.decoding.modules.others import CONFIG, EAGLE_WEIGHTS, MEDUSA_WEIGHTS, modules_folder, weights_file
from benchctl.errors import UserError

Part = TypeVar("Part", bound=nn.Module)


class Labels(NamedTuple):
    """Tokens to predict [rows, n] and the loss weight of each, 0 where there is nothing to predict."""

    tokens: Tensor
    weights: Tensor


class TeacherOutput(NamedTuple):
    """Of the target's own logits over its whole vocabulary, [rows, n] each: the likeliest token, and log sum exp."""

    top_tokens: Tensor
    log_normalizers: Tensor


ROWS_AT_ONCE = 256  # that go through a head together: all of a batch by a large vocabulary would take gigabytes


@torch.no_grad()
def top_and_normalizer(head: Callable[[Tensor], Tensor], final: Tensor) -> TeacherOutput:
    """The likeliest token and log sum exp by ``head`` of normed states [..., width]."""
    top_tokens, log_normalizers = [], []
    with torch.autocast(final.device.type, enabled=False):  # as the target's logits in exit_losses
        for rows in torch.split(final.flatten(0, -2), ROWS_AT_ONCE):
            logits = head(rows).float()
            top_tokens.append(logits.argmax(-1))
            log_normalizers.append(logits.logsumexp(-1))
    return TeacherOutput(
        torch.cat(top_tokens).view(final.shape[:-1]), torch.cat(log_normalizers).view(final.shape[:-1])
    )


@dataclass(frozen=True)
class Tally:
    """So many right of so many; tallies of several batches add up."""

    right: float
    of: float

    @property
    def share(self) -> float:
        return self.right / self.of if self.of else 0.0

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.right + other.right, self.of + other.of)


def tally(right: Tensor, weights: Tensor) -> Tally:
    """Of tokens [rows, n] of these weights those that are ``right``, wholly or to a share."""
    return Tally(float((right * weights).sum()), float(weights.sum()))


@dataclass(frozen=True)
class TrainingBatch:
    """Packed rows of text as the frozen target saw them; nothing here carries a gradient.

    tokens     [rows, n]; documents within a row do not see one another
    weights    [rows, n] loss weight of each token: 1 for answers and text, 0 for padding
    documents  [rows, n] number of each token's document within its row, -1 for padding
    positions  [rows, n] position of each token within its document
    states     layers + 1 residuals [rows, n, width]: the embedding, then the state after each layer
    final      [rows, n, width] the last state after the final norm: what the LM head reads
    norm       the target's final norm: residual -> normed, same shape; differentiable in its input
    head       the target's LM head: normed [..., width] -> target logits [..., vocabulary]; differentiable likewise
    layer      the target's layer with this index, as decoding runs it; differentiable in what goes through it
    rotary     positions [tokens] -> their complex rotations [tokens, head_dim / 2]
    stored_teacher  the target's predictions from a store; ``teacher`` computes them otherwise
    draft_ids  [k] tokens that drafters score, ascending; None for the whole vocabulary
    draft_rows the LM head of those tokens alone: normed [..., width] -> target logits [..., k]; differentiable likewise
    drawn      [k] random tokens that exit_losses compares, and with them the target's likeliest ones; None for all
    head_rows  gives the LM head of any tokens [k], as draft_rows
    """

    tokens: Tensor
    weights: Tensor
    documents: Tensor
    positions: Tensor
    states: Sequence[Tensor]
    final: Tensor
    norm: Callable[[Tensor], Tensor]
    head: Callable[[Tensor], Tensor]
    layer: Callable[[int], Layer]
    rotary: Callable[[Tensor], Tensor]
    stored_teacher: TeacherOutput | None = None
    draft_ids: Tensor | None = None
    draft_rows: Callable[[Tensor], Tensor] | None = None
    drawn: Tensor | None = None
    head_rows: Callable[[Tensor], Callable[[Tensor], Tensor]] | None = None

    @cached_property
    def teacher(self) -> TeacherOutput:
        """The target's prediction after each token."""
        return self.stored_teacher or top_and_normalizer(self.head, self.final)

    @property
    def draft_head(self) -> Callable[[Tensor], Tensor]:
        """The LM head of the tokens that drafters score: all of them where there is no draft vocabulary."""
        return self.draft_rows or self.head

    def sampled(self) -> TrainingBatch:
        """With ``drawn``, a batch whose draft vocabulary is these and the target's likeliest tokens.

        Ours. Whatever is drawn, such a loss is least where the ratios of the probabilities are the target's, so over
        many draws it has the optimum of a loss over the whole vocabulary, for a share of its products.
        """
        if self.drawn is None:
            return self
        assert self.head_rows is not None, "drawn tokens come with a head of any tokens"
        ids = torch.cat((self.teacher.top_tokens.flatten(), self.drawn)).unique()  # type: ignore[no-untyped-call]
        return replace(self, drawn=None, draft_ids=ids, draft_rows=self.head_rows(ids), stored_teacher=self.teacher)

    @property
    def covered(self) -> dict[str, Tally]:
        """draft_vocabulary_covers: the share of the target's likeliest tokens inside the draft vocabulary, if any."""
        if self.draft_ids is None:
            return {}
        return {"draft_vocabulary_covers": tally(self.places_of(self.teacher.top_tokens) >= 0, self.ahead(1).weights)}

    def picks(self, normed: Tensor) -> Tensor:
        """[rows, n] the likeliest of the tokens that drafters score, for normed states [rows, n, width]."""
        return self.ids_of(top_and_normalizer(self.draft_head, normed).top_tokens)

    def ids_of(self, places: Tensor) -> Tensor:
        """The tokens at these places of the draft vocabulary."""
        return places if self.draft_ids is None else self.draft_ids[places]

    def places_of(self, tokens: Tensor) -> Tensor:
        """Where tokens stand in the draft vocabulary, -1 for those outside. Ids 2 5 9: tokens 5 6 9 give 1 -1 2."""
        if self.draft_ids is None:
            return tokens
        places = torch.searchsorted(self.draft_ids, tokens.contiguous()).clamp(max=len(self.draft_ids) - 1)
        return torch.where(self.draft_ids[places] == tokens, places, -1)

    def ahead(self, distance: int) -> Labels:
        """The token ``distance`` after each one and its weight, which is 0 beyond the document or the row.

        Tokens 5 6 7 | 8 9 of two documents, all of weight 1, give for distance 1: tokens 6 7 8 9 9, weights 1 1 0 1 0.
        """
        index = torch.arange(self.tokens.shape[1], device=self.tokens.device) + distance
        inside = index < self.tokens.shape[1]
        index = index.clamp(max=self.tokens.shape[1] - 1)
        same = (self.documents[:, index] == self.documents) & (self.documents >= 0) & inside
        return Labels(self.tokens[:, index], self.weights[:, index] * same)


@dataclass(frozen=True)
class TrainingDefaults:
    """How a method's modules are trained unless the command line says otherwise."""

    rate: float = 1e-3
    schedule: Literal["cosine", "linear"] = "cosine"
    warmup: float = 0.1
    epochs: float = 2.0


@dataclass(frozen=True)
class SecondStage:
    """A part that is trained by itself, on top of modules that were trained before and then stand still.

    part     its name among the modules; a folder may hold it or not
    options  those of a label that trains it and uses it
    needed   whether the method's options make it such a label: then ``build`` makes the part too
    first    label that trains the first stage; empty for the name of the modules
    """

    part: str
    options: str
    needed: bool
    training: TrainingDefaults
    first: str = ""


class Numbered(nn.ModuleDict, Generic[Part]):
    """Modules by number, mostly that of a layer; their weights are named after it."""

    def __init__(self, parts: Mapping[int, Part]) -> None:
        super().__init__({str(number): part for number, part in parts.items()})

    def of(self, number: int) -> Part:
        return cast(Part, self[str(number)])

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(map(int, self))


class Trainable(ABC):
    """Mix-in for a method with trained modules. Its dataclass has an option ``modules``: the folder of the weights."""

    training: ClassVar[TrainingDefaults] = TrainingDefaults()
    trained_for: ClassVar[tuple[str, ...]] = ()  # options that modules are trained for though no shape tells
    draws_tokens: ClassVar[bool] = False  # whether its loss is exit_losses, and may be over random tokens in each pass
    modules_of: ClassVar[str] = ""  # the method whose trained modules it uses; empty for its own
    modules: str

    def modules_name(self, name: str) -> str:
        """What folders of modules are marked with, for this method, called ``name``."""
        return self.modules_of or name

    @property
    def needs_modules(self) -> bool:
        return True

    @property
    def second_stage(self) -> SecondStage | None:
        """What may be trained on top of the modules. Where it is needed, only its weights require a gradient."""
        return None

    @abstractmethod
    def build(self, info: TargetInfo, lm_head: Tensor) -> nn.Module:
        """Fresh modules for a target with ``lm_head`` [vocabulary, width]; the caller seeds torch's generator.

        They are float32, on the device of ``lm_head``; names and shapes follow from the target and the options. Called
        only where ``needs_modules``, and for targets that are not ``unsupported``.
        """

    def pace(self, module: Any, progress: float) -> None:  # noqa: B027 optional
        """Before each optimiser step: how much of the training is over, from 0 to 1; for what changes meanwhile."""

    @abstractmethod
    def loss(self, module: Any, batch: TrainingBatch) -> Tensor:
        """Weighted sum of the losses in nats; the trainer divides it by the weights of ``ahead(1)`` of a whole step."""

    @abstractmethod
    def yardsticks(self, module: Any, batch: TrainingBatch) -> Mapping[str, Tally]:
        """What the modules are good for on held-out text: shares or cosines by name, such as ``head_1_top1``."""

    def findings(self, module: Any, batches: Iterable[TrainingBatch]) -> Mapping[str, Any]:
        """What else modules.json keeps of trained modules, as JSON; measured on all held-out ``batches``, once."""
        return {}

    def published(self, folder: str) -> Mapping[str, Any] | None:
        """The options of modules that others have published, where ``folder`` has a format of theirs."""
        return None

    def refuse(self, folder: str, trained: Mapping[str, Any]) -> None:  # noqa: B027 optional
        """Raises UserError where modules trained with the options ``trained`` cannot serve those asked for."""


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
    yardsticks  shares by name, measured on held-out text when training ended; empty where nobody measured
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
