"""Drafting and depth: acceptance under all of its names, over all steps and position by position, and layers run.

Position by position, a step that drafted is called a draft; its first position is 1, and in a tree a position is a
depth. The names are those of the field, and engines differ in what they mean by them:

* conditional, of the drafts in which all positions before were accepted: NVIDIA NeMo-Skills, speculative decoding,
  "conditional acceptance rate"; alpha of Leviathan et al. 2211.17192, section 3.1, if it is equal at all positions;
* unconditional, of all drafts: vLLM, spec_decode_num_accepted_tokens_per_pos / spec_decode_num_drafts. Its sum over the
  positions is the mean number of accepted tokens per draft;
* histogram, the share of drafts that accepted exactly so many tokens: NVIDIA AIPerf, acceptance_histogram.
"""

from dataclasses import dataclass

import pandas as pd

from benchctl.analysis.frame.rows import POSITION
from benchctl.analysis.metrics.metric import Column, Metric, column, zeros

_TABLE = "Drafting and depth"

BLOCK_EFFICIENCY = Metric(
    "block_efficiency",
    "block efficiency",
    "tokens",
    "higher",
    column("committed_tokens"),
    column("steps"),
    table=_TABLE,
    title="block efficiency",
    cell="{:.2f}",
)
MEAN_ACCEPTED = Metric(
    "mean_accepted_tokens",
    "mean accepted tokens",
    "tokens",
    "higher",
    column("accepted_tokens"),
    column("steps"),
    table=_TABLE,
    title="mean accepted tokens",
    cell="{:.2f}",
)
ACCEPTANCE_RATE = Metric(
    "acceptance_rate",
    "acceptance rate",
    "share",
    "higher",
    column("accepted_tokens"),
    column("drafted_tokens"),
    table=_TABLE,
    title="acceptance rate",
)
# Engines call this the acceptance rate of a tree: of its nodes, of which only one branch can be accepted. The rate
# above divides by a tree's depth, so it is comparable with that of a chain. For a chain both are equal.
ROW_ACCEPTANCE = Metric(
    "row_acceptance",
    "accepted share of drafted rows",
    "share",
    "higher",
    column("accepted_tokens"),
    column("draft_rows"),
)
# Only where the baseline drafts too (`--over`).
ACCEPTANCE_DIFFERENCE = Metric(
    "acceptance_rate_difference",
    "acceptance rate, difference to the baseline",
    "share",
    "higher",
    column("accepted_tokens"),
    column("drafted_tokens"),
    less=(column("accepted_tokens_baseline"), column("drafted_tokens_baseline")),
    uses_baseline=True,
    table="vs. baseline",
    title="acceptance difference [95%]",
    cell="{:+.3f}",
    interval=True,
)
DEPTH_FRACTION = Metric(
    "depth_fraction",
    "depth fraction",
    "share",
    "lower",
    column("depth_layers"),
    column("full_layers"),
    table=_TABLE,
    title="depth fraction",
)


@dataclass(frozen=True)
class ByPosition:
    """The metrics of drafts up to one depth: `conditional` and `unconditional` from position 1, `histogram` from 0."""

    conditional: tuple[Metric, ...]
    unconditional: tuple[Metric, ...]
    histogram: tuple[Metric, ...]

    @property
    def metrics(self) -> tuple[Metric, ...]:
        return (*self.conditional, *self.unconditional, *self.histogram)


def by_position(frame: pd.DataFrame) -> ByPosition:
    """The metrics up to the deepest draft of the frame's generations."""
    prefix = f"{POSITION}tested_"
    deepest = max((int(str(name).removeprefix(prefix)) for name in frame if str(name).startswith(prefix)), default=0)
    positions = range(1, deepest + 1)
    drafts = column("drafting_steps", 0.0)
    tested = {position: column(f"{prefix}{position}", 0.0) for position in positions}
    accepted = [drafts, *(column(f"{POSITION}accepted_{position}", 0.0) for position in positions), zeros]
    return ByPosition(
        tuple(_share("conditional", position, accepted[position], tested[position]) for position in positions),
        tuple(_share("unconditional", position, accepted[position], drafts) for position in positions),
        tuple(
            _share("histogram", tokens, _difference(accepted[tokens], accepted[tokens + 1]), drafts)
            for tokens in range(deepest + 1)
        ),
    )


def _share(name: str, number: int, top: Column, bottom: Column) -> Metric:
    return Metric(f"{name}_{number}", f"{name} {number}", "share", "higher", top, bottom)


def _difference(minuend: Column, subtrahend: Column) -> Column:
    return lambda pairs: minuend(pairs) - subtrahend(pairs)
