"""One generation becomes one row: times from the clock given, tokens from the loop, failures without numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from fakes_measuring import Broken, FakeClock, Lying, Plain, one, task
from fixtures_run import timeless
from runs import prepared
from tiny import tiny_folder

from benchctl.decoding.method import Context, Method
from benchctl.decoding.model.target import Target
from benchctl.decoding.modules.draft_vocabulary import write_draft_vocabulary
from benchctl.decoding.sampling import Sampling
from benchctl.measuring.measure import DecodingConfig, Measurer, answer_seed
from benchctl.measuring.prompts.files import Prompt
from benchctl.measuring.verdict import Judgement, Referee
from benchctl.methods.combine import Combine
from benchctl.methods.prompt_lookup import PromptLookup
from benchctl.methods.two_model import TwoModel

GREEDY = DecodingConfig(max_new_tokens=4, sampling=Sampling())
PROMPT = Prompt("p", "koala", ("Say something.",))
TALK = Prompt("t", "mt-bench", ("Say something.", "And now?"))


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return Target.load(tiny_folder(tmp_path_factory.mktemp("target"), stop_ids=()), dtype="float64")


@pytest.fixture
def measurer(target: Target) -> Callable[..., Measurer]:
    def make(prompt: Prompt = PROMPT, config: DecodingConfig = GREEDY, **methods: Method) -> Measurer:
        made = Measurer(target, {"plain": Plain()} | methods, "plain", config, FakeClock())
        made.begin()
        return made

    return make


Make = Callable[..., Measurer]


def test_a_row_holds_the_times_between_marks_and_the_targets_best_tokens(measurer: Make, target: Target) -> None:
    """The clock moves on by one second a reading: one before prefill, one after it, one after each step."""
    row = one(measurer(), task("plain", order=7))
    assert (row.ttft_s, row.step_s) == (1.0, (1.0, 1.0, 1.0))
    assert (row.committed, row.drafted, row.accepted, row.rows) == ((1, 1, 1), (0, 0, 0), (0, 0, 0), (1, 1, 1))
    assert row.layers == (3, 3, 3, 3)
    assert row.text == target.tokenizer.decode_text(row.token_ids)
    text = target.tokenizer.encode_chat([{"role": "user", "content": "Say something."}])
    assert row.prompt_tokens == len(text)
    for token in row.token_ids:
        assert token == int(target.next_logits(text).argmax())
        text.append(token)
    assert (row.stop_reason, row.order, row.verdict, row.error) == ("length", 7, None, None)
    assert row.peak_memory_bytes


def test_a_method_is_identical_or_lossy_from_its_first_other_token_on(measurer: Make) -> None:
    run = measurer(same=Plain(), lying=Lying())
    one(run, task("plain"))
    assert one(run, task("same")).verdict == "identical"
    row = one(run, task("lying"))
    assert (row.verdict, row.first_divergence) == ("lossy", 1)
    assert row.margin is not None and row.margin > 0 and row.fidelity["gap"] > 1e-3


def test_a_failed_generation_is_a_row_with_an_error_and_no_numbers_and_changes_no_other(measurer: Make) -> None:
    """A published script let the time of the prompt before enter the average when a prompt failed."""
    undisturbed = one(measurer(), task("plain"))
    run = measurer(broken=Broken())
    row = one(run, task("broken", order=3))
    assert row.error == "RuntimeError: out of luck"
    assert (row.token_ids, row.step_s, row.ttft_s, row.verdict, row.order) == ((), (), None, None, 3)
    assert timeless([one(run, task("plain"))]) == timeless([undisturbed])


@dataclass
class Hungry(Plain):
    """Asks for more memory than there is."""

    def step(self, context: Context) -> tuple[int]:
        raise MemoryError


def test_a_warm_up_that_runs_out_of_memory_is_no_missing_generation(measurer: Make) -> None:
    """A run whose warm-up alone lacked memory ended with exit code 1."""
    run = measurer(hungry=Hungry())
    for repeat, missing in ((-1, 0), (0, 1)):
        row = one(run, task("hungry", repeat=repeat))
        assert (row.error, run.out_of_memory["hungry"]) == ("out_of_memory", missing)


def test_the_second_turn_continues_the_labels_own_first_answer(measurer: Make, target: Target) -> None:
    run = measurer(TALK, lying=Lying())
    firsts = {label: one(run, task(label, prompt=TALK)) for label in ("plain", "lying")}
    seconds = {label: one(run, task(label, turn=1, prompt=TALK)) for label in ("plain", "lying")}
    for label, first in firsts.items():
        chat = [
            {"role": "user", "content": "Say something."},
            {"role": "assistant", "content": first.text},
            {"role": "user", "content": "And now?"},
        ]
        assert seconds[label].prompt_tokens == len(target.tokenizer.encode_chat(chat))
    assert firsts["plain"].text != firsts["lying"].text


def test_tokens_outside_the_draft_vocabulary_are_counted_by_the_harness(
    measurer: Make, target: Target, tmp_path: Path
) -> None:
    said = one(measurer(), task("plain")).token_ids
    ids = sorted({*range(20), said[0]} - {said[1]})
    write_draft_vocabulary(tiny_folder(tmp_path), torch.tensor(ids))
    stored, whole = TwoModel(), TwoModel(draft_vocabulary="whole")
    for method in (stored, whole):
        method.use_draft_model(Target.load(tmp_path, dtype="float64"))
        method.prepare(target)
    combined = Combine(first="prompt_lookup")
    combined.use_parts([PromptLookup(), stored])
    narrow = measurer(stored=stored, whole=whole, combined=combined)
    outside = sum(token not in ids for token in said)
    assert 0 < outside < len(said)
    for label in ("stored", "combined"):
        row = one(narrow, task(label))
        assert (row.token_ids, row.verdict) == (said, "identical")
        assert row.counters == {"draft_vocabulary": len(ids), "outside_draft_vocabulary": outside}
    assert one(narrow, task("whole")).counters == one(narrow, task("plain")).counters == {}


def test_a_second_turn_is_judged_on_its_own_prompt(measurer: Make) -> None:
    """After a lossy first answer the baseline's second turn answers another prompt: it is no measure for this one."""
    lying = Lying()
    run = measurer(TALK, lying=lying)
    for label in ("plain", "lying"):
        one(run, task(label, prompt=TALK))
    one(run, task("plain", turn=1, prompt=TALK))
    lying.shift = 0
    row = one(run, task("lying", turn=1, prompt=TALK))
    assert row.verdict == "identical"


