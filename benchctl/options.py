"""Options as fields of a dataclass: those of a method in the text of a label, those of a verb on the command line."""

import math
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field, fields
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from benchctl.errors import UserError

Scalar = str | int | float | bool | None


@dataclass(frozen=True)
class Option:
    """An option of a method: its name, its kind in words ("a whole number") and its default as a label writes it."""

    name: str
    kind: str
    default: str


@dataclass(frozen=True)
class CommandLineOption:
    """How a settings field looks as an option of a verb; its type and default are those of the field.

    flags       `("--method", "-m")`; empty: the field's name, with `--no-` before it for a flag that is on by default
    least, most bounds of a number, both allowed; `above` is a lower bound that is not allowed itself
    """

    help: str
    flags: tuple[str, ...] = ()
    metavar: str | None = None
    least: float | None = None
    above: float | None = None
    most: float | None = None


def setting(default: Any, help: str, **details: Any) -> Any:
    """A dataclass field that is an option of a verb; `details` are fields of CommandLineOption."""
    return field(default=default, metadata={CommandLineOption: CommandLineOption(help, **details)})


def options_of(owner: type[Any]) -> tuple[Option, ...]:
    """The options of a dataclass, in the order declared; a field that `__init__` does not take is not an option."""
    hints = get_type_hints(owner)
    return tuple(
        Option(each.name, _kind(hints[each.name]), "" if each.default is MISSING else write_value(each.default))
        for each in fields(owner)
        if each.init
    )


def convert_options(name: str, owner: type[Any], texts: Sequence[tuple[str, str]]) -> dict[str, Scalar]:
    """Option texts of a label as values of the fields' types.

    Raises UserError for an option that `owner` does not have, listing those it has, and for a value that does not fit.
    """
    known = {option.name: option for option in options_of(owner)}
    hints = get_type_hints(owner)
    values: dict[str, Scalar] = {}
    for option, text in texts:
        if option not in known:
            listed = ", ".join(f"{each.name}={each.default}" for each in known.values())
            has = f"It has: {listed}." if known else "It has no options."
            raise UserError("unknown_option", f"{name} has no option '{option}'. {has}")
        try:
            values[option] = _read_value(hints[option], text)
        except (ValueError, KeyError):
            kind = known[option].kind
            raise UserError(
                "bad_option_value", f"{name}: option '{option}' cannot be '{text}'; it takes {kind}."
            ) from None
    return values


def changed_options(instance: Any) -> tuple[tuple[str, str], ...]:
    """The options of a dataclass instance that differ from their defaults, as text, in the order declared."""
    return tuple(
        (each.name, write_value(getattr(instance, each.name)))
        for each in fields(instance)
        if each.init and getattr(instance, each.name) != each.default
    )


def write_value(value: Scalar) -> str:
    """A value as a label writes it: `true`, `none`, `0.5`; reading it again gives the value back."""
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _read_value(hint: Any, text: str) -> Scalar:
    """Raises ValueError or KeyError for a text that is no value of the type."""
    if get_origin(hint) is Literal:
        choices: dict[str, Scalar] = {str(choice): choice for choice in get_args(hint)}
        return choices[text]
    if get_origin(hint) in (Union, UnionType):
        return None if text == "none" and NoneType in get_args(hint) else _read_value(_present(hint), text)
    if hint is bool:
        return {"true": True, "false": False}[text.lower()]
    if hint is float:
        if not math.isfinite(float(text)):
            raise ValueError
        return float(text)
    return int(text) if hint is int else text


def _present(hint: Any) -> Any:
    """`int` of `int | None`."""
    return next(part for part in get_args(hint) if part is not NoneType)


def _kind(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " or ".join(map(str, get_args(hint)))
    if get_origin(hint) in (Union, UnionType):
        return f"{_kind(_present(hint))} or none"
    return {int: "a whole number", float: "a number", bool: "true or false"}.get(hint, "a text")
