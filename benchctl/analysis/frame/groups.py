"""Which runs may be compared: those whose settings, models, prompts and machine are the same."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchctl.records.schema import ModelInfo, Run
from benchctl.records.writer import RunFile

Fact = str | int | float


@dataclass(frozen=True)
class Difference:
    """A setting that keeps two runs from being compared, with its value in either."""

    field: str
    one: str
    other: str


@dataclass(frozen=True)
class _Setting:
    """`shown` is what a reader recognises; `identity` is what must be equal."""

    field: str
    shown: Callable[[Run], Fact]
    identity: Callable[[Run], object]


def _plain(field: str) -> _Setting:
    return _Setting(field, lambda run: getattr(run, field), lambda run: getattr(run, field))


def _machine(fact: str) -> _Setting:
    return _Setting(fact, lambda run: str(run.machine.get(fact, "")), lambda run: run.machine.get(fact))


def _model(model: ModelInfo) -> str:
    return f"{model.name} {model.weights_sha256[:8]}"


def _suites(run: Run) -> str:
    return ", ".join(f"{suite.name} ({suite.prompts} prompts, {suite.sha256[:8]})" for suite in run.suites)


_SETTINGS = (
    _Setting(
        "target",
        lambda run: _model(run.target),
        lambda run: (
            run.target.weights_sha256 or run.target.name,  # imported files tell no more than a name
            run.target.tokenizer_sha256,
            run.target.chat_template_sha256,
        ),
    ),
    _Setting("prompts", _suites, lambda run: {(suite.name, suite.sha256) for suite in run.suites}),
    _Setting("modes", lambda run: ", ".join(run.modes), lambda run: set(run.modes)),
    *map(_plain, ("baseline", "dtype", "device", "executor", "attention", "threads", "batch_size", "context_fill")),
    *map(_plain, ("max_new_tokens", "temperature", "top_p", "top_k", "imported")),
    *map(_machine, ("cpu", "gpu")),
)


def differences(one: Run, other: Run) -> tuple[Difference, ...]:
    """What keeps two runs from being compared; empty when nothing does.

    Draft models count where both runs have one, trained modules where both run their label.
    """
    found = [
        Difference(setting.field, str(setting.shown(one)), str(setting.shown(other)))
        for setting in _SETTINGS
        if setting.identity(one) != setting.identity(other)
    ]
    if one.draft and other.draft and one.draft.weights_sha256 != other.draft.weights_sha256:
        found.append(Difference("draft", _model(one.draft), _model(other.draft)))
    mine, theirs = _modules(one), _modules(other)
    for label in sorted(mine.keys() & theirs.keys()):
        if mine[label] != theirs[label]:
            found.append(Difference("modules", f"{label} {mine[label][:8]}", f"{label} {theirs[label][:8]}"))
    return tuple(found)


def _modules(run: Run) -> dict[str, str]:
    """The hashes of trained modules, by label."""
    return {method.label: method.modules_sha256 for method in run.methods if method.modules_sha256}


def group(files: Sequence[RunFile]) -> tuple[tuple[RunFile, ...], ...]:
    """Files in groups that may be compared, in the order given; each file joins the first group it fits."""
    groups: list[list[RunFile]] = []
    for file in files:
        fitting = (members for members in groups if not any(differences(one.run, file.run) for one in members))
        members = next(fitting, None)
        if members is None:
            groups.append([file])
        else:
            members.append(file)
    return tuple(map(tuple, groups))
