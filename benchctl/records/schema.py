"""What a run writes and analysis reads: a JSONL file per run, with a Run in its first line, then a Row per generation.

A record is checked twice. Its counts are checked where it is made; the type and the bounds of each field are checked
where it is written (`to_line`) and where it is read (`from_line`). reader.py and writer.py handle whole files.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from functools import cache
from inspect import cleandoc
from itertools import compress, count, repeat
from math import isfinite
from operator import le, lt, sub
from types import GenericAlias
from typing import Annotated, Any, Final, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

# Version 1 lacks exact answers, 2 the counters of rows, 3 batches, 4 modes, `invalid`, energy, fidelity and totals.
# Older files are read as they are: their answers were decoded one by one and freely. Up to version 5 counts are those
# that methods reported about themselves, and the clock started after `Method.serve`.
SCHEMA_VERSION: Final = 6
COUNTED_SINCE: Final = 6  # the version whose counts are the harness's own

UNKNOWN_TARGET: Final = "unknown, of answers by "  # the name of an imported target begins with it if none was given
_AGREED_OF_ALL = (("target_agreed_tokens", "scored_tokens"), ("replay_agreed_tokens", "replay_judged_tokens"))

Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(gt=0)]
Amount = Annotated[float, Meta(ge=0)]
Seconds = Amount
Duration = Annotated[float, Meta(gt=0, le=86_400)]  # no step takes no time, none takes more than a day
Counts = tuple[Count, ...]
Texts = tuple[str, ...]
Scalar = str | bool | int | float | None
Fact = Scalar | Sequence[Scalar]
Exactness = Literal["exact", "exact_greedy", "lossy"]
Verdict = Literal["identical", "tie", "numeric", "lossy", "sampled"]
Mode = Literal["free", "replay", "profile"]
OTHER_WEIGHTS: Final = "its weights are not those of the baseline"  # the reason of a label that was asked for with them


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """A model, and the hashes that show whether another run used the same one. Numbers are 0 in imported files, and
    `parameters` of a target that benchctl itself cannot run.

    `stop_ids` are the tokens that end its answers; none where that is not known, as in files of earlier versions.
    """

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
    stop_ids: Counts = ()


@dataclass(frozen=True, kw_only=True)
class SuiteInfo:
    """A suite as it was used. `own` marks one of benchctl itself, which is embedded whole.

    `exact_answers` maps a prompt id to the end of a right answer to each turn, "" where there is no single one.
    `categories` maps a prompt id to the prompt's category, if it has one. Files of earlier versions have none.
    """

    name: str
    source: Literal["published", "embedded", "file"]
    origin: str
    sha256: str
    prompts: Count
    own: bool = False
    exact_answers: Mapping[str, Texts] = field(default_factory=dict)
    # Not compared, since `sha256` covers it: a run that was started without it can go on.
    categories: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def is_sample(self) -> bool:
        """Whether the prompts only stand in for the published ones of that name."""
        return self.source == "embedded" and not self.own

    def exact_answer(self, prompt_id: str, turn: int) -> str:
        """How a right answer to a turn ends, or "" where it cannot be checked."""
        answers = self.exact_answers.get(prompt_id, ())
        return answers[turn] if turn < len(answers) else ""


@dataclass(frozen=True, kw_only=True)
class EngineInfo:
    """Another engine that a label was measured with. A text is "" and a number 0 where they are not known.

    `run` says whether the engine ran in benchctl's process, was started by it, or was running. `command` has names in
    place of paths, and no keys. Where `prefix_cache` is `unproved`, the engine does not report whether it read a prompt
    from its cache. `steps_from` says what the steps of rows rest on: `chunks` that agree with the engine's counts, or
    only its `counts`.
    """

    name: str
    version: str
    run: Literal["in_process", "started", "attached"]
    command: Texts = ()
    dtype: str = ""
    threads: Count = 0
    prefix_cache: Literal["off", "unproved"]
    steps_from: Literal["chunks", "counts"]


@dataclass(frozen=True, kw_only=True)
class MethodInfo:
    """A method of a run: its label, all its options, its claim, why it could not run here (or ""), and the hash of its
    trained modules and file of texts ("" where it has none, and in files written before methods had any).

    `doctor` says what `benchctl doctor --method` found about the code of a plug-in, whose hash is `source_sha256`; both
    are "" for methods that benchctl ships, which its own tests examine, and in files of earlier versions. `engine` is
    that of a label of another engine."""

    label: str
    name: str
    options: Mapping[str, Scalar]
    exactness: Exactness
    reason: str = ""
    unsupported: str = ""
    modules_sha256: str = ""
    source_sha256: str = ""
    doctor: Literal["", "passed", "failed", "never"] = field(default="", compare=False)
    engine: EngineInfo | None = None


@dataclass(frozen=True, kw_only=True)
class Run:
    """Everything that was fixed before the first generation of a run; docs/file-format.md explains each field.

    A number that is not known is 0 and a text is ""; `imported` names the program whose file this was made from.
    """

    kind: Literal["run"] = "run"
    schema_version: Literal[1, 2, 3, 4, 5, 6] = SCHEMA_VERSION
    name: str
    created: str
    command: Texts
    baseline: str
    target: ModelInfo
    draft: ModelInfo | None
    suites: tuple[SuiteInfo, ...]
    methods: tuple[MethodInfo, ...]
    dtype: str
    weights: str = ""
    device: str
    executor: str
    attention: str
    threads: Count
    temperature: Seconds
    top_p: Annotated[float, Meta(gt=0, le=1)]
    top_k: Count
    seed: int
    max_new_tokens: Count
    repeats: Positive
    batch_size: Positive = 1
    modes: tuple[Mode, ...] = ("free",)
    context_fill: Count = 0
    step_bytes: Count = 0
    cache_token_bytes: Count = 0
    prepare_s: Mapping[str, Seconds] = field(default_factory=dict)
    imported: str = ""
    order: str
    machine: Mapping[str, Fact]
    versions: Mapping[str, str]
    commit: str

    @property
    def target_name(self) -> str:
        """With the number format of its weights where they have one of their own: then it is another target."""
        return f"{self.target.name} ({self.weights} weights)" if self.weights else self.target.name

    def __post_init__(self) -> None:
        if self.baseline not in {method.label for method in self.methods}:
            raise ValueError(f"the baseline '{self.baseline}' is not among the run's methods")
        numbers = [self.threads, self.max_new_tokens, self.target.layers, self.target.vocabulary]
        if not (self.imported or all(numbers)):
            raise ValueError("threads, max_new_tokens, layers and vocabulary may be 0 in imported files alone")


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Sums of a generation without lists: of an imported file, or of an engine that does not show its steps. Where the
    row has `ttft_s`, `steps` come after the first token; otherwise the first step includes it. None is what is not
    known."""

    new_tokens: Count | None = None
    steps: Count | None = None
    wall_s: Seconds | None = None
    drafted: Count | None = None
    accepted: Count | None = None


