"""Calibrates a threshold: the lowest one whose risk stays below a bound with high chance.

Learn then Test (Angelopoulos, Bates, Candes, Jordan, Lei 2021, arXiv:2110.01052): the hypothesis "the risk is above
delta" is tested for one threshold after the other, from the safest on, each at level epsilon, until one stands. At most
a share epsilon of calibrations end at a threshold whose risk is above delta. CALM (Schuster et al. 2022,
arXiv:2207.07061, section 4) calibrates early exit in this way. P-values: Hoeffding and Bentkus, as in Bates et al.
2021, arXiv:2101.02703, for losses between 0 and 1.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from scipy.special import rel_entr
from scipy.stats import binom

from benchctl import bundled
from benchctl.decoding.loop import DecodeRequest, decode
from benchctl.decoding.method import Method, MonotoneThreshold
from benchctl.decoding.model.target import Target
from benchctl.decoding.modules.folders import modules_sha256, read_facts, trained_options
from benchctl.decoding.modules.trainable import Trainable
from benchctl.decoding.verify import common_start
from benchctl.errors import UserError
from benchctl.registry import BASELINE, Label, build, method_class, method_options, parse_label, with_trained
from benchctl.training.checkpoint import writing
from benchctl.training.jobs import JobContext, check_device, make_out, target_dtype
from benchctl.training.modules.frozen import TargetFiles, chat_of, check_method, find_target
from benchctl.training.modules.own_text import pick_prompts, prompt_room
from benchctl.training.train_options import TeacherOptions

FILE = "calibration.json"
THRESHOLD = "threshold"
# Chosen before any data are seen, as the guarantee asks; finer above, where cosines and sure exits lie (ours).
_FINE = (0.999, 0.995, 0.99, 0.98, 0.97, 0.95, 0.925, 0.9, 0.875, 0.85)
THRESHOLDS = (*_FINE, *(round(0.8 - 0.05 * step, 2) for step in range(17)))


@dataclass(frozen=True)
class Risk:
    """What is promised: a risk of at most ``delta``, in all but a share ``epsilon`` of calibrations."""

    delta: float
    epsilon: float

    def __post_init__(self) -> None:
        for name in ("delta", "epsilon"):
            if not 0.0 < getattr(self, name) < 1.0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must lie between 0 and 1")

    @classmethod
    def read(cls, text: str) -> Risk:
        """Of `delta,epsilon`, such as 0.1,0.05. Raises ValueError for anything else."""
        delta, comma, epsilon = text.partition(",")
        if not comma:
            raise ValueError("give two numbers, delta and epsilon, such as 0.1,0.05")
        return cls(float(delta), float(epsilon))

    @property
    def fewest(self) -> int:
        """So many losses, all of them 0, are needed to show anything: (1 - delta)^n <= epsilon."""
        return math.ceil(math.log(self.epsilon) / math.log1p(-self.delta))


@dataclass(frozen=True)
class Tested:
    """A threshold: its mean loss, and the chance of one as low if its risk were above delta."""

    threshold: float
    risk: float
    p_value: float


@dataclass(frozen=True)
class Calibration:
    """The thresholds tested, from the highest on; the last of them may be one that could not be shown to be safe."""

    promised: Risk
    tested: tuple[Tested, ...]

    @property
    def chosen(self) -> Tested | None:
        """The lowest that was shown to be safe; None where not even the highest was."""
        safe = [tested for tested in self.tested if tested.p_value <= self.promised.epsilon]
        return safe[-1] if safe else None


def learn_then_test(
    thresholds: Sequence[float],
    losses_at: Callable[[float], Sequence[float]],
    promised: Risk,
    report: Callable[[Tested], None] = lambda tested: None,
) -> Calibration:
    """Tests ``thresholds``, the safest first, until one cannot be shown to be safe.

    ``losses_at`` gives the losses, 0 to 1, of independent prompts at a threshold, the same prompts at each.
    """
    tested: list[Tested] = []
    for threshold in thresholds:
        losses = losses_at(threshold)
        tested.append(Tested(threshold, sum(losses) / len(losses), p_value(losses, promised.delta)))
        report(tested[-1])
        if tested[-1].p_value > promised.epsilon:
            break
    return Calibration(promised, tuple(tested))


def p_value(losses: Sequence[float], delta: float) -> float:
    """At most the chance of a mean loss as low as this, if the risk were above ``delta``: the smaller of two bounds.

    Hoeffding's, exp(-n kl(mean, delta)), and Bentkus's, e P(Binomial(n, delta) <= ceil(n mean)).
    """
    count, total = len(losses), sum(losses)
    low = min(total / count, delta)
    hoeffding = math.exp(-count * float(rel_entr(low, delta) + rel_entr(1 - low, 1 - delta)))
    return min(1.0, hoeffding, math.e * float(binom.cdf(math.ceil(total), count, delta)))


def disagreement(answer: Sequence[int], reference: Sequence[int]) -> float:
    """1 - the share of the longer text that comes before the first difference, as `compare` counts token agreement.

    Example: 5 6 7 8 and 5 6 9 give 0.5.
    """
    return 1.0 - common_start(answer, reference) / max(len(answer), len(reference))


def calibrate(options: TeacherOptions, label_text: str, promised: Risk, prompts: int, job_context: JobContext) -> str:
    """Writes the lowest safe threshold of a method on `options.model` into `options.out`; the label that runs it.

    Its risk is the mean disagreement of whole greedy answers with the target's, of at most `options.answer_tokens`
    tokens each, over held-out prompts of the data: `prompts` of them, or as many as there are. Raises UserError where
    no threshold was shown to be safe.
    """
    label, modules = _check_method(parse_label(label_text), options.model)
    _check_room(options.out, promised, prompts, job_context)
    check_device(options.device)
    files = find_target(options.model, method_class(label.name).supports_encoder_decoder)
    check_method(_method(label, THRESHOLDS[0], modules), label, files)
    heads, dtype = _heads(files, options, promised, prompts, job_context, bool(modules)), target_dtype(options)
    target = Target.load(files.path, dtype=dtype, device=options.device)

    def answers(method: Method) -> list[tuple[int, ...]]:
        method.prepare(target)
        return [decode(method, target, DecodeRequest(head, options.answer_tokens)).token_ids for head in heads]

    def losses_at(threshold: float) -> list[float]:
        found = answers(_method(label, threshold, modules))
        return [disagreement(one, other) for one, other in zip(found, references, strict=True)]

    def report(tested: Tested) -> None:
        chance = f"risk {tested.risk:.4f} over {len(heads)} prompts, p {tested.p_value:.2g}"
        job_context.notify(f"threshold {tested.threshold:g}: {chance}")

    references = answers(build(BASELINE))
    found = learn_then_test(THRESHOLDS, losses_at, promised, report)
    facts = {
        "method": label.without_places.text,
        "target": {"name": files.name, "weights_sha256": target.weights_sha256, "dtype": dtype},
        "modules_sha256": modules_sha256(modules) if modules else None,
        "answer_tokens": options.answer_tokens,
        "provenance": asdict(job_context.provenance),
        "threshold": None if found.chosen is None else found.chosen.threshold,
        "promised": asdict(promised),
        "risk": "mean over prompts of 1 - tokens before the first difference / tokens of the longer greedy answer",
        "prompts": len(heads),
        "tested": [asdict(tested) for tested in found.tested],
    }
    with writing(options.out, FILE):
        (options.out / FILE).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    if found.chosen is None:
        raise UserError(
            "no_safe_threshold",
            f"over {len(heads)} prompts not even threshold {THRESHOLDS[0]:g} was shown to keep the risk below "
            f"{promised.delta:g}; train the exits, give more prompts, or allow a larger delta",
        )
    return _at(label, found.chosen.threshold).text


def _at(label: Label, threshold: float) -> Label:
    return Label(label.name, (*label.options, (THRESHOLD, f"{threshold:g}")))


def _method(label: Label, threshold: float, modules: str) -> Method:
    method = build(_at(label, threshold).text)
    if modules and isinstance(method, Trainable):
        method.modules = modules
    return method


def _check_method(label: Label, model: str) -> tuple[Label, str]:
    """The label with its modules' options, and their folder: that of the package where none is named; empty for none.

    Raises UserError for a method without a threshold, or where higher is not safer, for an exact one, and for one whose
    modules are not there.
    """
    if all(option.name != THRESHOLD for option in method_options(label.name)):
        known = "early_exit, deed, m2r2_dynamic and specee have one"
        raise UserError("nothing_to_calibrate", f"{label.name} has no threshold to calibrate; {known}")
    if any(name == THRESHOLD for name, _ in label.options):
        raise UserError("option_is_calibrated", f"{label.text}: leave out {THRESHOLD}; it is what is calibrated")
    method = _method(label, THRESHOLDS[0], "")
    if not isinstance(method, MonotoneThreshold):
        raise UserError(
            "threshold_not_monotone",
            f"a higher threshold of {label.name} is not a safer one, as calibration takes it to be; compare thresholds "
            "with benchctl run --sweep",
        )
    needs, modules = isinstance(method, Trainable) and method.needs_modules, ""
    if isinstance(method, Trainable) and needs:
        modules = method.modules or str(bundled.modules_for(model, label.name, method.modules_name(label.name)) or "")
        trained = read_facts(modules).asked if modules and method.published(modules) is None else {}
        label = with_trained(label, {name: value for name, value in trained.items() if name != THRESHOLD})
    at = _method(label, THRESHOLDS[0], modules)
    if at.exactness != "lossy":
        raise UserError(
            "nothing_to_calibrate",
            f"{label.text} gives the target's answers at every threshold; calibrate a lossy mode, such as mode=exit",
        )
    if isinstance(at, Trainable) and needs:
        trained_options(at, label.name, modules)
    return label, modules


def _check_room(out: Path, promised: Risk, prompts: int, job_context: JobContext) -> None:
    """Raises UserError for what would come to nothing after minutes of decoding."""
    if job_context.world.size > 1:
        raise UserError("one_process_only", "a calibration is one process; start it without torchrun")
    if (out / FILE).exists():
        raise UserError(
            "out_not_empty", f"{out}: contains {FILE} of an earlier calibration; name another folder with --out"
        )
    if prompts < promised.fewest:
        raise UserError("too_few_prompts", _too_few(f"{prompts} prompts", promised))
    make_out(out)


def _too_few(what: str, promised: Risk) -> str:
    return (
        f"{what} are too few to show a risk below {promised.delta:g} with probability {1 - promised.epsilon:g}: at "
        f"least {promised.fewest} are needed; give more held-out data and --calibrate-prompts, or a larger delta or "
        "epsilon"
    )


def _heads(
    files: TargetFiles, options: TeacherOptions, promised: Risk, prompts: int, job_context: JobContext, trained: bool
) -> list[list[int]]:
    """The ids of held-out prompts, each once, that leave room for an answer; ``trained`` modules learned from none."""
    chat, corpus = chat_of(files), job_context.read_corpus(options.data)
    records = [record for found in corpus.held_out.values() for record in found]
    # Training reads each answer of a chat, after all that stands before it; in other records too.
    learned = {
        record.messages[:at]
        for record in (corpus.train if trained else ())
        for at, message in enumerate(record.messages)
        if message.role == "assistant"
    }
    unknown = [record for record in records if record.prompt not in learned]
    messages = dict.fromkeys(pick_prompts(unknown, len(unknown), options.seed, corpus.recipe))
    room = prompt_room(files, options.answer_tokens)
    heads = [ids for head in chat.heads(list(messages)) if len(ids := [int(token) for token in head]) <= room]
    if known := len(records) - len(unknown):
        job_context.notify(f"{known} held-out prompts are left out, since the training data has them too.")
    if len(heads) < promised.fewest:
        room_for = f"with room for {options.answer_tokens} tokens of answer"
        raise UserError("too_few_prompts", _too_few(f"{len(heads)} held-out prompts {room_for}", promised))
    return heads[:prompts]
