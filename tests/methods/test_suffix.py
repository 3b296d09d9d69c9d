"""Suffix decoding drafts what a count over all substrings gives, and its steps are those of a replay."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from random import Random

import pytest
from fixtures_run import make_settings
from refusals import refused
from runs import FIRST_FAST, NEW_TOKENS, answer, check_tree, pair, prepared, prompt_of

from benchctl.decoding.drafting.occurrences import END, Occurrences
from benchctl.decoding.drafting.texts import write_texts
from benchctl.decoding.loop import DecodeRequest, decode
from benchctl.decoding.method import Method
from benchctl.decoding.model.target import Target
from benchctl.decoding.model.tokenizer import load_tokenizer
from benchctl.measuring.check import check
from benchctl.methods.suffix import Suffix
from benchctl.registry import build

Run = tuple[int, ...]


@dataclass(frozen=True)
class Counts:
    """Every substring of some texts, with how often it occurs and where it first ends: (text, place)."""

    number: Counter[Run] = field(default_factory=Counter)
    first: dict[Run, Run] = field(default_factory=dict)

    @classmethod
    def of(cls, texts: Sequence[Sequence[int]], longest: int) -> Counts:
        counts = cls()
        for which, text in enumerate(texts):
            for end in range(1, len(text) + 1):
                for begin in range(max(end - longest, 0), end):
                    run = tuple(text[begin:end])
                    counts.number[run] += 1
                    counts.first.setdefault(run, (which, end))
        return counts

    def likelier(self, run: Run) -> tuple[object, ...]:
        """Sorts by count, then by length, then by the first occurrence."""
        return (-self.number[run], len(run), self.first[run])


@dataclass(frozen=True)
class Naive:
    """Scores and drafts over the list of all substrings: another algorithm, in fractions."""

    draft_tokens: int = 24
    depth: int = 24
    factor: float = 1.0
    offset: float = 0.0
    min_prob: float = 0.1
    min_match: int = 1
    tree: bool = False

    def best(self, text: Sequence[int], texts: Sequence[Sequence[int]], budget: int) -> tuple[Fraction, list[Run]]:
        """The score and the drafted paths, each from the root, in the order of their rows."""
        counts, best = Counts.of(texts, self.depth), (Fraction(0), list[Run]())
        for size in range(self.min_match, min(len(text), self.depth)):
            match = tuple(text[-size:])
            if match not in counts.number:
                break
            tokens = min(self.draft_tokens, int(size * self.factor + self.offset + 1e-6))
            paths = self._paths(counts, match, max(tokens, 0), min(budget, self.depth - size))
            score = Fraction(sum(counts.number[match + path] for path in paths), counts.number[match])
            if score >= best[0]:
                best = score, paths
        return best

    def _paths(self, counts: Counts, match: Run, tokens: int, depth: int) -> list[Run]:
        continued = [
            run
            for run in counts.number
            if run[: len(match)] == match
            and len(match) < len(run) <= len(match) + depth
            and counts.number[run] / counts.number[match] >= self.min_prob
        ]
        likely = [run[len(match) :] for run in sorted(continued, key=counts.likelier)]
        if self.tree:
            return likely[:tokens]
        chain: list[Run] = [()]
        while len(chain) <= tokens and (more := [path for path in likely if path[:-1] == chain[-1]]):
            chain.append(more[0])
        return chain[1:]

    def branches(self, text: list[int], budget: int) -> list[list[int]]:
        paths = self.best(text, [text], budget)[1]
        return [list(path) for path in paths] or [[]]


SETTINGS = (
    Naive(),
    Naive(tree=True),
    Naive(draft_tokens=5, depth=4, tree=True),
    Naive(draft_tokens=6, factor=2.0, offset=1.0, min_prob=0.0),
    Naive(factor=4.0, offset=-1.0, min_prob=0.3, min_match=2, tree=True),
    Naive(draft_tokens=16, offset=3.5, min_prob=0.5, depth=10),
)


def options_of(naive: Naive) -> str:
    return ",".join(f"{name}={str(value).lower()}" for name, value in vars(naive).items())


@pytest.mark.parametrize("naive", SETTINGS)
@pytest.mark.parametrize("seed", range(8))
def test_drafts_are_those_of_a_count_over_all_substrings(naive: Naive, seed: int) -> None:
    """From the text and from earlier answers; the text's own draft wins where scores are equal."""
    drawing = Random(seed)
    method = build(f"suffix[{options_of(naive)}]")
    assert isinstance(method, Suffix)
    vocabulary = range(drawing.randint(2, 4))
    others = [drawing.choices(vocabulary, k=drawing.randint(1, 20)) for _ in range(drawing.randint(0, 3))]
    text = drawing.choices(vocabulary, k=drawing.randint(1, 30))
    own, earlier = Occurrences(naive.depth), Occurrences(naive.depth)
    own.append(text)
    for other in others:
        earlier.append(other)
        earlier.close()
    for budget in (0, 1, 4, 30):
        candidates = [naive.best(text, texts, budget) for texts in ([text], others)]
        expected = max(candidates, key=lambda candidate: candidate[0])
        assert _draft(method, [own, earlier], text, budget) == expected


