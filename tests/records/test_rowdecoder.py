"""What rows are decoded with is as strict as the records, and makes the same of them: it is held against them."""

import json
import random
from dataclasses import fields, replace
from typing import Annotated, Any

import pytest
from fixtures_records import RUN, baseline_row, batch, drafted_row, exiting_row, failed
from msgspec.json import Decoder
from pydantic import AfterValidator, Field, ValidationError

from benchctl.records import reader as rowdecoder
from benchctl.records.reader import decoded
from benchctl.records.schema import ROW, Row, Totals, to_line

LARGE = replace(
    drafted_row(steps=1),
    text='"quoted" \\ é 🙂 \u2028 \x7f',
    mode="profile",
    phases={"draft": (0.5,), "verify": (1e-300,)},
    counters={"loads": 3.0, "": 0.0},
    conditions={"clock_mhz": -1.5e-9},
    fidelity={"scored_tokens": 2.0, "target_agreed_tokens": 1.0, "logprob": -123.45600000000002},
    energy_j=0.1,
    peak_memory_bytes=2**70,
    reserved_memory_bytes=0,
    margin=-0.0,
    noise=5e-324,
    repeat=-1,
    invalid="throttled",
)
ROWS = [
    baseline_row(),
    drafted_row(),
    exiting_row(),
    failed(baseline_row()),
    *batch(baseline_row("p0", tokens=3), baseline_row("p1", tokens=5)),
    LARGE,
]
IMPORTED = replace(failed(baseline_row()), error=None, totals=Totals(new_tokens=5, steps=2, wall_s=0.5))
VALUES = """
    0 -0 -0.0 1 2 1.0 1e3 1E3 1e-3 1.5 01 1. .5 +1 - -1 1e999 -1e999 1e308 1.7976931348623159e308 NaN Infinity -Infinity
    nan true false null "1" "" "row" "run" "free" "stop" "lossy" "\\ud800" "\\ud83d\\ude00" "\\u0000" "\\x" 'a' []
    [0] [1] [-1] [1.5] [true] [null] ["p0"] ["p0","p0"] [[]] [1,] [1e999] [NaN] {} {"a":1} {"a":-1} {"a":1e999}
    {"a":[1]} {"a":[-1]} {"a":null} {"a":1,"a":2} {1:1} 18446744073709551616 9223372036854775808 4.9e-324 1e-400 0x1
    1_0 １
"""
ODD = VALUES.split()


def made_by_the_records(line: bytes) -> Row | None:
    try:
        return ROW.validate_json(line)
    except ValidationError:
        return None


def assert_as_strict(line: bytes) -> bool:
    """That whatever is decoded is what the records make of it, down to each type; whether it is."""
    found = decoded(line)
    if found is None:
        return False
    made = made_by_the_records(line)
    assert made is not None, line
    assert (found, repr(found), to_line(found)) == (made, repr(made), to_line(made)), line
    return True


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.label} of {row.prompt_id}")
def test_a_row_is_decoded_as_it_was_written(row: Row) -> None:
    found = decoded(to_line(row))
    assert found == row and repr(found) == repr(row)
    assert assert_as_strict(json.dumps(json.loads(to_line(row)), ensure_ascii=True, indent=1).encode())


def test_fields_that_are_not_written_have_what_the_records_give_them() -> None:
    told = {"suite", "prompt_id", "turn", "label", "repeat", "session", "order", "prompt_tokens", "error"}
    line = json.loads(to_line(failed(baseline_row())))
    short = json.dumps({name: value for name, value in line.items() if name in told}).encode()
    assert assert_as_strict(short)
    found, other = decoded(short), decoded(short)
    assert found is not None and other is not None and found.counters is not other.counters


