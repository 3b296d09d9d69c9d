"""What a whole model may learn beside plain text: to speak from lower layers, or to do with fewer of them.

Either makes another model of it, which modules trained for the one it began as do not serve.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from benchctl.decoding.modules.exit_policy import read_exits
from benchctl.errors import UserError
from benchctl.methods.skip_decode.schedule import FixedDepths
from benchctl.registry import Label, build, parse_label
from benchctl.training.modules.objective import LanguageModel, MultiExit, Objective
from benchctl.training.scheduled import ScheduledDepth

_OTHER = (
    " All weights learnt: this is another model than any it began as, and modules trained for that one do not serve it."
)
_EXITS = (
    " Layers {exits} learnt to speak through the final norm and head as the last layer does, with equal weights (LITE, "
    "arXiv:2310.18581)."
)
_DEPTHS = " Tokens of an answer learnt at the depths of {label} (SkipDecode, arXiv:2307.02628)."


@dataclass(frozen=True)
class Manner:
    """How a whole model learns.

    objective  made for the bytes of each token
    told       what a card adds, in words
    method     label of the method that it is for; empty for plain text
    facts      what else a resumed run must share with its beginning
    """

    objective: Callable[[Tensor], Objective] = LanguageModel
    told: str = ""
    method: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)


def manner_of(exits: str, depths: str, layers: int) -> Manner:
    """That of a model of so many layers, for numbers joined by + or the label of a method; at most one is given.

    Raises UserError for both, and for what a model of these layers cannot learn.
    """
    if exits and depths:
        raise UserError("give --exits or --depths, not both: each makes a model for a method of its own")
    if depths:
        return _of_depths(depths, layers)
    return _of_exits(exits, layers) if exits else Manner()


def _of_exits(text: str, layers: int) -> Manner:
    try:
        exits = read_exits(text)
    except ValueError as error:
        raise UserError(f"--{error}") from error
    if exits[-1] >= layers:
        raise UserError(f"--exits {text}: exit {exits[-1]} is not below the model's {layers} layers")
    joined = "+".join(map(str, exits))
    told = _EXITS.format(exits=joined) + _OTHER
    return Manner(lambda tokens: MultiExit(tokens, exits), told, f"early_exit[exits={joined}]", {"exits": joined})


def _of_depths(text: str, layers: int) -> Manner:
    method = build(text)
    if not isinstance(method, FixedDepths):
        raise UserError(f"--depths {text}: its depths are not fixed in advance; give skip_decode, with its options")
    if problem := method.beyond(layers):
        raise UserError(f"--depths {text}: {problem}")
    schedule, label = method.schedule(layers), _untrained(parse_label(text))
    told = _DEPTHS.format(label=label) + _OTHER
    return Manner(lambda tokens: ScheduledDepth(tokens, schedule), told, label, {"depths": str(schedule)})


def _untrained(label: Label) -> str:
    """The label without modules: what they would have learnt, the model itself has."""
    of_modules = ("adapters", "rank", "alpha", "modules")
    kept = [option for option in label.options if option[0] not in of_modules]
    return Label(label.name, (("adapters", "none"), *kept)).text
