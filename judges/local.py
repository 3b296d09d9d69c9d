"""Judge with your own model: any decoder that benchctl can load, on this machine, without a key or a cost.

There are two ways to read scores. `logprob` generates nothing: it takes the probability of every valid reply ("8 7"; a
hundred of them, or ten for a single answer) from the tokens that spell it, and returns the mean score under these
probabilities, as G-Eval does (Liu et al. 2023, arXiv 2303.16634, equation 1). Such scores are finer than whole numbers
and deterministic. `generate` lets the model write a reply and reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, product
from pathlib import Path
from typing import ClassVar, Literal

from benchctl import bundled, registry
from benchctl.decoding.loop import DecodeRequest, decode
from benchctl.decoding.model.likelihood import reply_chances
from benchctl.decoding.model.loading import files_sha256
from benchctl.decoding.model.target import Target
from benchctl.decoding.model.tokenizer import TargetTokenizer, load_tokenizer
from benchctl.decoding.sampling import Sampling, check_temperature
from benchctl.errors import UserError
from benchctl.judging.judge import AskedJudge, Message, Place, Reply, Usage

_SCORES = range(1, 11)
_DIGITS = 16


@dataclass
class Local(AskedJudge):
    """Ask a model on this machine; no key and no cost.

    model        the judge: an embedded name, a folder or a hub id
    protocol     pairwise shows two answers, single shows one
    way          logprob (reads the probabilities of all scores) or generate (reads a written reply)
    temperature  of way=generate; at 0 repeated judgements are equal
    least_share  of way=logprob: least total probability of valid replies; below it no score is read; 0 reads all
    dtype        number format of its weights
    device       torch device to load it on
    """

    model: str = ""
    protocol: Literal["pairwise", "single"] = "pairwise"
    way: Literal["logprob", "generate"] = "logprob"
    temperature: float = 0.0
    least_share: float = 0.01
    dtype: Literal["float32", "bfloat16", "float16", "float64"] = "float32"
    device: str = "cpu"
    unsaid: ClassVar[frozenset[str]] = frozenset({"device"})
    _numbers: Iterator[int] = field(default_factory=count, init=False, repr=False, compare=False)
    _tokenizer: TargetTokenizer | None = field(default=None, init=False, repr=False, compare=False)
    _sha256: str = field(default="", init=False, repr=False, compare=False)
    _target: Target | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError("temperature is 0 or more")
        check_temperature(self.temperature)
        if self.temperature and self.way == "logprob":
            raise ValueError("logprob draws nothing, so it takes no temperature; it goes with way=generate")

    def prepare(self, place: Place) -> None:
        """Read the tokenizer. Raises UserError where there is no such model, and for one that cannot judge."""
        if not self.model:
            names = ", ".join(model.name for model in bundled.models())
            raise UserError(
                "no_judge_model", f"local needs a judge; name one with --model: a folder, a hub id, or one of {names}."
            )
        path = bundled.resolve(self.model)
        tokenizer = load_tokenizer(path)
        if tokenizer.is_encoder_decoder:
            raise UserError("judge_has_encoder", f"'{self.model}' has an encoder; name a --model without one.")
        for text in map(_text, self._possible()):
            if tokenizer.decode_text(tokenizer.encode_text(text)).strip() != text:
                raise UserError(
                    "judge_cannot_write_scores",
                    f"The tokenizer of '{self.model}' cannot write '{text}'; name another --model.",
                )
        self._tokenizer, self._sha256 = tokenizer, files_sha256(path)

    def reach(self) -> None:
        """Load the weights. Raises UserError where that fails."""
        if self._target is None:
            self._target = Target.load(bundled.resolve(self.model), dtype=self.dtype, device=self.device)

    @property
    def model_id(self) -> str:
        """The name of the model and the first digits of its hash: a folder may come to hold another one."""
        name = Path(self.model).resolve().name if Path(self.model).exists() else self.model
        return f"{name}@{(self._sha256 or self._loaded.weights_sha256)[:_DIGITS]}"

    @property
    def repeats_itself(self) -> bool:
        return not self.temperature

    @property
    def context_tokens(self) -> int:
        return self._prepared.context_tokens

    def prompt_tokens(self, messages: Sequence[Message]) -> int:
        return len(self._prompt_ids(messages))

    def ask(self, messages: Sequence[Message], sample: int) -> Reply:
        """Its reply; with logprob a line of mean scores."""
        prompt_ids = self._prompt_ids(messages)
        return self._weigh(prompt_ids) if self.way == "logprob" else self._write(prompt_ids, sample)

    @property
    def _prepared(self) -> TargetTokenizer:
        assert self._tokenizer is not None, "prepare comes first"
        return self._tokenizer

    @property
    def _loaded(self) -> Target:
        self.reach()
        assert self._target is not None
        return self._target

    def _prompt_ids(self, messages: Sequence[Message]) -> list[int]:
        chat = [{"role": message.role, "content": message.content} for message in messages]
        return self._prepared.encode_chat(chat)

    def _weigh(self, prompt_ids: Sequence[int]) -> Reply:
        target, possible = self._loaded, self._possible()
        replies = [target.tokenizer.encode_text(_text(scores)) for scores in possible]
        chances = reply_chances(target, prompt_ids, replies, target.tokenizer.begin_with_digit())
        usage, share = Usage(len(prompt_ids), 0), sum(chances)
        if share < self.least_share or not share:
            return Reply("", usage, f"only {share:.2g} of its probability is on replies of the form asked for")
        columns = zip(*possible, strict=True)
        sums = [sum(chance * score for chance, score in zip(chances, column, strict=True)) for column in columns]
        means = " ".join(f"{total / share:.4f}" for total in sums)
        return Reply(means, usage)

    def _write(self, prompt_ids: Sequence[int], sample: int) -> Reply:
        target, method = self._loaded, registry.build(registry.BASELINE)
        sampling = Sampling(self.temperature, seed=next(self._numbers))  # another try draws another reply
        said = decode(method, target, DecodeRequest(prompt_ids, self.reply_limit, sampling, seed=sample))
        ids = said.token_ids
        problem = "" if said.stop_reason == "stop" else f"cut off after {len(ids)} tokens"
        return Reply(target.tokenizer.decode_text(ids).strip(), Usage(len(prompt_ids), len(ids)), problem)

    def _possible(self) -> list[tuple[int, ...]]:
        """The scores of every reply that is asked for."""
        return list(product(_SCORES, repeat=2 if self.protocol == "pairwise" else 1))


def _text(scores: Sequence[int]) -> str:
    return " ".join(map(str, scores))
