"""The vertical axis of the Pareto plot: how far answers equal the target's, or how good they are."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from benchctl.analysis.comparison import Group, MethodFigures
from benchctl.analysis.judges.figures import SCORE_DIFFERENCE
from benchctl.analysis.judges.judgements import Judge
from benchctl.analysis.metrics.faithfulness import EXACT_MATCH, TARGET_AGREEMENT, TARGET_ANSWERS, TOKEN_AGREEMENT
from benchctl.analysis.metrics.metric import Metric
from benchctl.analysis.metrics.speed import SPEEDUP
from benchctl.analysis.stats.estimates import Estimate
from benchctl.errors import UserError

METRICS: Final[dict[str, Metric]] = {
    "target-agreement": TARGET_AGREEMENT,
    "agreement": TOKEN_AGREEMENT,
    "verdict": TARGET_ANSWERS,
    "quality": SCORE_DIFFERENCE,
    "exact": EXACT_MATCH,
}
AGAINST_BASELINE: Final = (TOKEN_AGREEMENT, TARGET_AGREEMENT, TARGET_ANSWERS)  # 1 for the baseline's own answer


@dataclass(frozen=True)
class FidelityAxis:
    """A metric, and for a judge's score the judge. `instead` is the metric that would be drawn if it were measured."""

    metric: Metric
    judge: Judge | None = None
    instead: Metric | None = None

    @property
    def name(self) -> str:
        """What the metric is called."""
        return "target agreement" if self.metric == TARGET_AGREEMENT else self.metric.label

    def of(self, group: Group, method: MethodFigures) -> Estimate:
        """A method's value. The baseline has 1, or 0 for a difference, where it is compared with itself. An engine's
        baseline has a target agreement of its own.

        Raises UserError where the method has no value, or its value and its speed-up rest on different prompts.
        """
        if method.is_baseline and self.metric in AGAINST_BASELINE:
            own = method.estimate(self.metric)
            return Estimate(self.metric, 1.0, None) if own.value is None else own
        if method.is_baseline and self.judge:
            return Estimate(self.metric, 0.0, None)
        estimate = self._judged(method) if self.judge else method.estimate(self.metric)
        if self.metric is EXACT_MATCH and 0 < method.checked_prompts < method.prompts:
            raise UserError(
                "prompts_differ",
                f"{_file(group)}: only {method.checked_prompts} of {method.prompts} prompts have an exact answer, so "
                "speed and exact match would rest on different prompts. Plot a run of --bench tasks or gsm8k alone.",
            )
        if estimate.value is None:
            raise UserError("no_fidelity", f"{_file(group)}: {method.label} has {self._lack()}")
        return estimate

    def title(self, group: Group) -> str:
        """The name of the axis."""
        methods = group.pooled.methods
        if self.judge:
            judged = [figures.prompts for method in methods for figures in method.judged if figures.judge == self.judge]
            on = f" on {max(judged)} prompts" if judged else ""
            return f"score of {self.judge.name}{on},\ndifference to {group.run.baseline}"
        if self.metric is EXACT_MATCH:
            return f"{self.name} on {max(method.checked_prompts for method in methods)} prompts"
        return f"{self.name}\n(target agreement\nnot measured)" if self.instead else self.name

    def _judged(self, method: MethodFigures) -> Estimate:
        figures = next((figures for figures in method.judged if figures.judge == self.judge), None)
        return figures.estimate(self.metric) if figures else Estimate(self.metric, None, None)

    def _lack(self) -> str:
        if self.judge:
            return f"no answers that {self.judge.name} judged. Judge them: benchctl judge."
        if self.metric in AGAINST_BASELINE:
            return (
                "no answers to compare token by token: sampled and imported files have none. Plot a run with "
                "--temperature 0."
            )
        return "no answers that can be checked. Plot a run with --bench tasks or gsm8k."


def default_axis(groups: Sequence[Group]) -> FidelityAxis:
    """Target agreement where every method with a speed-up has it, else token agreement."""
    drawn = [
        method
        for group in groups
        for method in group.pooled.methods
        if not method.is_baseline and method.estimate(SPEEDUP).value is not None
    ]
    if all(method.estimate(TARGET_AGREEMENT).value is not None for method in drawn):
        return FidelityAxis(TARGET_AGREEMENT)
    return FidelityAxis(TOKEN_AGREEMENT, instead=TARGET_AGREEMENT)


def fidelity_axis(name: str, groups: Sequence[Group], judge: str = "") -> FidelityAxis:
    """The axis of this name in METRICS, "" for the default. For quality, `judge` is a part of a judge's name, or "" for
    the only judge.

    Raises UserError where no judge, or more than one, has such a name.
    """
    if not name:
        return default_axis(groups)
    if METRICS[name] is not SCORE_DIFFERENCE:
        return FidelityAxis(METRICS[name])
    judges = dict.fromkeys(each for group in groups if group.judging for each in group.judging.judges)
    matching = [each for each in judges if judge in each.name]
    if not judges:
        raise UserError(
            "no_judge_scores",
            f"{_file(groups[0])}: no judge has scored these answers. Run `benchctl judge` on it first.",
        )
    if len(matching) != 1:
        names = ", ".join(f"'{each.name}'" for each in judges)
        raise UserError(
            "unknown_judge", f"--judge must name one of {names}; '{judge}' is in the names of {len(matching)}."
        )
    return FidelityAxis(SCORE_DIFFERENCE, matching[0])


def _file(group: Group) -> str:
    return str(group.files[0].path)
