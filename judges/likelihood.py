"""Judge by likelihood: the mean log-likelihood of an answer under the full target of a run, in nats per token.

It needs no other model and no key. The tokens are those of the method's answer, stop token included, each given the
text before it; the target's logits are used at temperature 1 and untruncated. The score measures how typical an answer
is of the target, not how good it is: a likely answer may be dull or wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from benchctl import bundled
from benchctl.decoding.model.likelihood import likelihood
from benchctl.decoding.model.loading import files_sha256, form_sha256
from benchctl.decoding.model.opaque import OpaqueTarget
from benchctl.decoding.model.target import Target
from benchctl.decoding.model.tokenizer import TargetTokenizer, load_tokenizer, talk
from benchctl.errors import UserError
from benchctl.judging.judge import GradingJudge, Place, Question, Row, Run


@dataclass
class Likelihood(GradingJudge):
    """Compute the log-likelihood of each answer under the target, in nats per token.

    model   where the target is now; empty: the place that its recorded name leads to
    device  torch device to load the target on
    """

    model: str = ""
    device: str = "cpu"
    unsaid: ClassVar[frozenset[str]] = frozenset({"model", "device"})  # the model must be the run's own target
    protocol: Literal["likelihood"] = field(default="likelihood", init=False)
    _targets: dict[tuple[str, str], Target] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def model_id(self) -> str:
        """Scores name the target of each run: no other model ever grades."""
        return ""

    def prepare(self, place: Place) -> None:
        """Look at the target of every run; its weights are loaded once they are needed.

        Raises UserError for a run whose prompts or tokens cannot be had again, and for a model that is not its target.
        """
        for run in place.runs:
            if run.imported or run.context_fill:
                reason = f"{run.context_fill} tokens were put before its prompts"
                reason = "it was imported, without the token ids of its answers" if run.imported else reason
                raise UserError(
                    "prompts_not_available", f"likelihood cannot judge {run.name}: {reason}. Take another --judge."
                )
            path, recorded = self._path(run), run.target
            tokenizer = load_tokenizer(path)
            self._check_same("tokenizer", tokenizer.sha256, recorded.tokenizer_sha256, run)
            self._check_same("chat template", tokenizer.chat_template_sha256, recorded.chat_template_sha256, run)
            here = form_sha256(files_sha256(path), run.weights or "auto")
            self._check_same("weights", here or recorded.weights_sha256, recorded.weights_sha256, run)

    def grade(self, run: Run, rows: Sequence[Row], question: Question) -> float:
        """Mean log-likelihood per token of the last row's answer, in nats.

        Raises UserError where the prompt is not the one that was answered, and where the likelihood is no number.
        """
        target, row = self._target(run), rows[-1]
        answer = likelihood(target, _prompt_ids(target.tokenizer, row, question), row.token_ids)
        mean = answer.logprob / answer.tokens
        if not math.isfinite(mean):
            raise UserError(
                "likelihood_not_finite",
                f"The likelihood of {row.label}'s answer to prompt {row.prompt_id} of {row.suite} is {mean} in "
                f"{run.dtype}. Measure in another --dtype, or judge with another --judge.",
            )
        return mean

    def _target(self, run: Run) -> Target:
        """The target of a run, in its dtype."""
        key = run.target.weights_sha256, run.dtype
        if key not in self._targets:
            options = {"dtype": run.dtype, "device": self.device}
            scored = run.methods[0].engine is not None and run.attention not in ("", Target.attention)
            if run.executor == "transformers" or scored:
                target: Target = OpaqueTarget.load_whole(self._path(run), **options)
            else:
                target = Target.load(self._path(run), **options, weights=run.weights or "auto")
            self._check_same("weights", target.weights_sha256, run.target.weights_sha256, run)
            self._targets[key] = target
        return self._targets[key]

    def _path(self, run: Run) -> str:
        try:
            return str(bundled.resolve(self.model or run.target.name))
        except UserError as error:
            if self.model:
                raise
            raise UserError(
                "target_not_found",
                f"The target of {run.name} is needed; name its folder with --model and --judge likelihood. {error}",
            ) from error

    def _check_same(self, what: str, actual: str, recorded: str, run: Run) -> None:
        if actual != recorded:
            raise UserError(
                "other_target",
                f"'{self.model or run.target.name}' has other {what} than the target of {run.name}, "
                f"{run.target.name}: the likelihood would be that of another model. Name that target with --model.",
            )


def _prompt_ids(tokenizer: TargetTokenizer, row: Row, question: Question) -> list[int]:
    """The ids that the row answers; of a prompt that did not fit into the context, the last ones, as they were kept."""
    whole = tokenizer.encode_chat(talk(question.turns, question.first[:-1]))
    ids = whole[-row.prompt_tokens :] if len(whole) >= tokenizer.context_tokens else whole
    if len(ids) != row.prompt_tokens:
        raise UserError(
            "other_prompts",
            f"Prompt {row.prompt_id} of {row.suite} has {len(ids)} tokens, but {row.label} answered one of "
            f"{row.prompt_tokens}: the prompts at hand are not those of the run. Set BENCHCTL_DATA, or measure "
            "again.",
        )
    return ids
