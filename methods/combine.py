"""Two drafters in one method: the second where the first has no draft, the deeper draft, or both drafts as one tree.

SAM-Decoding and llama.cpp take the second drafter where the first has nothing (``when=first``); RASD, Quan et al. 2025,
arXiv 2503.03434, merges two trees by their common prefixes (``when=union``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from benchctl.decoding.adaptive import AdaptiveDepth
from benchctl.decoding.draft import Draft
from benchctl.decoding.method import (
    CarriesOver,
    Combines,
    Context,
    Exactness,
    Method,
    Outcome,
    Speculative,
    why_unsupported,
)
from benchctl.decoding.model.target import Target, TargetInfo
from benchctl.decoding.modules.trainable import Trainable
from benchctl.errors import UserError


@dataclass
class Begun(Context):
    """The context of a part that starts after the other one: the prompt has been run, and its first token chosen."""

    first: int = 0

    def pick(self, logits: object) -> int:
        return self.first


@dataclass
class Combine(Speculative, CarriesOver, Combines):
    """Draft with two methods, whose labels are ``first`` and ``then``: combine[first=suffix[factor=2],then=two_model].

    first  label of a drafter
    then   label of another
    when   first: `then` drafts where `first` has no draft; longer: the deeper draft of both, that of `first` where they
           are equally deep; union: both as one tree
    """

    first: str = "suffix"
    then: str = "two_model"
    when: Literal["first", "longer", "union"] = "first"
    needs_layers = False  # as far as its parts do not
    supports_encoder_decoder = True  # as far as its parts do, see `unsupported`
    parts: tuple[Speculative, ...] = field(default=(), init=False, repr=False, compare=False)

    def use_parts(self, parts: Sequence[Method]) -> None:
        if self.first == self.then:
            raise ValueError(f"first and then are both {self.first}; give two methods")
        self.parts = ()
        for label, part in zip((self.first, self.then), parts, strict=True):
            if not isinstance(part, Speculative):
                raise ValueError(f"{label} does not draft and verify; give a method that does, such as suffix")
            if part.exactness == "lossy":
                raise ValueError(f"{label} is lossy: it would verify drafts by a rule of its own; give an exact method")
            if isinstance(part, Combines):
                raise ValueError(f"{label} is a combination itself; give two methods that are not")
            own_step = type(part).step is not Speculative.step
            if isinstance(part, AdaptiveDepth) or own_step or not part.can_combine:
                raise ValueError(
                    f"{label} runs rows of its own in the target, learns from its own drafts alone, or verifies by a "
                    "rule of its own; give a drafter that does not"
                )
            if part.runs_rows and (self.when != "first" or not self.parts):
                raise ValueError(f"{label} runs rows of the target to draft; give it as `then`, with when=first")
            self.parts += (part,)
        first, then = self.parts
        if first.reads_features and then.runs_rows:
            raise ValueError(f"{self.first} reads states of layers that {self.then} runs to draft; give another method")
        if first.reads_features and then.reads_features:
            raise ValueError(f"{self.first} and {self.then} both read states of lower layers; give one that does")

    @property
    def exactness(self) -> Exactness:  # type: ignore[override]
        return "exact" if all(part.exactness == "exact" for part in self.parts) else "exact_greedy"

    @property
    def drafts_trees(self) -> bool:  # type: ignore[override]
        return self.when == "union" or any(part.drafts_trees for part in self.parts)

    @property
    def drafts_from_text(self) -> bool:  # type: ignore[override]
        return all(part.drafts_from_text for part in self.parts)

    def unsupported(self, target: TargetInfo) -> str | None:
        return next(filter(None, (why_unsupported(part, target) for part in self.parts)), None)

    def prepare(self, target: Target) -> None:
        for part in self.parts:
            part.prepare(target)

    @property
    def memory(self) -> Literal["prompt", "run"]:  # type: ignore[override]
        return "run" if any(part.memory == "run" for part in self._carrying) else "prompt"

    @property
    def store(self) -> list[Any]:
        """The stores of the parts that carry state over."""
        return [part.store for part in self._carrying]

    @store.setter
    def store(self, stores: list[Any]) -> None:
        for part, store in zip(self._carrying, stores, strict=True):
            part.store = store

    def new_store(self) -> list[object]:
        return [part.new_store() for part in self._carrying]

    @property
    def _carrying(self) -> list[CarriesOver]:
        return [part for part in self.parts if isinstance(part, CarriesOver)]

    def start(self, context: Context) -> int:
        """The prompt is run once: by the part that reads states of lower layers, else by one with trained modules."""
        one, other = sorted(self.parts, key=lambda part: (not part.reads_features, not isinstance(part, Trainable)))
        token = one.start(context)
        known = {each.name: getattr(context, each.name) for each in fields(Context)}
        other.start(Begun(**known, first=token))
        return token

    def draft(self, context: Context, budget: int) -> Draft:
        draft = self._drafted(0, context, budget)
        if self.when == "first":
            return draft if len(draft) else self._drafted(1, context, budget)
        other = self._drafted(1, context, budget)
        if self.when == "union":
            # Drawn tokens count as given: that is exact too, and accepts less.
            return Draft.merged((*draft.paths, *other.paths))
        longer = max(draft, other, key=lambda each: each.depth)
        # A drafter may end its draft because of the tokens it drew. So of the drafts that are chosen for their depth
        # the tokens do not have the probabilities that they were drawn with.
        return Draft(longer.tokens, longer.parents)

    def _drafted(self, number: int, context: Context, budget: int) -> Draft:
        rows, part = context.stream.rows, self.parts[number]
        draft = part.draft(context, budget)
        if (context.stream.rows != rows and not part.runs_rows) or any(draft.scratch):
            label = (self.first, self.then)[number]
            raise UserError("cannot_combine", f"{label} runs rows of its own in the target: measure it alone.")
        return draft

    def observe(self, context: Context, outcome: Outcome) -> None:
        for part in self.parts:
            part.observe(context, outcome)
