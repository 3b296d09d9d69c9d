"""The file that describes a sweep, and the runs that follow from it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from benchctl.errors import UserError

# What stands for a flag of `benchctl run` that is off; of other options no value is off, and `run` refuses it.
_FLAGS: Final[dict[str, tuple[str, ...]]] = {"watch": ("--no-watch",), "replay": (), "profile": (), "json": ()}
_LARGEST_SPEC = 1_000_000  # bytes; a results file given by mistake is refused

Value = str | int | float | bool
Options = Mapping[str, Value | list[Value]]


class Spec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a sweep measures.

    models    options of `benchctl run` for each model, such as {model: smollm2, weights: float16}
    families  labels by name; every family is measured by runs of its own, with a baseline of its own
    devices   cpu, cuda
    sessions  runs of everything, each in a file of its own
    run       options of `benchctl run` for all runs, such as {suite: [koala], limit: 20}
    """

    models: list[dict[str, Value]]
    families: dict[str, list[str]]
    devices: list[str] = msgspec.field(default_factory=lambda: ["cpu"])
    sessions: int = 1
    run: dict[str, Value | list[Value]] = {}


class Unit(NamedTuple):
    """One run of `benchctl run`, the smallest part of a sweep: one model, device, family and session."""

    command: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.out.stem

    @property
    def on_gpu(self) -> bool:
        return self._option("device", "cpu").startswith("cuda")

    @property
    def threads(self) -> int:
        return int(self._option("threads", "1"))

    @property
    def out(self) -> Path:
        return Path(self._option("out", ""))

    def _option(self, name: str, default: str) -> str:
        given = (word.partition("=")[2] for word in self.command if word.startswith(f"--{name}="))
        return next(given, default)


def read_spec(path: Path) -> Spec:
    """Raises UserError for a file that cannot be read or does not describe a sweep."""
    try:
        if path.stat().st_size > _LARGEST_SPEC:
            raise UserError("no_sweep", f"{path}: is too large for the description of a sweep.")
        spec = msgspec.yaml.decode(path.read_bytes(), type=Spec)
    except OSError as error:
        raise UserError("cannot_read", f"{path}: cannot be read: {error.strerror}.") from error
    except msgspec.DecodeError as error:
        raise UserError("no_sweep", f"{path}: {error}. See `benchctl sweep plan --help` for an example.") from error
    if wrong := sorted({*spec.devices} - {"cpu", "cuda"}):
        raise UserError("no_sweep", f"{path}: {wrong[0]} is not a device. Devices are cpu and cuda.")
    for name in ("models", "families", "devices"):
        if not getattr(spec, name):
            raise UserError("no_sweep", f"{path}: {name} is empty. Name at least one.")
    if empty := next((name for name, labels in spec.families.items() if not labels), None):
        raise UserError("no_sweep", f"{path}: family {empty} has no labels. Name at least one.")
    if spec.sessions < 1:
        raise UserError("no_sweep", f"{path}: sessions must be at least 1.")
    return spec


def units(spec: Spec, folder: Path) -> tuple[Unit, ...]:
    """The runs of a sweep, one session after the other, so that a sweep that ends early has whole sessions.

    Their results files are in ``folder``/results. Raises UserError for options that the sweep itself sets.
    """
    made = [
        _unit(spec, model, family, device, session, folder)
        for session in range(1, spec.sessions + 1)
        for model in spec.models
        for family in spec.families
        for device in spec.devices
    ]
    names = Counter(unit.name for unit in made)
    if double := next((name for name, count in names.items() if count > 1), None):
        raise UserError(
            "same_unit_twice",
            f"two runs would be called {double}. Models and families must differ in letters or digits.",
        )
    return tuple(made)


def _unit(spec: Spec, model: Options, family: str, device: str, session: int, folder: Path) -> Unit:
    options: Options = {**spec.run, **model}
    if taken := sorted({"out", "resume", "sessions", "method", "sweep", "device", "estimate"} & options.keys()):
        raise UserError("option_of_sweep", f"{taken[0]} cannot be an option of a run in a sweep. Leave it out.")
    name = "-".join(re.sub(r"[^A-Za-z0-9.]+", "_", str(part)) for part in (*model.values(), family, device, session))
    labels = (f"--method={label}" for label in spec.families[family])
    out = folder / "results" / f"{name}.jsonl"
    return Unit(("benchctl", "run", *_words({**options, "device": device}), *labels, f"--out={out}", "--resume"))


def _words(options: Options) -> Iterator[str]:
    for name, value in options.items():
        flag = name.replace("_", "-")
        for each in value if isinstance(value, list) else [value]:
            if each is False and flag in _FLAGS:
                yield from _FLAGS[flag]
            elif each is True:
                yield f"--{flag}"
            else:
                yield f"--{flag}={'no' if each is False else each}"