def _draft(method: Suffix, stores: Sequence[Occurrences], text: list[int], budget: int) -> tuple[Fraction, list[Run]]:
    score, draft = max((method._best(store, text, budget) for store in stores), key=lambda scored: scored[0])
    return Fraction(score).limit_denominator(10_000), draft.paths


@pytest.mark.parametrize(("family", "seed"), FIRST_FAST)
@pytest.mark.parametrize("naive", SETTINGS)
def test_steps_equal_replay(naive: Naive, family: str, seed: int) -> None:
    label = f"suffix[{options_of(naive)}]"
    check_tree(label, naive.branches, family, seed)


def drafted(method: Suffix, text: list[int], budget: int = 99) -> list[int]:
    """A chain from the text alone, without a target."""
    own = Occurrences(method.depth)
    own.append(text)
    return list(method._best(own, text, budget)[1].tokens)


def test_a_run_seen_once_before_is_half_as_likely_as_its_text() -> None:
    """7 8 occurs twice, and goes on once: the end of the text counts, and nothing follows it."""
    text = [7, 8, 1, 2, 3, 7, 8]
    assert drafted(Suffix(), text) == [1, 2]  # as many as the match has tokens
    assert drafted(Suffix(min_prob=0.5, factor=4.0), text) == [1, 2, 3, 7, 8]
    assert drafted(Suffix(min_prob=0.51), text) == []
    assert drafted(Suffix(min_match=3), text) == []


def test_the_longest_match_is_copied_from_its_first_occurrence() -> None:
    """Where too few tokens follow, those that followed the first occurrence of a shorter match are copied."""
    text = [5, 1, 2, 9, 5, 1, 2, 8, 3, 4, 6, 1, 2, 8]
    assert drafted(Suffix(rank="longest", draft_tokens=2), [*text, 3, 4, 5, 1, 2]) == [9, 5]
    assert drafted(Suffix(rank="longest", draft_tokens=2), text) == [3, 4]
    assert drafted(Suffix(rank="longest", draft_tokens=9), text) == [3, 4, 6, 1, 2, 8]
    assert drafted(Suffix(rank="longest", draft_tokens=9, min_match=4), text) == []


def _accepted(method: Method, prompt: list[int], store: object) -> list[int]:
    models = pair("llama")
    got = decode(method, models.target, DecodeRequest(prompt, NEW_TOKENS, store=store))
    assert list(got.token_ids) == answer("llama", 0, len(prompt))
    return [step.accepted for step in got.steps]


def test_earlier_answers_are_drafted_from_and_copies_of_the_store_give_the_same_steps() -> None:
    method = prepared("suffix[memory=run]", pair("llama").target)
    store = Occurrences(24)
    cold = _accepted(method, prompt_of(13), store)
    first, second = copy.deepcopy(store), copy.deepcopy(store)
    warm = _accepted(method, prompt_of(13), first)
    assert _accepted(method, prompt_of(13), second) == warm
    assert len(warm) < len(cold)


