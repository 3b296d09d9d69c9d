"""How often every short run of tokens occurs in a set of texts, one of which still grows.

The index is a tree with one node for each run of tokens. A run that occurred once has no nodes below it, because the
text itself shows how it goes on; so the tree stays small, and a token costs about as many operations as the last tokens
match earlier ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

END = -1  # after each text that has ended


@dataclass(slots=True)
class Node:
    """A run of tokens.

    count     how often it occurs
    end       where the last token of its first occurrence is
    children  runs that are one token longer, by that token, in the order of their first occurrence; only those of a
              run that occurred twice are complete, see `Occurrences.children`
    """

    count: int
    end: int
    children: dict[int, Node] = field(default_factory=dict)


class Occurrences:
    """Counts of all runs of at most ``depth`` tokens.

    After ``append([7, 8, 7, 9])`` the run 7 occurs twice, and goes on with 8 once and with 9 once.
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.tokens: list[int] = []
        self._root = Node(0, -1)
        self._tails: list[Node] = []  # runs at the end of the text, of 1, 2, ... tokens, that occurred before

    def append(self, tokens: Iterable[int]) -> None:
        """Add tokens to the text that grows."""
        for token in tokens:
            self.tokens.append(token)
            end, tails = len(self.tokens) - 1, list[Node]()
            for node in (self._root, *self._tails[: self.depth - 1]):
                child = node.children.get(token)
                if child is None:
                    node.children[token] = Node(1, end)
                    continue
                if child.count == 1:
                    child.children = self.children(child)
                child.count += 1
                tails.append(child)
            self._tails = tails

    def close(self) -> None:
        """End the text: what is appended from now on begins another one."""
        self.tokens.append(END)
        self._tails = []

    def children(self, node: Node) -> dict[int, Node]:
        """The runs that are one token longer."""
        if node.count != 1:
            return node.children
        token = self.tokens[node.end + 1] if node.end + 1 < len(self.tokens) else END
        return {} if token == END else {token: Node(1, node.end + 1)}

    def following(self, node: Node, most: int) -> list[int]:
        """At most so many tokens that follow the first occurrence of a run in its text."""
        tokens = self.tokens[node.end + 1 : node.end + 1 + most]
        return tokens[: tokens.index(END)] if END in tokens else tokens

    def matches(self, text: Sequence[int]) -> list[Node]:
        """The last 1, 2, ... tokens of ``text``, as long as they occur and go on, but fewer than ``depth``."""
        found: list[Node] = []
        for size in range(1, min(self.depth, len(text))):
            node = self._find(text[-size:])
            if node is None or not self.children(node):
                break
            found.append(node)
        return found

    def _find(self, run: Sequence[int]) -> Node | None:
        node: Node | None = self._root
        for place, token in enumerate(run):
            if node is None:
                return None
            if node.count == 1:
                end = node.end + len(run) - place
                return Node(1, end) if self.tokens[node.end + 1 : end + 1] == run[place:] else None
            node = node.children.get(token)
        return node

    def __deepcopy__(self, memo: object) -> Occurrences:
        """Built again: copying a deep tree node by node would exceed Python's limit of recursion."""
        twin, begin = Occurrences(self.depth), 0
        for place, token in enumerate(self.tokens):
            if token == END:
                twin.append(self.tokens[begin:place])
                twin.close()
                begin = place + 1
        twin.append(self.tokens[begin:])
        return twin
