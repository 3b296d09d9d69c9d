"""Tokens before every prompt, so that a method is measured at a length of context: what drafts and caches cost grows
with it.

The text was written for this project and says nothing that the prompts ask for; where more is needed than it has, it
begins again. It is the same for every prompt, label and session.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice

from benchctl.decoding.tokenizer import TargetTokenizer
from benchctl.errors import UserError

TEXT = """\
The harbour at the mouth of the river was built twice. The first pier was made of oak, and the winter storms took it
apart within a generation, beam by beam, until only a row of black stumps was left at low tide. The second one was made
of granite that came down from the hills on flat boats, and it has not moved since. Fishermen mend their nets on it when
the weather is dry, and children sit at its end and count the ferries that cross to the islands.

Behind the harbour there is a market. On Tuesdays farmers bring cheese, plums, honey and wool, and on Fridays people
come from the villages to sell what they have found in their attics: clocks without hands, maps of countries that have
changed their names, a box of brass buttons, a violin with two strings. An old man repairs umbrellas beside the
fountain. He says that he has never lost one, though he has found many.

The road to the north follows the river as far as the mill and then climbs through beech woods. In spring the ground
there is white with anemones; in autumn the leaves lie so deep that one hears a walker long before seeing him. At the
top stands a tower from which a watchman once looked for fires. It has ninety-one steps, a leaking roof, and a book in
which visitors write the date and the weather. Most of them write about the wind.

Trains reach the town from the east. The line was opened late, after an argument about a bridge that lasted eleven
years, and the station is larger than anyone has ever needed. Its clock is four minutes fast, on purpose, and nobody who
lives here has missed a train because of it. In the waiting room there is a stove, a timetable from another century, and
a cat that belongs to no one and is fed by everybody.

South of the town the land is flat. Ditches run straight to the horizon, herons stand in them, and the farms lie on low
mounds because the sea used to come in. The dykes are inspected twice a year by a committee whose members walk the whole
length in silence and then eat soup together. Whoever finds a hole made by a mole or a rabbit puts a small flag beside
it, and by the next morning somebody has filled it in.
"""


@dataclass(frozen=True)
class Filler:
    """The `ids` put before a prompt, behind the tokenizer's own first token `first` where a prompt begins with that."""

    ids: tuple[int, ...] = ()
    first: int | None = None

    def before(self, prompt_ids: Sequence[int]) -> list[int]:
        """The prompt with the filler.

        >>> Filler((7, 8), first=1).before([1, 5, 6]), Filler((7, 8), first=1).before([5, 6])
        ([1, 7, 8, 5, 6], [7, 8, 5, 6])
        """
        head = 1 if self.first is not None and list(prompt_ids[:1]) == [self.first] else 0
        return [*prompt_ids[:head], *self.ids, *prompt_ids[head:]]


def make_filler(tokenizer: TargetTokenizer, tokens: int) -> Filler:
    """A filler of exactly so many tokens. Raises UserError for more than leave room for a prompt and an answer."""
    if tokens == 0:
        return Filler()
    if tokens > tokenizer.context_tokens - 2:
        raise UserError(
            f"--context {tokens} leaves no room for a prompt: the target takes {tokenizer.context_tokens} tokens in "
            "all. Give fewer, or a --model with a longer context."
        )
    return Filler(tuple(islice(cycle(tokenizer.encode_text(TEXT)), tokens)), tokenizer.first_id)