def test_the_store_holds_whole_answers_and_no_prompts() -> None:
    method = prepared("suffix[memory=run]", pair("llama").target)
    store = Occurrences(24)
    for prompt_tokens in (13, 5, 1):
        _accepted(method, prompt_of(prompt_tokens), store)
    answers = [answer("llama", 0, prompt_tokens) for prompt_tokens in (13, 5, 1)]
    assert store.tokens == [END, *answers[0], END, *answers[1], END, *answers[2]]


def test_the_store_ends_an_answer_at_its_stop_token() -> None:
    """Also where tokens behind it were accepted: the second answer drafts the first one, which has no stop token."""
    models, text = pair("llama"), answer("llama", 0, 13)
    behind = 0
    for stop in sorted(set(text) - {text[0]}):
        method, store = prepared("suffix[memory=run]", models.target), Occurrences(24)
        _accepted(method, prompt_of(13), store)
        target = models.with_stops(stop)
        stopped = decode(method, target, DecodeRequest(prompt_of(13), NEW_TOKENS, store=store))
        assert store.tokens == [END, *text, END, *stopped.token_ids]
        behind += stopped.steps[-1].rows > len(stopped.steps[-1].tokens)
    assert behind > 0


@pytest.fixture
def texts(run_folder: Path, tmp_path: Path) -> Path:
    """A file of texts of the target's tokenizer."""
    write_texts(tmp_path / "texts.jsonl", load_tokenizer(run_folder / "target").sha256, [[5, 6, 7], [6, 7, 6]])
    return tmp_path / "texts.jsonl"


def check_label(label: str, run_folder: Path) -> None:
    """What `benchctl run` checks before it reads weights."""
    check(replace(make_settings(run_folder, run_folder / "out.jsonl"), methods=(label,)), lambda notice: None)


def test_a_file_of_texts_is_drafted_from(texts: Path, run_folder: Path) -> None:
    check_label(f"suffix[texts={texts}]", run_folder)
    target = Target.load(str(run_folder / "target"), dtype="float64")
    method = Suffix(texts=str(texts))
    method.prepare(target)
    assert method._fixed.tokens == [5, 6, 7, END, 6, 7, 6, END]
    assert list(method._best(method._fixed, [9, 6, 7], 9)[1].tokens) == [6]
    got, plain = (
        decode(each, target, DecodeRequest([5, 6, 7, 6, 7], 12)) for each in (method, build("autoregressive"))
    )
    assert got.token_ids == plain.token_ids


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize("lines", [0, 1, 2])
def test_a_torn_file_of_texts_is_refused_before_weights_are_read(lines: int, texts: Path, run_folder: Path) -> None:
    texts.write_text("".join(texts.read_text().splitlines(keepends=True)[:lines]))
    with refused("texts_not_readable"):
        check_label(f"suffix[texts={texts}]", run_folder)


@pytest.mark.parametrize("line", ["[5, 6", '{"ids": [5]}', '["5"]', "[true]", "[-1]", "[1000000]", "5", "\xff"])
def test_a_line_that_is_no_list_of_ids_is_refused(line: str, texts: Path, run_folder: Path) -> None:
    header, first, _ = texts.read_text().splitlines()
    texts.write_bytes(f"{header}\n{first}\n{line}\n".encode("latin-1"))
    with refused("texts_not_readable"):
        check_label(f"suffix[texts={texts}]", run_folder)


@pytest.mark.usefixtures("no_weights")
def test_texts_of_another_tokenizer_are_refused_before_weights_are_read(texts: Path, run_folder: Path) -> None:
    write_texts(texts, "0" * 64, [[5, 6, 7]])
    with refused("texts_of_other_tokenizer"):
        check_label(f"suffix[texts={texts}]", run_folder)


def test_a_missing_file_of_texts_is_refused(run_folder: Path) -> None:
    with refused("texts_not_readable"):
        check_label("suffix[texts=nowhere.jsonl]", run_folder)
