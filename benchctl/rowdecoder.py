"""Rows from their lines in a quarter of the time that their checks take on the usual way, which is left to what fails.

Nothing is read here that the records refuse, nor as another value: the types are theirs, translated, and what they
check beyond types is checked by the same function. Whatever this decoder does not take, it gives no reason for: the
records are asked then, so that they alone decide, and every message is theirs.
"""

from collections.abc import Mapping
from dataclasses import asdict
from types import GenericAlias, NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from msgspec import Meta, Struct, defstruct
from msgspec.json import Decoder
from msgspec.structs import asdict as fields_of

from benchctl.records import Row, Totals, row_problem


def decoded(line: bytes) -> Row | None:
    """The row in a line, or None where the records have to be asked what is wrong with it, if anything is."""
    try:
        fields = _DECODER.decode(line)
    except ValueError:
        return None
    row = object.__new__(Row)
    vars(row).update(fields_of(fields))  # all are checked, and a frozen row takes them in no other way unchecked
    return None if row_problem(row) else row


def _struct() -> type[Struct]:
    """The fields of a row as this decoder has them: the same names, types and defaults, and no others."""
    hints = get_type_hints(Row, include_extras=True)
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    for name, field in Row.__pydantic_fields__.items():  # type: ignore[attr-defined]
        default = () if field.is_required() else (field.get_default(call_default_factory=True),)
        fields.append((name, _translated(hints[name]), *default))
    return defstruct("RowFields", fields, kw_only=True, forbid_unknown_fields=True, gc=False)


def _translated(hint: Any) -> Any:
    """A type of the records with its bounds as this decoder takes them. Fails for one that it could not hold to.

    Totals, which imported files alone have, are left to the records.
    """
    kind, parts = get_origin(hint), get_args(hint)
    if kind is Annotated:
        inner, field = parts
        bounds = {name: bound for one in field.metadata for name, bound in asdict(one).items() if name != "strict"}
        return Annotated[_translated(inner), Meta(**bounds)] if bounds else _translated(inner)
    if kind in (Union, UnionType):
        return Union[tuple(map(_translated, parts))]  # noqa: UP007
    if kind is tuple:
        return GenericAlias(tuple, (_translated(parts[0]), ...))
    if kind is Mapping:
        return GenericAlias(dict, (str, _translated(parts[1])))
    if hint is Totals:
        return None
    if hint in (str, int, float, NoneType) or kind is Literal:
        return hint
    raise TypeError(f"{hint}: no type of rows that lines are decoded to")


_DECODER: Final = Decoder(_struct())
