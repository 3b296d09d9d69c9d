"""What a draft model or modules learn from: the records as they are, or the target's own answers to their prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchctl.errors import UserError
from benchctl.training.chat import ChatFormat
from benchctl.training.frozen import FrozenTarget
from benchctl.training.generate import Answering
from benchctl.training.jobs import Surroundings, wait_for_first
from benchctl.training.mix import PROMPT_WEIGHT
from benchctl.training.options import TrainOptions
from benchctl.training.own_text import OwnText, Prompt, pick_prompts
from benchctl.training.packing import FULL, Document
from benchctl.training.recipe import Corpus, lesson_batches, lesson_data, lesson_rows
from benchctl.training.requests import user_requests
from benchctl.training.schedule import Stage
from benchctl.training.settings import Data

HELD_OUT_PROMPTS = 128  # of each held-out set


def stage_of(options: TrainOptions) -> Stage:
    """The one stage of such a run."""
    return Stage(1.0, options.row_tokens, options.micro_rows)


@dataclass(frozen=True)
class LessonText:
    """Makes the data of a run on a frozen target."""

    target: FrozenTarget
    chat: ChatFormat
    options: TrainOptions
    around: Surroundings

    def data(self, corpus: Corpus) -> Data:
        """`self_distil` prompts answered by the target, or every record once a pass where that is 0.

        Held-out text is the target's own too in the first case, answered greedily.
        """
        options, stage, weight = self.options, stage_of(self.options), self._prompt_weight
        if not options.self_distil:
            rows = (options.row_tokens, options.micro_rows, options.seed)
            return lesson_data(corpus, self.chat, *rows, prompt_weight=weight)
        prompts = self._prompts(corpus)
        how = Answering(options.answer_tokens, options.self_distil_temperature, options.seed)
        packed = lesson_rows(self._answered(prompts, how), self.chat, stage.row_tokens, options.seed, weight)
        held_out = {
            name: lesson_batches(documents, self.chat, stage, weight) for name, documents in self.greedy(corpus).items()
        }
        return Data([packed], held_out, self.chat.token_bytes())

    def greedy(self, corpus: Corpus) -> Mapping[str, list[Document]]:
        """The target's greedy answers to held-out prompts, by the name of the held-out set."""
        how = Answering(self.options.answer_tokens)
        return {
            name: self._answered(pick_prompts(records, HELD_OUT_PROMPTS, seed=0), how)
            for name, records in corpus.held_out.items()
            if any(record.prompt for record in records)
        }

    @property
    def fact(self) -> str:
        """What a resumed run must have asked for too."""
        options = self.options
        own = f"{options.self_distil} own answers of {options.answer_tokens} at {options.self_distil_temperature:g}"
        mixed = ", half to requests" if options.reference_mix else ""
        return f"{own + mixed if options.self_distil else 'records'}, prompts weigh {self._prompt_weight:g}"

    @property
    def told(self) -> str:
        """What was read, in words for a card."""
        if not self.options.self_distil:
            return "the data as they are"
        temperature = self.options.self_distil_temperature
        how = f"at temperature {temperature:g}" if temperature else "greedily"
        what = (
            "prompts, half of the data and half made by rule" if self.options.reference_mix else "prompts of the data"
        )
        return f"its own answers to at most {self.options.self_distil:,} {what}, written {how}"

    def _prompts(self, corpus: Corpus) -> list[Prompt]:
        """Raises UserError when there are none; fewer than were asked for are told.

        A prompt that is held out too is left out whatever its answer in the data: the target's own would be the same.
        """
        asked = self.options.self_distil
        held_out = {record.prompt for records in corpus.held_out.values() for record in records}
        records = [record for record in corpus.train if record.prompt not in held_out]
        made = user_requests(records, asked // 2, self.options.seed) if self.options.reference_mix else []
        requests = [request for request in made if request not in held_out]
        prompts = requests + pick_prompts(records, asked - len(requests), self.options.seed)
        if not prompts:
            raise UserError("the data hold no prompts that the target could answer; give chats, or --self-distil 0")
        if len(prompts) < asked and self.around.world.leads:
            self.around.notify(f"There are {len(prompts)} prompts; --self-distil {asked} asks for more.")
        return prompts

    @property
    def _prompt_weight(self) -> float:
        return 0.0 if self.options.answers_only else PROMPT_WEIGHT / FULL

    def _answered(self, prompts: Sequence[Prompt], how: Answering) -> list[Document]:
        """Answers that the first process writes and the others then read."""
        world = self.around.world
        folder = self.options.cache or self.options.out / "own_text"
        own = OwnText(self.target, self.chat, how, folder, self.around.clock)
        if not world.leads:
            wait_for_first(world, self.target.device)
            return own.documents(prompts, lambda answered: None)
        documents = own.documents(prompts, self.around.answered)
        wait_for_first(world, self.target.device)
        return documents
