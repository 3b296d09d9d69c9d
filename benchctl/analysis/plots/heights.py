"""What may stand on the vertical axis of the Pareto plot: how far answers are the target's, or how good they are."""

from dataclasses import dataclass
from typing import Final

from benchctl.analysis.comparison import Group, MethodFigures
from benchctl.analysis.judges.figures import SCORE_DIFFERENCE
from benchctl.analysis.judges.judgements import Judge
from benchctl.analysis.metrics.faithfulness import EXACT_MATCH, TARGET_AGREEMENT, TARGET_ANSWERS, TOKEN_AGREEMENT
from benchctl.analysis.metrics.metric import Metric
from benchctl.analysis.stats.estimates import Estimate
from benchctl.errors import UserError

HEIGHTS: Final[dict[str, Metric]] = {
    "agreement": TOKEN_AGREEMENT,
    "verdict": TARGET_ANSWERS,
    "quality": SCORE_DIFFERENCE,
    "exact": EXACT_MATCH,
    "target-agreement": TARGET_AGREEMENT,
}
OF_BASELINE_TEXT: Final = (TOKEN_AGREEMENT, TARGET_AGREEMENT, TARGET_ANSWERS)  # 1 for an answer that is the baseline's


@dataclass(frozen=True)
class Height:
    """A figure of methods, by which judge if it is one's."""

    metric: Metric = TOKEN_AGREEMENT
    judge: Judge | None = None

    def of(self, group: Group, method: MethodFigures) -> Estimate:
        """The height of a method; that of the baseline is 1 or 0 where it is set against itself.

        Raises UserError where it has none, or rests on other prompts than the speed-up.
        """
        if method.is_baseline and self.metric in OF_BASELINE_TEXT:
            return Estimate(self.metric, 1.0, None)
        if method.is_baseline and self.judge:
            return Estimate(self.metric, 0.0, None)
        found = self._judged(method) if self.judge else method.estimate(self.metric)
        if self.metric is EXACT_MATCH and 0 < method.checked_prompts < method.prompts:
            raise UserError(
                f"{_file(group)}: only {method.checked_prompts} of {method.prompts} prompts have an exact answer, so "
                "speed and exact match would rest on different prompts. Plot a run of --bench tasks alone."
            )
        if found.value is None:
            raise UserError(f"{_file(group)}: {method.label} has {self._lack()}")
        return found

    def title(self, group: Group) -> str:
        """What the axis says."""
        methods, baseline = group.pooled.methods, group.run.baseline
        prompts = max(method.checked_prompts or method.prompts for method in methods)
        if self.judge:
            judged = [found.prompts for method in methods for found in method.judged if found.judge == self.judge]
            return (
                f"score of {self.judge.name} on {max(judged)} prompts,\ndifference to {baseline} (bars: 95% interval)"
            )
        basis = f"with {baseline}" if self.metric is TOKEN_AGREEMENT else f"on {prompts} prompts"
        return f"{self.metric.label} {basis}\n(bars: 95% interval)"

    def _judged(self, method: MethodFigures) -> Estimate:
        found = next((found for found in method.judged if found.judge == self.judge), None)
        return found.estimate(self.metric) if found else Estimate(self.metric, None, None)

    def _lack(self) -> str:
        if self.judge:
            return f"no answers that {self.judge.name} judged. Judge them: benchctl judge."
        if self.metric in OF_BASELINE_TEXT:
            return "no answers to compare token by token (were they sampled?). Plot a run with --temperature 0."
        return "no answers that can be checked. Plot a run with --bench tasks."


def height(name: str, groups: tuple[Group, ...], judge: str = "") -> Height:
    """The height of this name; quality is what `judge` says, a part of its name, or the only judge there is.

    Raises UserError where no judge is of that name, or several are.
    """
    if HEIGHTS[name] is not SCORE_DIFFERENCE:
        return Height(HEIGHTS[name])
    everyone = dict.fromkeys(one for group in groups if group.judging for one in group.judging.judges)
    named = [one for one in everyone if judge in one.name]
    if not everyone:
        raise UserError(f"{_file(groups[0])}: no judge has scored these answers. Run `benchctl judge` on it first.")
    if len(named) != 1:
        names = ", ".join(f"'{one.name}'" for one in everyone)
        raise UserError(f"--judge must name one of {names}; '{judge}' is in the names of {len(named)}.")
    return Height(SCORE_DIFFERENCE, named[0])


def _file(group: Group) -> str:
    return str(group.files[0].path)
