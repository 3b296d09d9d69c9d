"""What files of serving benchmarks have in common: single requests, with times as the client measured them.

Such files hold no token ids. Steps and drafted tokens are those that the server reported for a request; they are kept
where they explain all tokens of the answer, and are never inferred from chunks or means.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct

from benchctl.errors import InvalidData
from benchctl.importing import Format
from benchctl.importing.published_answers import Answer
from benchctl.importing.published_lines import not_as_published

UNEXPLAINED = (
    "requests have counts of the server that do not explain their tokens, so steps and acceptance of their file are "
    "left out."
)
Count = Annotated[int, Meta(ge=0, le=10**9)]
_Content = TypeVar("_Content")


@dataclass(frozen=True)
class Requests:
    """The requests of a file, which has one load.

    name       a label that the file holds, or the model; "" where it holds neither
    at_once    the most requests that ran at the same time; None where the file does not show it
    written_s  seconds since 1970
    left_out   what could not be used, by why
    """

    format: Format
    name: str
    answers: tuple[Answer, ...]
    at_once: int | None
    written_s: float = 0.0
    left_out: Counter[str] = field(default_factory=Counter)


class Speculation(Struct, frozen=True):
    """vLLM's counts of a request, which aiperf and guidellm copy. Steps that drafted nothing are not among them."""

    num_draft_tokens: Count
    num_accepted_draft_tokens: Count
    num_spec_steps: Count | None = None


def with_counts(answer: Answer, counts: Speculation | None, left_out: Counter[str]) -> Answer:
    """The answer with the server's counts. Each step yields its accepted tokens and one more: where that is less than
    the answer after its first token, steps are missing, and the counts are left out. A server may count accepted tokens
    beyond the end of the answer; these are subtracted.

    >>> answer = Answer("a", 0, 0, "", new_tokens=8, ttft_s=0.1)
    >>> for accepted in (4, 5):
    ...     found = with_counts(answer, Speculation(6, accepted, 3), Counter())
    ...     print(found.steps, found.drafted, found.accepted)
    3 6 4
    3 6 4
    """
    if counts is None or answer.ttft_s is None:  # steps are counted after the first token
        return answer
    steps, accepted = counts.num_spec_steps, counts.num_accepted_draft_tokens
    if steps is not None and accepted <= counts.num_draft_tokens:
        accepted -= min(accepted, max(0, 1 + steps + accepted - (answer.new_tokens or 0)))
    if steps is None or answer.new_tokens != 1 + steps + accepted or accepted > counts.num_draft_tokens:
        left_out[UNEXPLAINED] += 1
        return answer
    return replace(answer, steps=steps, drafted=counts.num_draft_tokens, accepted=accepted)


def most_at_once(spans: Iterable[tuple[float, float]]) -> int:
    """The most of these times, from start to end, that overlap.

    >>> most_at_once([(0, 2), (2, 3), (2.5, 4)])
    2
    """
    running = most = 0
    for _, change in sorted((at, change) for start, end in spans for at, change in ((start, 1), (end, -1))):
        running += change
        most = max(most, running)
    return most


def decode(path: Path, text: bytes, kind: type[_Content], line: int = 1) -> _Content:
    """Raises InvalidData for what is not of this kind."""
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as error:
        raise not_as_published(path, line, str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidData(
            "no_object", f"{path}:{line}: is no JSON object ({error}). Give the file as written."
        ) from error


def only_means(path: Path, remedy: str) -> InvalidData:
    return InvalidData(
        "only_means", f"{path}: holds only means over all requests, so nothing can be compared by prompt. {remedy}"
    )


def several_loads(path: Path, results: int, remedy: str) -> InvalidData:
    return InvalidData("several_loads", f"{path}: holds {results} results, and a file is one session. {remedy}")
