"""Every reply of a judge, kept by content before anything else is done with it, so that nothing is paid for twice.

A cache is a folder with a JSONL file for each judge. Its lines hold hashes and replies, and neither questions nor
answers. It can be published: a user with the prompts and the results replays the judging offline.
"""

import hashlib
import json
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchctl.judging.judge import Message, Usage
from benchctl.records.reader import valid, whole_lines
from benchctl.records.schema import Count
from benchctl.records.writer import LineFile

_NAME_LENGTH = 60


@dataclass(frozen=True)
class Kept:
    """A reply in the cache. Several of one key are the tries of one question, the last of which may be readable."""

    key: str
    sample: int
    model: str
    template: str
    text: str
    problem: str
    prompt_tokens: Count | None
    reply_tokens: Count | None
    answered_at: str

    @property
    def usage(self) -> Usage | None:
        unknown = self.prompt_tokens is None or self.reply_tokens is None
        return None if unknown else Usage(self.prompt_tokens or 0, self.reply_tokens or 0)


def content_key(judge: str, model: str, template: str, messages: Sequence[Message], sample: int) -> str:
    """What a reply is kept by: sha256 of the judge's label, model, prompt, texts in the order shown, and sample."""
    chat = [[message.role, message.content] for message in messages]
    return hashlib.sha256(json.dumps([judge, model, template, chat, sample]).encode()).hexdigest()


@dataclass(frozen=True)
class Outcome:
    """The result of the tries of a question. `scores` are in the order in which the answers were shown; None, with the
    reason in `unreadable`, where no reply could be read. `fresh` are the tries of this judging."""

    scores: tuple[float, ...] | None
    unreadable: str
    tries: int
    reply: str
    fresh: tuple[Kept, ...] = ()


class Cache(LineFile):
    """The replies of one judge, read from its file and appended to it. May be used by several threads.

    Entering raises UserError where another judging uses the file or it cannot be written, and InvalidData for a line
    that is no reply; a torn last line is cut off, and `notify` is called.
    """

    def __init__(self, folder: Path, judge: str, *, notify: Callable[[str], None] = lambda notice: None) -> None:
        full = "Replies so far are kept; make room and judge again."
        path = cache_path(folder, judge)
        super().__init__(path, writer="`benchctl judge`", instead="Give another --cache.", full=full)
        self._notify = notify
        self._one_at_a_time = threading.Lock()
        self._kept: dict[str, list[Kept]] = {}

    def begin(self) -> None:
        """Read the replies that are there."""
        lines, notices = whole_lines(self.path)
        self._kept = self._read(lines)
        self.cut(sum(map(len, lines)))
        for notice in notices:
            self._notify(notice)

    def look(self) -> None:
        """Read what is there without holding the file, to tell what would have to be asked."""
        self._kept = self._read(whole_lines(self.path)[0]) if self.path.exists() else {}

    def _read(self, lines: Sequence[bytes]) -> dict[str, list[Kept]]:
        """The replies by key."""
        found: dict[str, list[Kept]] = {}
        for number, line in enumerate(lines, 1):
            kept = valid(Kept, self.path, number, line)
            found.setdefault(kept.key, []).append(kept)
        return found

    def tries(self, key: str) -> tuple[Kept, ...]:
        """The replies to a question so far, in the order they came."""
        return tuple(self._kept.get(key, ()))

    def keep(self, kept: Kept) -> None:
        """Hand a reply to the system at once. Raises UserError if the disk refuses it.

        Half a surrogate pair, which JSON can escape but UTF-8 cannot hold, becomes U+FFFD: no line may be unreadable.
        """
        kept = replace(kept, text=_storable(kept.text), problem=_storable(kept.problem))
        with self._one_at_a_time:
            self.append_lines(json.dumps(asdict(kept), ensure_ascii=True).encode() + b"\n")
            self._kept.setdefault(kept.key, []).append(kept)


def cache_path(folder: Path, judge: str) -> Path:
    """The file of a judge: its label as a file name, and a few digits, since two labels may become the same name."""
    name = re.sub(r"[^\w.-]+", "-", judge).strip("-")[:_NAME_LENGTH]
    return folder / f"{name}-{hashlib.sha256(judge.encode()).hexdigest()[:8]}.jsonl"


def _storable(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