@pytest.mark.parametrize("recalled", [False, True])
def test_a_turn_after_a_failed_one_fails_too(measurer: Make, recalled: bool) -> None:
    run = measurer(TALK, broken=Broken())
    first = one(run, task("broken", prompt=TALK))
    if recalled:
        run.recall(task("broken", prompt=TALK), first)
    row = one(run, task("broken", turn=1, prompt=TALK))
    assert row.error is not None and "turn 0" in row.error and "turn 1" in row.error


def test_rows_of_an_earlier_process_serve_as_history_and_as_the_baselines_answer(measurer: Make) -> None:
    first = measurer(TALK, lying=Lying())
    rows = [one(first, task(label, prompt=TALK)) for label in ("plain", "lying")]
    whole = one(first, task("lying", turn=1, prompt=TALK))
    second = measurer(TALK, lying=Lying())
    for label, row in zip(("plain", "lying"), rows, strict=True):
        second.recall(task(label, prompt=TALK), row)
    resumed = one(second, task("lying", turn=1, prompt=TALK))
    assert (resumed.token_ids, resumed.prompt_tokens) == (whole.token_ids, whole.prompt_tokens)
    assert resumed.verdict == whole.verdict


def test_sampled_answers_get_no_comparison_and_repeat_by_seed(measurer: Make) -> None:
    sampled = DecodingConfig(4, Sampling(temperature=1.0))
    rows = [one(measurer(config=sampled, other=Plain()), task("other", repeat=repeat)) for repeat in (0, 0, 1)]
    assert [row.verdict for row in rows] == ["sampled"] * 3
    assert rows[0].token_ids == rows[1].token_ids != rows[2].token_ids
    assert one(measurer(config=sampled), task("plain")).verdict is None


