"""What a run writes and analysis reads: a JSONL file per run, with a Run in its first line, then a Row per generation.

The types here are checked wherever they are made, so a number that cannot be true never reaches a file or a table.
Reading, appending and resuming are in recordfile.py.
"""

from collections.abc import Mapping, Sequence
from itertools import compress, count
from operator import le, lt, sub
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field, TypeAdapter, model_validator
from pydantic.dataclasses import dataclass

# 1 lacked the exact answers of suites, 2 the counters of rows, 3 batches, 4 modes, doubts, energy, fidelity and
# imported totals: all are read as ever, answers as one by one and running freely.
SCHEMA_VERSION: Final = 5

_PARTS = (("target_agreed_tokens", "scored_tokens"), ("replay_agreed_tokens", "replay_judged_tokens"))  # of fidelity
_CHECKED = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
_LISTS = Field(strict=False)  # only for the list itself (JSON has no tuples); what is in it stays strict
UNKNOWN_TARGET: Final = "unknown, of answers by "  # how an imported target is named that nobody told the name of

Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(gt=0)]
Seconds = Annotated[float, Field(ge=0)]
Amount = Annotated[float, Field(ge=0)]
Counts = Annotated[tuple[Count, ...], _LISTS]
Texts = Annotated[tuple[str, ...], _LISTS]
Scalar = str | bool | int | float | None
Fact = Scalar | Sequence[Scalar]
Exactness = Literal["exact", "exact_greedy", "lossy"]
Verdict = Literal["identical", "tie", "numeric", "lossy", "sampled"]
Mode = Literal["free", "replay", "profile"]


@dataclass(frozen=True, kw_only=True, config=_CHECKED)
class ModelInfo:
    """A model, and the hashes that tell whether another run used the same one. Numbers are 0 in imported files."""

    name: str
    family: str
    layers: Count
    hidden_size: Count
    parameters: Count
    vocabulary: Count
    context_tokens: Count
    weights_sha256: str
    tokenizer_sha256: str
    chat_template_sha256: str


@dataclass(frozen=True, kw_only=True, config=_CHECKED)
class SuiteInfo:
    """A suite as it was used: where it came from, the hash of its prompts and how many there were.

    `own` marks a suite of benchctl itself, which is embedded whole. `exact_answers` holds, by prompt id, how a right
    answer to each turn ends ("" where that cannot be said): facts of the prompts, so written once and not in each row.
    """

    name: str
    source: Literal["published", "embedded", "file"]
    origin: str
    sha256: str
    prompts: Count
    own: bool = False
    exact_answers: Mapping[str, Texts] = Field(default_factory=dict)

    @property
    def is_sample(self) -> bool:
        """Whether the prompts only stand in for the published ones of that name."""
        return self.source == "embedded" and not self.own

    def exact_answer(self, prompt_id: str, turn: int) -> str:
        """How a right answer to a turn ends, or "" where it cannot be checked."""
        answers = self.exact_answers.get(prompt_id, ())
        return answers[turn] if turn < len(answers) else ""


@dataclass(frozen=True, kw_only=True, config=_CHECKED)
class MethodInfo:
    """A method of a run: its label, all its options, its claim, why it could not run here (or ""), and the hash of its
    trained modules ("" where it has none, and in files written before methods had any)."""

    label: str
    name: str
    options: Mapping[str, Scalar]
    exactness: Exactness
    reason: str = ""
    unsupported: str = ""
    modules_sha256: str = ""