@dataclass(frozen=True, kw_only=True)
class Row:
    """One generation; docs/file-format.md explains each field. Prefill yields its first token, each step `committed`.

    `step_s`, `committed`, `drafted`, `accepted`, `rows` and the lists in `phases` have one entry per step; `layers` has
    one per token of `token_ids`. `committed[i]` is `accepted[i]`, plus one where the target added its bonus token, so
    that `len(token_ids) == 1 + sum(committed)`. `passes` has the target's passes per step, each of which adds at most
    one bonus token, and is empty where each step was one pass. A failed generation has an `error` and no numbers; an
    imported one may have `totals` and no lists.

    An answer of another engine has `arrived_tokens` that arrived `arrived_s` seconds after the prompt was sent, and no
    `rows` and `layers`. Where its steps are not known it also has `totals`, and token ids but no lists per step. Where
    it sends no ids the row has only `text`, `ttft_s` and `totals`.

    The rows of a `batch` stand together, in its order, and have its times, each up to its own end: the same `ttft_s`
    and first steps. So the time of the batch is that of its longest row; a batch fails as a whole.

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
    started_s: Amount | None = None
    cpu_s: Amount | None = None
    ttft_s: Duration | None = None
    step_s: tuple[Duration, ...] = ()
    committed: tuple[Positive, ...] = ()
    drafted: Counts = ()
    accepted: Counts = ()
    rows: Counts = ()
    passes: Counts = ()
    layers: Counts = ()
    arrived_s: tuple[Duration, ...] = ()
    arrived_tokens: tuple[Positive, ...] = ()
    counters: Mapping[str, Amount] = field(default_factory=dict)
    mode: Mode = "free"
    phases: Mapping[str, tuple[Seconds, ...]] = field(default_factory=dict)
    peak_memory_bytes: Count | None = None
    reserved_memory_bytes: Count | None = None
    energy_j: Amount | None = None
    conditions: Mapping[str, float] = field(default_factory=dict)
    invalid: str = ""
    fidelity: Mapping[str, float] = field(default_factory=dict)
    totals: Totals | None = None
    verdict: Verdict | None = None
    first_divergence: Count | None = None
    margin: float | None = None
    noise: Seconds | None = None
    error: str | None = None

    @property
    def decode_s(self) -> float:
        """Seconds from the first token to the last."""
        if self.arrived_s:
            return self.arrived_s[-1] - self.arrived_s[0]
        whole_s = self.totals.wall_s if self.totals is not None else None
        return sum(self.step_s) if whole_s is None or self.ttft_s is None else whole_s - self.ttft_s

    def __post_init__(self) -> None:
        if problem := _failure_problem(self) if self.error is not None else _problem(self):
            raise ValueError(problem)


def _problem(row: Row) -> str:
    finite = not_finite((row.started_s, row.cpu_s, row.ttft_s, row.energy_j, row.margin, row.noise))
    return finite or _ledger_problem(row) or _verdict_problem(row) or _batch_problem(row)


def _failure_problem(row: Row) -> str:
    numbers = (row.token_ids, row.step_s, row.committed, row.drafted, row.accepted, row.rows, row.layers, row.counters)
    if (
        any(numbers)
        or row.arrived_s
        or row.totals
        or row.ttft_s is not None
        or row.stop_reason is not None
        or row.verdict is not None
    ):
        return "a failed generation has an error and no tokens, times or verdict"
    return _batch_problem(row) if row.error else "an error needs a message"


def _ledger_problem(row: Row) -> str:
    if row.arrived_s or row.arrived_tokens:
        return _arrival_problem(row)
    if row.totals is not None:
        lists = (row.token_ids, row.step_s, row.committed, row.drafted, row.accepted, row.rows, row.layers, row.phases)
        if (row.totals.steps or 0) > (row.totals.new_tokens if row.totals.new_tokens is not None else float("inf")):
            return f"{row.totals.steps} steps for {row.totals.new_tokens} new_tokens, but every step yields one"
        if any(lists):
            return "totals stand where there are no lists"
        if row.ttft_s is not None and row.totals.wall_s is not None and row.totals.wall_s < row.ttft_s:
            return f"the first token came after {row.ttft_s} s, and the last one after {row.totals.wall_s} s"
        return ""
    if row.ttft_s is None or row.stop_reason is None:
        return "a generation without an error needs ttft_s and stop_reason"
    wrong = f"{len(row.token_ids)} token_ids, but {len(row.layers)} entries in layers"
    return _step_problem(row) or (wrong if len(row.layers) != len(row.token_ids) else "")


def _arrival_problem(row: Row) -> str:
    """What is wrong with an answer of another engine."""
    if row.ttft_s is None or row.stop_reason is None or row.arrived_s[:1] != (row.ttft_s,):
        return "an answer of an engine needs stop_reason, and ttft_s as its first arrived_s"
    if len(row.arrived_s) != len(row.arrived_tokens) or any(map(lt, row.arrived_s[1:], row.arrived_s)):
        return "arrived_s and arrived_tokens differ in length, or arrived_s does not grow"
    if sum(row.arrived_tokens) != len(row.token_ids):
        return f"{len(row.token_ids)} token_ids, but {sum(row.arrived_tokens)} arrived_tokens"
    if row.rows or row.layers or row.phases or row.passes:
        return "rows, passes, layers and phases of an engine are not known"
    if (totals := row.totals) is None:
        return _step_problem(row)
    if row.step_s or row.committed or row.drafted or row.accepted:
        return "totals stand where there are no lists"
    if totals.new_tokens != len(row.token_ids) or (totals.steps or 0) >= len(row.token_ids):
        return f"{len(row.token_ids)} token_ids, but {totals.new_tokens} new_tokens in {totals.steps} steps"
    most = min(len(row.token_ids) - 1, len(row.token_ids) if totals.drafted is None else totals.drafted)
    return f"{totals.accepted} tokens accepted of at most {most}" if (totals.accepted or 0) > most else ""


def _step_problem(row: Row) -> str:
    """What is wrong with the lists per step."""
    steps = len(row.step_s)
    if bool(row.phases) != (row.mode == "profile") or any(len(seconds) != steps for seconds in row.phases.values()):
        return "phases are those of profile rows, and have one entry per step"
    rows = () if row.arrived_s else (row.rows,)
    if any(len(per_step) != steps for per_step in (row.committed, row.drafted, row.accepted, *rows)):
        return "step_s, committed, drafted, accepted and rows differ in length"
    if row.passes and (len(row.passes) != steps or not all(row.passes)):
        return "passes are at least 1 for each step, or left out where each step was one pass"
    if len(row.token_ids) != 1 + (committed := sum(row.committed)):
        return f"{len(row.token_ids)} token_ids, but prefill and steps committed {1 + committed}"
    if committed == steps and not any(row.drafted) and not any(row.accepted):
        return ""  # a token in each step, as most rows have it: nothing more to look at step by step
    if rows and not all(map(lt, compress(row.drafted, row.drafted), compress(row.rows, row.drafted))):
        return "a step that drafts has a row of the target for each drafted token, and one for the token before them"
    bonus = map(sub, row.committed, row.accepted)
    few_enough = all(map(le, bonus, row.passes)) if row.passes else set(bonus) <= {0, 1}
    possible = few_enough and all(map(le, row.accepted, row.committed)) and all(map(le, row.accepted, row.drafted))
    return "" if possible else _impossible_step(row)  # to look for it takes ten times as long as to know of it


def _impossible_step(row: Row) -> str:
    return next(
        f"step {step}: {committed} committed, {accepted} accepted of {drafted} drafted cannot be"
        for step, committed, accepted, drafted, passes in zip(
            count(), row.committed, row.accepted, row.drafted, row.passes or repeat(1), strict=False
        )
        if not 0 <= committed - accepted <= passes or accepted > drafted
    )


def _verdict_problem(row: Row) -> str:
    if row.verdict == "identical" and row.first_divergence is not None:
        return "identical, but with a first divergence"
    if row.verdict in ("tie", "numeric", "lossy") and row.first_divergence is None:
        return f"{row.verdict}, but without a first divergence"
    if row.totals is None and (row.first_divergence or 0) > len(row.token_ids):
        return f"a first divergence at {row.first_divergence} in an answer of {len(row.token_ids)} token_ids"
    sums = row.fidelity
    wrong = (agreed for agreed, of_all in _AGREED_OF_ALL if not 0 <= sums.get(agreed, 0) <= sums.get(of_all, 0))
    return next((f"fidelity: there cannot be that many {agreed}" for agreed in wrong), "") if sums else ""


def _batch_problem(row: Row) -> str:
    if row.batch and row.prompt_id not in row.batch:
        return f"'{row.prompt_id}' is not in its own batch"
    return "a batch has a prompt twice" if len(set(row.batch)) < len(row.batch) else ""


def not_finite(numbers: Iterable[float | None]) -> str:
    """What is wrong with numbers of which one is infinite or NaN, or "". In JSON such a number would become null."""
    return "" if all(number is None or isfinite(number) for number in numbers) else "a number is not finite"


_Record = TypeVar("_Record")


def to_line(record: object) -> bytes:
    """A record as a line of its file, newline included. Raises ValueError for a field that is not as its type says."""
    # What is read back has floats where the type says float, also where the record was made with an int.
    return msgspec.json.encode(from_line(type(record), msgspec.json.encode(record))) + b"\n"


def from_line(kind: type[_Record], line: bytes) -> _Record:
    """The record in a line. Raises ValueError, naming the field, for what is no such record or cannot be true."""
    try:
        record: _Record = _decoder(kind).decode(line)
        _field_names(kind).decode(line)  # type: ignore[arg-type]  # types are hashable
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    except msgspec.ValidationError as error:
        raise ValueError(_field_first(str(error))) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"Invalid JSON: {error}") from error
    return record


_decoder: Final[Callable[[Any], msgspec.json.Decoder[Any]]] = cache(msgspec.json.Decoder)


def _field_first(message: str) -> str:
    """`Expected x - at `$.step_s[0]`` as `step_s[0]: expected x`."""
    named = re.fullmatch(r"Object (missing required|contains unknown) field `(.*?)`(?: - at `\$\.?(.*)`)?", message)
    if named:
        problem = "missing" if named[1] == "missing required" else "unknown field"
        return f"{'.'.join(filter(None, (named[3], named[2])))}: {problem}"
    text, _, path = message.partition(" - at `$")
    return f"{path.strip('.`')}: {text[0].lower()}{text[1:]}" if path else text


@cache
def _field_names(kind: type) -> msgspec.json.Decoder[Any]:
    """Decodes a record's field names only, and refuses those that its type, or that of a record within it, lacks."""

    def names_of(hint: Any) -> Any:
        """The type of the records in `hint`, reduced to their field names; or the type of any value."""
        if isinstance(hint, type) and is_dataclass(hint):
            fields = [(name, names_of(inner), None) for name, inner in get_type_hints(hint).items()]
            return msgspec.defstruct(hint.__name__, fields, forbid_unknown_fields=True)
        inner = next((names for names in map(names_of, get_args(hint)) if names is not msgspec.Raw), msgspec.Raw)
        if get_origin(hint) is tuple and inner is not msgspec.Raw:
            return GenericAlias(list, (inner,))
        return inner if inner is msgspec.Raw else inner | None

    return msgspec.json.Decoder(names_of(kind))


def json_schema(*kinds: type) -> str:
    """JSON schema of a line that holds a record of one of `kinds`."""
    references, definitions = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    for definition in definitions.values():
        definition |= {"description": cleandoc(definition["description"]), "additionalProperties": False}
    return json.dumps({"anyOf": references, "$defs": definitions}, indent=2)