def test_the_seed_of_an_answer_depends_on_prompt_turn_and_repeat_but_not_on_the_label() -> None:
    tasks = [task("a"), task("a", turn=1), task("a", repeat=1), task("a", prompt=Prompt("q", "koala", ("Hi",)))]
    assert len({answer_seed(each) for each in [*tasks, task("b")]}) == 4
    assert (
        answer_seed(tasks[0], greedy=True) == answer_seed(tasks[2], greedy=True) != answer_seed(tasks[1], greedy=True)
    )


def test_a_prompt_beyond_the_context_fails_or_keeps_its_end(measurer: Make, target: Target) -> None:
    endless = Prompt("long", "koala", ("Say something. " * 200,))
    row = one(measurer(endless), task("plain", prompt=endless))
    assert row.error is not None and "context of 128" in row.error
    cut = one(measurer(endless, replace(GREEDY, cut=True)), task("plain", prompt=endless))
    assert (cut.error, cut.prompt_tokens, len(cut.token_ids)) == (None, 124, 4)


def test_a_baseline_that_does_not_repeat_itself_gives_a_notice(measurer: Make) -> None:
    notices: list[str] = []
    changing = Lying(shift=0)
    run = measurer(plain=changing)
    run.notify = notices.append
    for repeat, shift in enumerate((0, 0, 5)):
        assert notices == []
        changing.shift = shift
        one(run, task("plain", repeat=repeat))
    assert len(notices) == 1 and "plain" in notices[0] and "koala p" in notices[0]


@dataclass
class Own(Lying):
    """One whose distributions are asked for."""

    exactness = "lossy"
    reason = "a fake"


def test_an_answer_from_logits_that_are_no_numbers_has_no_verdict(
    measurer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The baseline and every method choose token 0 then, and so agree. The last token may have numbers again."""
    head = Target.head

    def overflowing(self: Target, states: torch.Tensor) -> torch.Tensor:
        logits = head(self, states).clone()
        logits[1:-1] = torch.nan  # none where a row is decoded alone
        return logits

    run = measurer(own=Plain())
    one(run, task("plain"))
    monkeypatch.setattr(Target, "head", overflowing)
    row = one(run, task("own"))
    assert (row.error, row.verdict, row.fidelity["failed_controls"]) == (None, None, 1.0)


def failing(*_: object, **__: object) -> NoReturn:
    raise MemoryError("no room for logits")


@pytest.mark.parametrize(
    ("control", "kept"),
    [
        ("benchctl.measuring.verdict.Referee.judge", {"scored_tokens", "kl_unrepeated_tokens"}),
        ("benchctl.measuring.teacher_forcing.likelihood", {"gap", "decided_at"}),
        ("benchctl.measuring.teacher_forcing.own_logits", {"gap", "decided_at"}),
    ],
)
def test_a_control_that_fails_after_the_clock_takes_nothing_from_a_generation(
    measurer: Make, monkeypatch: pytest.MonkeyPatch, control: str, kept: set[str]
) -> None:
    """It made a failed generation of a good one, out of memory above all, and of those that diverge above all."""
    notices: list[str] = []
    run = measurer(own=Own())
    run.notify = notices.append
    one(run, task("plain"))
    monkeypatch.setattr(control, failing)
    row = one(run, task("own"))
    failed = "failed_controls" if "judge" in control else "failed_fidelity"
    assert (row.error, len(row.step_s), row.fidelity[failed]) == (None, 3, 1.0)
    assert len({"failed_controls", "failed_fidelity"} & row.fidelity.keys()) == 1
    assert row.verdict == (None if "judge" in control else "lossy")
    assert kept <= set(row.fidelity) and "kl_nats" not in row.fidelity
    one(run, task("own", repeat=1))
    assert len(notices) == 1 and "out_of_memory: no room for logits" in notices[0]


def test_a_method_is_judged_with_the_rows_of_its_steps(measurer: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Sequence[int]] = []

    def judge(referee: Referee, prompt_ids: list[int], token_ids: Sequence[int], sizes: Sequence[int]) -> Judgement:
        asked.append(sizes)
        return Judgement("identical")

    monkeypatch.setattr(Referee, "judge", judge)
    assert (target := measurer().target) is not None
    run = measurer(two=prepared("two_model[draft_tokens=3]", target, target))
    rows = one(run, task("two")).rows
    assert set(rows) - {1} == set(asked[0]) != set()