@dataclass(frozen=True, kw_only=True, config=_CHECKED)
class Run:
    """Everything that was fixed before the first generation of a run.

    `batch_size` is the most prompts that are decoded together; where it is 1 there are no batches. `modes` are those
    of its rows. `context_fill` is the number of tokens put before each prompt. A step of the baseline reads
    `step_bytes` of weights, and `cache_token_bytes` of keys and values for every token of the text so far; 0 where that
    is not known. `imported` names the program whose file this was made from ("" for our own); such a run says 0 and ""
    of what that file does not tell.
    """

    kind: Literal["run"] = "run"
    schema_version: Literal[1, 2, 3, 4, 5] = SCHEMA_VERSION
    name: str
    created: str
    command: Texts
    baseline: str
    target: ModelInfo
    draft: ModelInfo | None
    suites: Annotated[tuple[SuiteInfo, ...], _LISTS]
    methods: Annotated[tuple[MethodInfo, ...], _LISTS]
    dtype: str
    device: str
    executor: str
    attention: str
    threads: Count
    temperature: Seconds
    top_p: Annotated[float, Field(gt=0, le=1)]
    top_k: Count
    seed: int
    max_new_tokens: Count
    repeats: Positive
    batch_size: Positive = 1
    modes: Annotated[tuple[Mode, ...], _LISTS] = ("free",)
    context_fill: Count = 0
    step_bytes: Count = 0
    cache_token_bytes: Count = 0
    imported: str = ""
    order: str
    machine: Mapping[str, Fact]
    versions: Mapping[str, str]
    commit: str

    @model_validator(mode="after")
    def _is_whole(self) -> "Run":
        if self.baseline not in {method.label for method in self.methods}:
            raise ValueError(f"the baseline '{self.baseline}' is not among the run's methods")
        numbers = [self.threads, self.max_new_tokens, self.target.layers, self.target.vocabulary]
        if not (self.imported or all(numbers)):
            raise ValueError("threads, max_new_tokens, layers and vocabulary may be 0 in imported files alone")
        return self


@dataclass(frozen=True, kw_only=True, config=_CHECKED)
class Totals:
    """What an imported file tells of a generation, of which it keeps no lists. None is what it does not tell."""

    new_tokens: Count | None = None
    steps: Count | None = None
    wall_s: Seconds | None = None


@dataclass(frozen=True, kw_only=True, config=_CHECKED)
class Row:
    """One generation. Prefill yields its first token, each step the `committed` next ones.

    `step_s`, `committed`, `drafted`, `accepted` and `rows` have one entry per step; `layers` has one per token of
    `token_ids`. `committed[i]` is `accepted[i]`, plus one where the target added its bonus token, so that
    `len(token_ids) == 1 + sum(committed)`. A failed generation has an `error` and no numbers.

    `counters` is what a method counts beside its steps, by name; of expert loading those of offload.fast_tier.Counts,
    over the decoding, with `bandwidth_mb_s` where loading was throttled to that.

    `batch` has the ids of the prompts that were decoded together, this one among them; their rows stand together, in
    that order. They have the batch's times, each up to its own end: the same `ttft_s`, when the last prompt was
    prefilled, and the steps until its last token. So the time of the batch is that of its longest row, and is theirs
    together; memory, `energy_j` and `conditions` are the batch's too. A batch fails as a whole.

    `mode` says what was decoded: the method's own text ("free"), the baseline's tokens forced upon it ("replay"), or
    its own text with every step split ("profile"): `phases` then has, by the name of each phase, its seconds per step.
    Only free rows make a headline. `invalid` says why its times, or in the last row of a round those of the round, are
    not to be trusted ("" where nothing speaks against them; see analysis.rounds), `conditions` what the machine showed
    while they were taken, by name and unit. `fidelity` has sums over the answer's tokens, by name: see
    measuring.faithfulness. An imported generation may have `totals` and no lists.

    Example: prefill gives token 5; a step drafts 7 8 9, accepts 7 8 and adds 4:
    `token_ids=(5, 7, 8, 4), committed=(3,), drafted=(3,), accepted=(2,), rows=(4,), layers=(12, 12, 12, 12)`.
    """

    kind: Literal["row"] = "row"
    suite: str
    prompt_id: str
    turn: Count
    label: str
    repeat: int
    session: Count
    order: Count
    prompt_tokens: Count
    batch: Texts = ()
    token_ids: Counts = ()
    text: str = ""
    stop_reason: Literal["stop", "length", "context"] | None = None
    ttft_s: Seconds | None = None
    step_s: Annotated[tuple[Seconds, ...], _LISTS] = ()
    committed: Annotated[tuple[Positive, ...], _LISTS] = ()
    drafted: Counts = ()
    accepted: Counts = ()
    rows: Counts = ()
    layers: Counts = ()
    counters: Mapping[str, Amount] = Field(default_factory=dict)
    mode: Mode = "free"
    phases: Mapping[str, Annotated[tuple[Seconds, ...], _LISTS]] = Field(default_factory=dict)
    peak_memory_bytes: Count | None = None
    reserved_memory_bytes: Count | None = None
    energy_j: Amount | None = None
    conditions: Mapping[str, float] = Field(default_factory=dict)
    invalid: str = ""
    fidelity: Mapping[str, float] = Field(default_factory=dict)
    totals: Totals | None = None
    verdict: Verdict | None = None
    first_divergence: Count | None = None
    margin: float | None = None
    noise: Seconds | None = None
    error: str | None = None

    @model_validator(mode="after")
    def _adds_up(self) -> "Row":
        if problem := row_problem(self):
            raise ValueError(problem)
        return self


