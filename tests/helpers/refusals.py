"""Errors as tests check them: by id, and by the names and numbers in the message."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from benchctl.errors import UserError


@contextmanager
def refused(id: str, *facts: str) -> Iterator[None]:
    """Passes if the block raises a UserError of this id whose message contains each of `facts`."""
    with pytest.raises(UserError) as caught:
        yield
    assert caught.value.id == id
    for fact in facts:
        assert fact in caught.value.message


def error_of(call: Callable[[], object]) -> str:
    """The id of the UserError that ``call`` raises."""
    with pytest.raises(UserError) as caught:
        call()
    return caught.value.id
