"""The job that calibrates a threshold: it decodes held-out prompts with the method and with the target alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchctl import bundled as packs
from benchctl.decoding.loop import DecodeRequest, decode
from benchctl.decoding.method import Method, MonotoneThreshold
from benchctl.decoding.model.target import Target
from benchctl.decoding.modules.folder import modules_sha256, trained_options
from benchctl.decoding.modules.trainable import Trainable
from benchctl.errors import UserError
from benchctl.registry import BASELINE, Label, build, method_class, method_options, parse_label
from benchctl.training.jobs import Surroundings, check_device, corpus_of, target_dtype
from benchctl.training.modules.frozen import TargetFiles, chat_of, check_method, find_target
from benchctl.training.modules.own_text import pick_prompts, prompt_room
from benchctl.training.modules.risk import THRESHOLDS, Calibration, Risk, Tested, disagreement, learn_then_test
from benchctl.training.options import TrainOptions

FILE = "calibration.json"
THRESHOLD = "threshold"


@dataclass(frozen=True)
class Calibrated:
    """What a calibration has found. ``label`` runs the method at the threshold found; None where none was safe."""

    label: str | None
    prompts: int
    found: Calibration


def calibrate(options: TrainOptions, label_text: str, promised: Risk, prompts: int, around: Surroundings) -> Calibrated:
    """Finds the lowest safe threshold of a method on `options.model` and writes it into `options.out`.

    Its risk is the mean disagreement of whole greedy answers with the target's, of at most `options.answer_tokens`
    tokens each, over held-out prompts of the data: `prompts` of them, or as many as there are.
    """
    label = parse_label(label_text)
    modules = _check_method(label, options.model)
    _check_room(options.out, promised, prompts, around)
    check_device(options.device)
    files = find_target(options.model, method_class(label.name).supports_encoder_decoder)
    check_method(_method(label, THRESHOLDS[0], modules), label, files)
    heads = _heads(files, options, promised, prompts)
    target = Target.load(files.path, dtype=target_dtype(options), device=options.device)
    answers = _Answers(target, heads, options.answer_tokens)
    references = answers.of(build(BASELINE))

    def losses_at(threshold: float) -> list[float]:
        found = answers.of(_method(label, threshold, modules))
        return [disagreement(one, other) for one, other in zip(found, references, strict=True)]

    found = learn_then_test(THRESHOLDS, losses_at, promised, lambda tested: around.notify(_told(tested, len(heads))))
    result = Calibrated(None if found.chosen is None else _at(label, found.chosen.threshold).text, len(heads), found)
    facts = {
        "method": label.without_places.text,
        "target": {"name": files.name, "weights_sha256": target.weights_sha256, "dtype": target_dtype(options)},
        "modules_sha256": modules_sha256(modules) if modules else None,
        "answer_tokens": options.answer_tokens,
        "provenance": asdict(around.provenance),
    }
    _write(options.out, result, facts)
    return result


@dataclass(frozen=True)
class _Answers:
    """Greedy answers to the same prompts, given as ids, by one method after the other."""

    target: Target
    heads: Sequence[Sequence[int]]
    max_new_tokens: int

    def of(self, method: Method) -> list[tuple[int, ...]]:
        method.prepare(self.target)
        return [decode(method, self.target, DecodeRequest(head, self.max_new_tokens)).token_ids for head in self.heads]


def _at(label: Label, threshold: float) -> Label:
    return Label(label.name, (*label.options, (THRESHOLD, f"{threshold:g}")))


def _method(label: Label, threshold: float, modules: str) -> Method:
    method = build(_at(label, threshold).text)
    if modules and isinstance(method, Trainable):
        method.modules = modules
    return method


def _check_method(label: Label, model: str) -> str:
    """The folder of its modules, those embedded with the target where none are named; empty for a method without.

    Raises UserError for a method without a threshold, or where higher is not safer, for an exact one, and for one whose
    modules are not there.
    """
    if all(option.name != THRESHOLD for option in method_options(label.name)):
        raise UserError(f"{label.name} has no threshold to calibrate; early_exit and deed have")
    if any(name == THRESHOLD for name, _ in label.options):
        raise UserError(f"{label.text}: leave out {THRESHOLD}; it is what is calibrated")
    method = _method(label, THRESHOLDS[0], "")
    if not isinstance(method, MonotoneThreshold):
        raise UserError(
            f"a higher threshold of {label.name} is not a safer one, as calibration takes it to be; compare thresholds "
            "with benchctl run --sweep"
        )
    if method.exactness != "lossy":
        raise UserError(f"{label.text} says what the target says whatever its threshold; calibrate a lossy mode")
    if not (isinstance(method, Trainable) and method.needs_modules):
        return ""
    modules = method.modules or str(packs.modules_for(model, method.modules_name(label.name)) or "")
    trained_options(method, label.name, modules)
    return modules


def _check_room(out: Path, promised: Risk, prompts: int, around: Surroundings) -> None:
    """Raises UserError for what would come to nothing after minutes of decoding."""
    if around.world.size > 1:
        raise UserError("a calibration is one process; start it without torchrun")
    if (out / FILE).exists():
        raise UserError(f"{out}: holds {FILE} of an earlier calibration; name another folder with --out")
    if prompts < promised.fewest:
        raise UserError(_too_few(f"{prompts} prompts", promised))
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{out}: cannot be made ({error.strerror}); name another folder with --out") from error


def _too_few(what: str, promised: Risk) -> str:
    return (
        f"{what} can never show a risk below {promised.delta:g} with chance {1 - promised.epsilon:g}: it takes "
        f"{promised.fewest} at least; give more held-out data and --calibrate-prompts, or a larger delta or epsilon"
    )


def _heads(files: TargetFiles, options: TrainOptions, promised: Risk, prompts: int) -> list[list[int]]:
    """The ids of held-out prompts, each once, that leave room for an answer; modules have learnt from none of them."""
    chat, corpus = chat_of(files), corpus_of(options)
    records = [record for found in corpus.held_out.values() for record in found]
    messages = dict.fromkeys(pick_prompts(records, len(records), options.seed, corpus.weighed))
    room = prompt_room(files, options.answer_tokens)
    heads = [ids for head in chat.heads(list(messages)) if len(ids := [int(token) for token in head]) <= room]
    if len(heads) < promised.fewest:
        room_for = f"with room for {options.answer_tokens} tokens of answer"
        raise UserError(_too_few(f"{len(heads)} held-out prompts {room_for}", promised))
    return heads[:prompts]


def _told(tested: Tested, prompts: int) -> str:
    return f"threshold {tested.threshold:g}: risk {tested.risk:.4f} over {prompts} prompts, p {tested.p_value:.2g}"


def _write(out: Path, result: Calibrated, facts: Mapping[str, Any]) -> None:
    """calibration.json: what is promised of which threshold, for what, and how that was found."""
    found = result.found
    told = {
        "threshold": None if found.chosen is None else found.chosen.threshold,
        "promised": asdict(found.promised),
        "risk": "mean over prompts of 1 - tokens before the first difference / tokens of the longer greedy answer",
        "prompts": result.prompts,
        "tested": [asdict(tested) for tested in found.tested],
    }
    try:
        (out / FILE).write_text(json.dumps({**facts, **told}, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error.strerror}); name another --out") from error