def row_problem(row: Row) -> str:
    """What cannot be true of a row whose fields are what they may be each by itself, or ""."""
    problem = _failure_problem(row) if row.error is not None else _ledger_problem(row) or _verdict_problem(row)
    return problem or _batch_problem(row)


def _failure_problem(row: Row) -> str:
    numbers = (row.token_ids, row.step_s, row.committed, row.drafted, row.accepted, row.rows, row.layers, row.counters)
    if any(numbers) or row.totals or row.ttft_s is not None or row.stop_reason is not None or row.verdict is not None:
        return "a failed generation has an error and no tokens, times or verdict"
    return "" if row.error else "an error needs a message"


def _ledger_problem(row: Row) -> str:
    if row.totals is not None:
        lists = (row.token_ids, row.step_s, row.committed, row.drafted, row.accepted, row.rows, row.layers, row.phases)
        if (row.totals.steps or 0) > (row.totals.new_tokens if row.totals.new_tokens is not None else float("inf")):
            return f"{row.totals.steps} steps for {row.totals.new_tokens} new_tokens, but every step yields one"
        return "totals stand where there are no lists" if any(lists) else ""
    if row.ttft_s is None or row.stop_reason is None:
        return "a generation without an error needs ttft_s and stop_reason"
    steps = len(row.step_s)
    if bool(row.phases) != (row.mode == "profile") or any(len(seconds) != steps for seconds in row.phases.values()):
        return "phases are those of profile rows, and have one entry per step"
    if any(len(per_step) != steps for per_step in (row.committed, row.drafted, row.accepted, row.rows)):
        return "step_s, committed, drafted, accepted and rows differ in length"
    if len(row.token_ids) != 1 + (committed := sum(row.committed)):
        return f"{len(row.token_ids)} token_ids, but prefill and steps committed {1 + committed}"
    if len(row.layers) != len(row.token_ids):
        return f"{len(row.token_ids)} token_ids, but {len(row.layers)} entries in layers"
    if committed == steps and not any(row.drafted) and not any(row.accepted):
        return ""  # a token in each step, as most rows have it: nothing more to look at step by step
    if not all(map(lt, compress(row.drafted, row.drafted), compress(row.rows, row.drafted))):
        return "a step that drafts has a row of the target for each drafted token, and one for the token before them"
    possible = set(map(sub, row.committed, row.accepted)) <= {0, 1} and all(map(le, row.accepted, row.drafted))
    return "" if possible else _impossible_step(row)  # to look for it takes ten times as long as to know of it


def _impossible_step(row: Row) -> str:
    return next(
        f"step {step}: {committed} committed, {accepted} accepted of {drafted} drafted cannot be"
        for step, committed, accepted, drafted in zip(count(), row.committed, row.accepted, row.drafted, strict=False)
        if committed - accepted not in (0, 1) or accepted > drafted
    )


def _verdict_problem(row: Row) -> str:
    if row.verdict == "identical" and row.first_divergence is not None:
        return "identical, but with a first divergence"
    if row.verdict in ("tie", "numeric", "lossy") and row.first_divergence is None:
        return f"{row.verdict}, but without a first divergence"
    if row.totals is None and (row.first_divergence or 0) > len(row.token_ids):
        return f"a first divergence at {row.first_divergence} in an answer of {len(row.token_ids)} token_ids"
    more = (part for part, whole in _PARTS if not 0 <= row.fidelity.get(part, 0) <= row.fidelity.get(whole, 0))
    return next((f"fidelity: there cannot be that many {part}" for part in more), "") if row.fidelity else ""


def _batch_problem(row: Row) -> str:
    if row.batch and row.prompt_id not in row.batch:
        return f"'{row.prompt_id}' is not in its own batch"
    return "a batch has a prompt twice" if len(set(row.batch)) < len(row.batch) else ""


RUN = TypeAdapter(Run)
ROW = TypeAdapter(Row)


def to_line(record: Run | Row) -> bytes:
    """A record as a line of its file, newline included."""
    return (RUN.dump_json(record) if isinstance(record, Run) else ROW.dump_json(record)) + b"\n"


def json_schema() -> dict[str, Any]:
    """JSON schema of a line of a results file."""
    return TypeAdapter(Run | Row).json_schema()
