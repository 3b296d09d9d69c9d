"""Which runs may be compared: those whose settings, models, prompts and machine are the same."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchctl.records.schema import ModelInfo, Run
from benchctl.records.writer import RunFile

Fact = str | int | float


@dataclass(frozen=True)
class Difference:
    """A setting that differs between two runs, so that they cannot be compared, with its value in each."""

    field: str
    first: str
    second: str


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
            run.target.weights_sha256 or run.target.name,  # imported files have only a name
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


def differences(first: Run, second: Run) -> tuple[Difference, ...]:
    """The settings by which two runs cannot be compared; empty when they can.

    Draft models count where both runs have one, trained modules where both run their label.
    """
    differing = [
        Difference(setting.field, str(setting.shown(first)), str(setting.shown(second)))
        for setting in _SETTINGS
        if setting.identity(first) != setting.identity(second)
    ]
    if first.draft and second.draft and first.draft.weights_sha256 != second.draft.weights_sha256:
        differing.append(Difference("draft", _model(first.draft), _model(second.draft)))
    first_modules, second_modules = _modules(first), _modules(second)
    for label in sorted(first_modules.keys() & second_modules.keys()):
        if first_modules[label] != second_modules[label]:
            hashes = (f"{label} {modules[label][:8]}" for modules in (first_modules, second_modules))
            differing.append(Difference("modules", *hashes))
    return tuple(differing)


def _modules(run: Run) -> dict[str, str]:
    """The hashes of trained modules, by label."""
    return {method.label: method.modules_sha256 for method in run.methods if method.modules_sha256}


def group(files: Sequence[RunFile]) -> tuple[tuple[RunFile, ...], ...]:
    """Files in groups that may be compared, in the order given; each file joins the first group it fits."""
    groups: list[list[RunFile]] = []
    for file in files:
        fitting = (members for members in groups if not any(differences(member.run, file.run) for member in members))
        members = next(fitting, None)
        if members is None:
            groups.append([file])
        else:
            members.append(file)
    return tuple(map(tuple, groups))
