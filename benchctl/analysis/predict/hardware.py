"""What a method's speed-up would be on other hardware: a model, from what the hardware can read and compute per second.

A pass takes as long as reading its weights and cache, or computing its rows, whichever is longer (the roofline:
Williams, Waterman, Patterson, Communications of the ACM 52, 2009). Tokens per step, rows and depths are taken to stay
as they were; drafting reads and computes like a small pass, so it stays as large a part of one as it was. A token that
leaves early reads the layers it ran and the whole head, once: a rule that asks the head at every exit reads more, and
rows do not say how much. Of answers decoded together each is taken to read its own share of the layers, though those
that leave early wait for the deepest. Launching kernels, commit and host cost nothing here: a real machine is slower,
and a method of many small passes loses more by that than the baseline.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchctl.analysis.predict.accounts import ITEM_BYTES, head_bytes
from benchctl.analysis.predict.speedup import Prediction
from benchctl.errors import UserError
from benchctl.records.schema import Run

SHORT_S = 1e-3  # a pass shorter than that is bound by launching its kernels, if it is not captured in a graph
_KNOWN = Path(__file__).parents[2] / "assets" / "hardware.json"
_OF_EXPERTS = ("olmoe", "mixtral")  # several rows go to several experts, so their pass reads more than that of one


@dataclass(frozen=True)
class Hardware:
    """What a machine can at most: GB/s read from memory, and 1e12 operations per second by dtype, none of them sparse.
    `source` says who says so."""

    name: str
    title: str
    bandwidth_gb_s: float
    tflops: Mapping[str, float]
    source: str


@dataclass(frozen=True)
class Passes:
    """The passes of a target: bytes of its weights, those of its head among them, bytes of keys and values per token of
    text, and operations that a row takes with the weights and with each token of text before it."""

    weight_bytes: float
    head_bytes: float
    cache_token_bytes: float
    row_flops: float
    row_token_flops: float

    @classmethod
    def of(cls, run: Run, dtype: str) -> "Passes":
        """In `dtype`, whatever the run had. A product with a weight is two operations, and so is one with a key or a
        value; heads together are as wide as the target.

        Raises UserError for runs that do not say what their steps read, and for mixtures of experts.
        """
        if run.target.family in _OF_EXPERTS:
            raise UserError(f"{run.target.name}: has experts, and more rows read more of them, which is not modelled.")
        if not run.step_bytes:
            raise UserError(
                f"{run.name}: does not say what a step reads: it was written before that was, or its target has a "
                "window or an encoder. Measure again with this version, or on another target."
            )
        weights = run.step_bytes / ITEM_BYTES[run.dtype]
        width = run.target.hidden_size * run.target.layers
        scale = ITEM_BYTES[dtype] / ITEM_BYTES[run.dtype]
        head = head_bytes(run) * scale
        return cls(run.step_bytes * scale, head, run.cache_token_bytes * scale, 2 * weights, 4 * width)

    def seconds(
        self, hardware: Hardware, dtype: str, rows: float, texts: int, text_tokens: float, depth: float = 1
    ) -> float:
        """One pass of `rows` rows, shared by as many `texts` of that length, through `depth`, a share of the layers,
        and the head.

        1,000 bytes of weights, 10 per token of text, 1 GB/s: 2 texts of 50 tokens take 2 us, however few their rows.
        If 200 of the bytes are the head's, half of the layers take 1.1 us.
        """
        weights = depth + (1 - depth) * self.head_bytes / self.weight_bytes
        read_bytes = weights * self.weight_bytes + depth * texts * text_tokens * self.cache_token_bytes
        flops = rows * (weights * self.row_flops + depth * text_tokens * self.row_token_flops)
        return max(read_bytes / (hardware.bandwidth_gb_s * 1e9), flops / (hardware.tflops[dtype] * 1e12))


@dataclass(frozen=True)
class Extrapolation:
    """A method on other hardware, by the model: speed-up of decoding, and seconds of a step of the baseline there."""

    label: str
    hardware: str
    dtype: str
    batch_size: int
    speedup: float
    baseline_step_s: float


def extrapolate(
    prediction: Prediction, run: Run, hardware: Hardware, dtype: str = "", batch_size: int = 1
) -> Extrapolation:
    """The prediction for other hardware, with `batch_size` answers decoded together, each accepting for itself.

    `dtype` is the run's, if not given. Raises UserError where the hardware does not know the dtype, see Passes.of, and
    for a method that drafts and was not profiled.
    """
    dtype = dtype or run.dtype
    if dtype not in hardware.tflops:
        known = ", ".join(hardware.tflops)
        raise UserError(f"{hardware.name} has no FLOP rate for {dtype}. Give --dtype one of: {known}.")
    costs = prediction.costs
    if costs.drafted_per_step and costs.draft_ratio is None:
        raise UserError(f"{prediction.label}: what drafting costs is not known. Measure with `benchctl run --profile`.")
    passes = Passes.of(run, dtype)

    def seconds(rows: float, depth: float = 1) -> float:
        return passes.seconds(hardware, dtype, rows * batch_size, batch_size, costs.text_tokens, depth)

    baseline_s = seconds(1)
    if costs.drafted_per_step:
        verify_s = sum(seconds(rows) * steps for rows, steps in costs.rows.items()) / sum(costs.rows.values())
        step_s = costs.drafted_per_step * (costs.draft_ratio or 0.0) * baseline_s + verify_s
    else:
        step_s = seconds(1, costs.depth_fraction)  # its rows are those that got to the last layer, so not all it ran
    speedup = costs.tokens_per_step * baseline_s / step_s
    return Extrapolation(prediction.label, hardware.name, dtype, batch_size, speedup, baseline_s)


def hardware_of(name: str) -> Hardware:
    """A machine by its name, or as a JSON file describes it. Raises UserError for one that is neither."""
    known: dict[str, Any] = json.loads(_KNOWN.read_text(encoding="utf-8"))
    if name in known:
        return Hardware(name=name, **known[name])
    path = Path(name)
    if path.suffix != ".json":
        raise UserError(
            f"'{name}' is no hardware known here. Name one of {', '.join(known)}, or a .json file like {_SHAPE}."
        )
    try:
        described = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise UserError(f"{path}: is not JSON. Write it like {_SHAPE}.") from error
    return _described(path, described)


_SHAPE = '{"bandwidth_gb_s": 20.5, "tflops": {"float32": 0.08}, "source": "benchctl doctor"}'


def _described(path: Path, described: Any) -> Hardware:
    fields = described if isinstance(described, dict) else {}
    tflops = fields.get("tflops")
    rates = tflops if isinstance(tflops, dict) else {}
    numbers = [fields.get("bandwidth_gb_s"), *rates.values()]
    if not (rates and all(map(_is_rate, numbers)) and rates.keys() <= ITEM_BYTES.keys()):
        raise UserError(f"{path}: does not describe hardware. Write it like {_SHAPE}.")
    source = str(fields.get("source", path))
    return Hardware(path.stem, str(fields.get("title", path.stem)), float(fields["bandwidth_gb_s"]), rates, source)


def _is_rate(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")
