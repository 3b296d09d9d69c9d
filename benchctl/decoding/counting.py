"""What a step did, counted by the harness: a method returns tokens, and no figure about itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from benchctl.decoding.kv.stream import LayerRun
from benchctl.decoding.method import Context, Outcome
from benchctl.errors import UserError


@dataclass(frozen=True)
class Step:
    """One call of `Method.step`.

    tokens    committed ids: the accepted ones, then the bonus token
    drafted   tokens along the deepest branch of the draft that was verified; none behind a stop token
    accepted  drafted tokens kept
    rows      rows that finished the target's last layer
    layers    for each committed token: with a draft all layers, otherwise those that ran in this step, layers that
              earlier tokens had put off included; detours count half per sublayer, spread over the step's tokens
    passes    through the target: with a draft the runs of the last layer, otherwise the runs of the layer that ran most
              often; detours do not count
    """

    tokens: tuple[int, ...]
    drafted: int
    accepted: int
    rows: int
    layers: tuple[int, ...]
    passes: int = 1


def count_step(context: Context, tokens: Sequence[int], runs: Sequence[LayerRun]) -> Step:
    """The step that committed ``tokens`` by these runs. Raises UserError for tokens that they cannot have given."""
    layers = context.target.layers
    outcomes, context.verified[:] = list(context.verified), []
    detours = sum(run.rows * run.sublayers for run in runs if run.sublayers is not None) // 2
    runs = [run for run in runs if run.sublayers is None]
    rows = sum(run.rows for run in runs if run.last == layers)
    if outcomes:
        passes = sum(run.last == layers for run in runs)
        ran = layers * len(tokens)
    else:
        passes = max(_by_layer(((run.first, run.last, 1) for run in runs), layers))
        ran = sum(run.rows * (run.last - run.first) for run in runs)
    share, rest = divmod(ran + detours, max(len(tokens), 1))
    depths = tuple(share + (index < rest) for index in range(len(tokens)))
    step = Step(
        tuple(tokens),
        _drafted(outcomes, context.target.stop_ids),
        sum(len(outcome.verdict.path) for outcome in outcomes),
        rows,
        depths,
        passes,
    )
    if not tokens or not all(type(token) is int for token in tokens):
        raise UserError("no_token_ids", f"a step returned {tokens!r}; it must return the ids of at least one token")
    if outcomes and step.tokens != tuple(token for outcome in outcomes for token in outcome.tokens):
        raise UserError("tokens_not_verified", "a step returned other tokens than those that it verified")
    if len(tokens) > step.accepted + passes or (outcomes and rows < step.accepted + passes):
        raise UserError(
            "more_tokens_than_passes",
            f"a step returned {len(tokens)} tokens from {rows} rows in {passes} passes and {step.accepted} accepted "
            "drafts: run each token through context.stream",
        )
    return step


def _drafted(outcomes: Sequence[Outcome], stop_ids: frozenset[int]) -> int:
    """Drafted tokens of the verifications of a step; what stands behind a stop token is no draft of the answer."""
    drafted = 0
    for outcome in outcomes:
        drafted += outcome.draft.depth_to(stop_ids)
        if not stop_ids.isdisjoint(outcome.tokens):
            break
    return drafted


def check_cache(context: Context, kept_tokens: int) -> None:
    """Raises UserError where the stream does not hold exactly the rows of the text: all tokens but the last.

    ``kept_tokens`` is the length of the text before the loop cut it.
    """
    held, text = context.stream.text, context.tokens[:-1]
    if len(held) != kept_tokens - 1 or held[: len(text)] != text:
        raise UserError(
            "cache_not_text",
            f"after the answer the cache holds {len(held)} rows, and the text has {kept_tokens - 1} tokens before its "
            "last: commit with stream.keep what was run, and nothing else",
        )


def check_all_layers(context: Context, runs: Iterable[LayerRun]) -> None:
    """Raises UserError where some layer ran fewer rows than the text has: no method that claims exactness does."""
    whole = ((run.first, run.last, run.rows) for run in runs if run.sublayers is None)
    cache, ran = context.stream.cache, _by_layer(whole, context.target.layers)
    held = [length - len(absent) for length, absent in zip(cache.lengths, cache.absent, strict=True)]
    rows = list(map(min, ran, held))
    needed = len(context.tokens) - 1
    if min(rows) < needed:
        raise UserError(
            "layers_skipped",
            f"the method claims the target's own answers, but layer {rows.index(min(rows)) + 1} ran {min(rows)} rows "
            f"for a text of {needed}: verify each token with all layers, or set exactness to lossy",
        )


def _by_layer(spans: Iterable[tuple[int, int, int]], layers: int) -> list[int]:
    """Of each layer the sum of the amounts of all spans (first, last, amount) that contain it."""
    changes = [0] * (layers + 1)
    for first, last, amount in spans:
        changes[first] += amount
        changes[last] -= amount
    return list(accumulate(changes[:layers]))