@pytest.mark.parametrize("name", [field.name for field in fields(Row)] + ["wonder"])
def test_nothing_odd_is_taken_that_the_records_refuse(name: str) -> None:
    taken = 0
    for row in (*ROWS, IMPORTED):
        line = json.loads(to_line(row))
        assert_as_strict(json.dumps({key: value for key, value in line.items() if key != name}).encode())
        text = json.dumps(line | {name: "HERE"})
        taken += sum(assert_as_strict(text.replace('"HERE"', odd).encode()) for odd in ODD)
    assert bool(taken) == (name != "wonder")


@pytest.mark.parametrize("name", ["token_ids", "step_s", "committed", "drafted", "accepted", "rows", "layers"])
@pytest.mark.parametrize("at", [0, -1])
def test_nothing_odd_is_taken_within_a_list(name: str, at: int) -> None:
    line = json.loads(to_line(drafted_row()))
    line[name][at] = "HERE"
    text = json.dumps(line)
    assert any([assert_as_strict(text.replace('"HERE"', odd).encode()) for odd in ODD])


def test_lines_with_a_few_bytes_changed_are_taken_only_as_the_records_take_them() -> None:
    chance, taken = random.Random(0), 0
    lines = [to_line(row)[:-1] for row in ROWS]
    bytes_put = b'0123456789-+.eE,:[]{}"\\ \x00\x0b\xff\xc3truefalsn'
    for _ in range(6000):
        line = bytearray(chance.choice(lines))
        for _ in range(chance.choice((1, 1, 2, 3))):
            at = chance.randrange(len(line))
            line[at : at + chance.choice((0, 1, 1, 2))] = bytes([chance.choice(bytes_put)])
        taken += assert_as_strict(bytes(line))
    assert taken > 100  # else nothing was compared


@pytest.mark.parametrize(
    "line",
    [b"", b"\n", b"\xef\xbb\xbf" + to_line(ROWS[0]), to_line(ROWS[0])[:-9], to_line(ROWS[0]) * 2, to_line(RUN)]
    + [b"[" * 100_000, b'{"phases":' + b'{"a":' * 100_000, b"null", b"\xff\xfe"],
)  # fmt: skip
def test_what_is_no_row_is_left_to_the_records(line: bytes) -> None:
    assert decoded(line) is None


def test_a_row_that_does_not_add_up_is_left_to_the_records() -> None:
    line = to_line(drafted_row())
    assert decoded(line) is not None
    for old, new in ((b'"layers":[12,', b'"layers":['), (b'"accepted":[1,', b'"accepted":[3,'), (b"identical", b"tie")):
        assert old in line and decoded(line.replace(old, new)) is None


def test_totals_of_imported_files_are_left_to_the_records() -> None:
    assert decoded(to_line(IMPORTED)) is None and made_by_the_records(to_line(IMPORTED)) == IMPORTED


def test_a_bound_of_the_records_is_held_to() -> None:
    decoder = Decoder(rowdecoder._translated(Annotated[int, Field(ge=1, le=6, multiple_of=3)]))
    assert [decoder.decode(b"3"), decoder.decode(b"6")] == [3, 6]
    for beyond in (b"0", b"9", b"5"):
        with pytest.raises(ValueError):
            decoder.decode(beyond)


@pytest.mark.parametrize(
    "hint",
    [
        list[int],
        bytes,
        Any,
        Annotated[str, Field(pattern="b")],
        Annotated[int, AfterValidator(abs)],
        Annotated[int, Field(ge=0), AfterValidator(abs)],
    ],
)
def test_a_type_that_cannot_be_held_to_is_refused_at_once(hint: Any) -> None:
    """A check that was left out would let through what the records refuse."""
    with pytest.raises((TypeError, ValueError, AttributeError)):
        rowdecoder._translated(hint)


def test_the_records_check_nothing_of_a_row_but_types_and_what_the_decoder_asks_too() -> None:
    """A validator that is added to Row must be a part of `row_problem`."""
    checks = Row.__pydantic_decorators__  # type: ignore[attr-defined]
    assert list(checks.model_validators) == ["_adds_up"]
    assert not checks.field_validators and not checks.validators and not checks.root_validators
