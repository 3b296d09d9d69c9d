"""Drafting and depth: acceptance under all of its names, over all steps and position by position, and layers run.

Position by position, a step that drafted is called a draft; its first position is 1, and in a tree a position is a
depth. The names are those of the field, and engines differ in what they mean by them:

* conditional, of the drafts in which all positions before were accepted: NVIDIA NeMo-Skills, speculative decoding,
  "conditional acceptance rate"; alpha of Leviathan et al. 2211.17192, section 3.1, if it is equal at all positions;
* unconditional, of all drafts: vLLM, spec_decode_num_accepted_tokens_per_pos / spec_decode_num_drafts. Its sum over the
  positions is the mean number of accepted tokens per draft;
* histogram, the share of drafts that accepted exactly so many tokens: NVIDIA AIPerf, acceptance_histogram.
"""

from dataclasses import replace
from typing import NamedTuple

import pandas as pd

from benchctl.analysis.frame.rows import COUNTER, POSITION
from benchctl.analysis.metrics.metric import Better, Column, Metric, Unit, column, ones, where_known, zeros


def _drafting(name: str, unit: Unit, top: str, bottom: str, cell: str = "{:.3f}", better: Better = "higher") -> Metric:
    """Over the answers whose counts are known: an engine may not tell those of every answer."""
    label, above, below = name.replace("_", " "), where_known(bottom, column(top)), where_known(bottom)
    return Metric(name, label, unit, better, above, below, table="Drafting and depth", cell=cell)


def _per_step(name: str, top: str) -> Metric:
    """Only where the steps of all answers are known. llama.cpp's are known where it drafted nothing, so the mean over
    known ones would be 1 however well it drafts."""
    above = where_known("passes", column(top), only_if_all=True)
    below = where_known("passes", only_if_all=True)
    return replace(_drafting(name, "tokens", top, "passes", "{:.2f}"), top=above, bottom=below)


BLOCK_EFFICIENCY = _per_step("block_efficiency", "committed_tokens")
MEAN_ACCEPTED = _per_step("mean_accepted_tokens", "accepted_tokens")
ACCEPTANCE_RATE = _drafting("acceptance_rate", "share", "accepted_tokens", "drafted_tokens")
# Engines call this the acceptance rate of a tree: of its nodes, of which only one branch can be accepted. The rate
# above divides by a tree's depth, so it is comparable with that of a chain. For a chain both are equal.
ROW_ACCEPTANCE = replace(
    ACCEPTANCE_RATE,
    name="row_acceptance",
    label="accepted share of drafted rows",
    bottom=column("draft_rows"),
    table="",
)
# Only where the baseline drafts too (`--over`).
ACCEPTANCE_DIFFERENCE = replace(
    ACCEPTANCE_RATE,
    name="acceptance_rate_difference",
    label="acceptance rate, difference to the baseline",
    less=(column("accepted_tokens_baseline"), column("drafted_tokens_baseline")),
    uses_baseline=True,
    table="vs. baseline",
    title="acceptance difference [95%]",
    cell="{:+z.3f}",
    interval=True,
)
DEPTH_FRACTION = _drafting("depth_fraction", "share", "depth_layers", "full_layers", better="lower")

_OUTSIDE = COUNTER + "outside_draft_vocabulary"


def _has_draft_vocabulary(frame: pd.DataFrame) -> bool:
    return _OUTSIDE in frame and bool(frame[_OUTSIDE].notna().any())


# Of drafters that score a part of the vocabulary: how many tokens it has, and the share of the answers' tokens that
# they could not draft.
DRAFT_VOCABULARY = Metric(
    "draft_vocabulary",
    "draft vocabulary",
    "tokens",
    "higher",
    column(COUNTER + "draft_vocabulary", 0.0),
    where_known(_OUTSIDE, ones),
    needs=_has_draft_vocabulary,
    table="Drafting and depth",
    cell="{:,.0f}",
)
OUTSIDE_DRAFT_VOCABULARY = replace(
    DRAFT_VOCABULARY,
    name="outside_draft_vocabulary",
    label="tokens outside the draft vocabulary",
    unit="share",
    better="lower",
    top=column(_OUTSIDE, 0.0),
    bottom=where_known(_OUTSIDE, column("new_tokens")),
    title="outside it",
    cell="{:.3f}",
)


class ByPosition(NamedTuple):
    """The metrics of drafts up to one depth: `conditional` and `unconditional` from position 1, `histogram` from 0."""

    conditional: tuple[Metric, ...]
    unconditional: tuple[Metric, ...]
    histogram: tuple[Metric, ...]


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
