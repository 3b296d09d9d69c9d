"""From a label such as `two_model[draft_tokens=5]` to a method, engine or judge: names by file, options by field.

Built-in ones are found by the name of a file, or of a package, in benchctl.methods, benchctl.engines and
benchctl.judges, so a new one needs no reinstall. Other distributions announce theirs as entry points of the groups of
these names; a built-in of the same name wins.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import pkgutil
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, is_dataclass
from decimal import Decimal
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from inspect import getsourcefile
from itertools import combinations, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from benchctl import __version__
from benchctl.bundled import cache_folder
from benchctl.errors import UserError
from benchctl.options import Option, changed_options, convert_options, options_of
from benchctl.records.labels import current_label, split_options

if TYPE_CHECKING:
    from benchctl.decoding.method import Method
    from benchctl.judging.judge import Judge
    from benchctl.serving.engine import Engine

BASELINE = "autoregressive"
METHODS = "benchctl.methods"
JUDGES = "benchctl.judges"
ENGINES = "benchctl.engines"
# The tests of benchctl examine these; a file that a user puts into methods/ is a plug-in like one of a distribution.
SHIPPED = frozenset(
    (
        *("auto_exit", "autoregressive", "combine", "deed", "dflash", "draft_tree", "eagle", "early_exit"),
        *("expert_offload", "kangaroo", "lookahead", "m2r2", "m2r2_dynamic", "m2r2_prefetch", "medusa"),
        *("mixture_of_depths", "prompt_lookup", "pseudo", "sequential", "skip_decode", "skip_layers"),
        *("sparse_cache", "specee", "suffix", "token_recycling", "two_model"),
    )
)
# Of these, the classes derived from Trainable: `train` lists them without importing torch.
TRAINABLE = frozenset(
    (
        *("auto_exit", "deed", "dflash", "eagle", "early_exit", "kangaroo", "m2r2", "m2r2_dynamic", "m2r2_prefetch"),
        *("medusa", "mixture_of_depths", "pseudo", "sequential", "skip_decode", "specee"),
    )
)
_STEPS = re.compile(r"-?\d+(\.\d+)?:-?\d+(\.\d+)?:-?\d+(\.\d+)?")
_MOST_STEPS = 100
_EXAMINED = "doctor.json"
_LABEL = re.compile(r"(?P<name>[A-Za-z_][\w-]*)(\[(?P<options>.*)\])?")


@dataclass(frozen=True)
class Label:
    """A method's name and the options asked for, as text: both selector and column heading."""

    name: str
    options: tuple[tuple[str, str], ...] = ()

    @property
    def text(self) -> str:
        """`name`, or `name[option=value,option=value]`."""
        if not self.options:
            return self.name
        return f"{self.name}[{','.join(f'{option}={value}' for option, value in self.options)}]"

    @property
    def without_places(self) -> Label:
        """With the names of folders and model files in place of their paths, which are private to a machine."""
        options = []
        for name, value in self.options:
            is_path = name == "modules" or (name == "model" and Path(value).exists())
            options.append((name, Path(value).resolve().name if is_path else value))
        return Label(self.name, tuple(options))


def parse_label(text: str) -> Label:
    """Read `name[option=value,...]`. Raises UserError for anything else, and for an option given twice.

    A label of version 0.1 becomes that of the method it means, which is printed once on stderr.

    >>> parse_label("medusa[tree=wide,heads=3]")
    Label(name='medusa', options=(('tree', 'wide'), ('heads', '3')))
    >>> parse_label("combine[then=two_model[confidence=0,draft_tokens=3]]")
    Label(name='combine', options=(('then', 'two_model[confidence=0,draft_tokens=3]'),))
    """
    match = _LABEL.fullmatch(text.strip())
    parts = split_options((match and match["options"]) or "")
    pairs = [tuple(map(str.strip, part.partition("="))) for part in parts if part.strip()]
    if match is None or not all(all(pair) for pair in pairs):
        raise UserError(
            "bad_label",
            f"'{text}' is not a label. Write a method's name, with options in brackets where wanted: "
            "two_model or two_model[draft_tokens=5].",
        )
    options: dict[str, str] = {}
    for name, _, value in pairs:
        if name in options:
            raise UserError("repeated_option", f"Label '{text}' gives option '{name}' twice; give it once.")
        options[name] = value
    label = Label(match["name"], tuple(options.items()))
    current = current_label(label.text)
    return label if current == label.text else parse_label(current)


def names(group: str) -> tuple[str, ...]:
    """Every method, engine or judge (METHODS, ENGINES or JUDGES) that can be named, sorted; imports none of them.

    A method's name is no engine.
    """
    found = {*_builtin(group), *_plugins(group)}
    return tuple(sorted(found - {*names(METHODS)} if group == ENGINES else found))


def builtin_names() -> tuple[str, ...]:
    """The methods that benchctl ships, sorted: the names of files and packages in methods/."""
    return _builtin(METHODS)


def source_sha256(name: str) -> str:
    """The hash of a method's file, or of all modules of the package that it is in."""
    kind = method_class(name)
    file = Path(getsourcefile(kind) or "")
    top, *rest = kind.__module__.split(".")
    folders = len(rest) - (2 if top == "benchctl" else 0) - (file.name != "__init__.py")  # from the package's to this
    files = [file] if folders < 0 else sorted(file.parents[folders].rglob("*.py"))
    return hashlib.sha256(b"".join(each.read_bytes() for each in files)).hexdigest()


def note_examined(name: str, label: str, passed: bool) -> None:
    """Keep what `doctor` found about a label of a method, for `doctor_result`: it holds for its code and benchctl's."""
    path = cache_folder() / _EXAMINED
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(_examined() | {f"{_code(name)} {label}": passed}), encoding="utf-8")


def doctor_result(name: str, label: str) -> Literal["", "passed", "failed", "never"]:
    """What this version's `doctor` found about this label of a plug-in whose code is as it is now, or else about its
    other labels: one that failed counts. "" for a method that benchctl ships."""
    if name in SHIPPED:
        return ""
    code = _code(name)
    found = {key: passed for key, passed in _examined().items() if key.startswith(f"{code} ")}
    known = [found[own]] if (own := f"{code} {label}") in found else list(found.values())
    return "never" if not known else "passed" if all(known) else "failed"


def _code(name: str) -> str:
    return f"{source_sha256(name)} {__version__}"


def _examined() -> dict[str, bool]:
    """Whether `doctor` passed a label, by the code that was examined and the label."""
    try:
        found = json.loads((cache_folder() / _EXAMINED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _builtin(group: str) -> tuple[str, ...]:
    """Names of files and of packages; a folder without __init__.py, as a deleted package leaves, is none."""
    folders = import_module(group).__path__
    return tuple(sorted(module.name for module in pkgutil.iter_modules(folders) if not module.name.startswith("_")))


def method_class(name: str) -> type[Method]:
    """The class behind a name. Raises UserError, listing the known names, for any other."""
    return class_of(METHODS, name)


def method_options(name: str) -> tuple[Option, ...]:
    """The options of a method with their kinds and defaults, as declared."""
    return options_of(method_class(name))


def build_engine(label: Label) -> Engine:
    """The engine that a label asks for. Raises UserError for an unknown engine or option and for a misfit value."""
    built: Engine = _built(label, class_of(ENGINES, label.name))
    return built


def build(label_text: str) -> Method:
    """The method that a label asks for. Raises UserError for an unknown method or option and for a misfit value."""
    from benchctl.decoding.method import Combines

    label = parse_label(label_text)
    built: Method = _built(label, method_class(label.name))
    if isinstance(built, Combines):
        parts = [build(part) for part in (built.first, built.then)]
        built.first = canonical_label(parts[0], parse_label(built.first))
        built.then = canonical_label(parts[1], parse_label(built.then))
        try:
            built.use_parts(parts)
        except ValueError as error:
            raise UserError("bad_option_value", f"{label.text}: {error}") from error
    return built


def build_judge(label: Label) -> Judge:
    """The judge that a label asks for. Raises UserError for an unknown judge or option and for a misfit value."""
    built: Judge = _built(label, class_of(JUDGES, label.name))
    return built


def canonical_label(built: Method | Engine, label: Label) -> str:
    """The one spelling of a label: only the options that differ from their defaults, in the order declared."""
    return Label(label.name, changed_options(built)).text


def with_trained(asked: Label, trained: Mapping[str, str]) -> Label:
    """The label with the options that its modules were trained with, but those it names.

    As many as it takes: one may have no effect with those that were asked for.
    """
    missing = {option.name for option in method_options(asked.name)} - {"modules", *dict(asked.options)}
    given = {name: value for name, value in trained.items() if name in missing}
    for count in range(len(given) + 1):
        for left_out in combinations(given, count):
            kept = {name: value for name, value in given.items() if name not in left_out}
            label = Label(asked.name, (*kept.items(), *asked.options))
            with suppress(UserError):
                build(label.text)
                return label
    return asked


def split_labels(texts: Sequence[str]) -> tuple[str, ...]:
    """The labels asked for, `all` replaced by every built-in method, repetitions dropped, first mention first."""
    expanded = [label for text in texts for label in (builtin_names() if text.strip() == "all" else (text.strip(),))]
    return tuple(dict.fromkeys(expanded))


def expand_sweep(text: str) -> tuple[str, ...]:
    """Every label of a search: values joined by | and steps from one number to another are alternatives, all combined.

    `m2r2[exit=2|4,width=1|3]` gives four labels, `early_exit[threshold=0.5:0.9:0.2]` three: 0.5, 0.7 and 0.9, and
    `combine[then=two_model[draft_tokens=2|4]]` two. Raises UserError for what is no label, for steps that lead nowhere,
    and where no option gives anything to choose from.
    """
    labels = _alternatives(text)
    if len(labels) < 2:
        raise UserError(
            "bad_sweep",
            f"'{text}' is no sweep. Join the values to try by |, as in two_model[draft_tokens=2|3|4], or give first, "
            "last and step, as in early_exit[threshold=0.5:0.9:0.1].",
        )
    return labels


def _alternatives(text: str) -> tuple[str, ...]:
    """Every label that a search means; none where a value is empty."""
    label = parse_label(text)
    names = [name for name, _ in label.options]
    choices = [
        dict.fromkeys(value for part in split_options(values, "|") for value in _values(text, part.strip()))
        for _, values in label.options
    ]
    combined = product(*choices) if all(map(all, choices)) else ()
    return tuple(Label(label.name, tuple(zip(names, values, strict=True))).text for values in combined)


def _values(text: str, part: str) -> Sequence[str]:
    """`0.5:0.9:0.2` as 0.5, 0.7, 0.9, counted in decimals so that no 0.30000000000000004 comes up; the alternatives of
    a part with options of its own; else the value."""
    if "[" in part and _LABEL.fullmatch(part):
        return _alternatives(part) or [""]
    if _STEPS.fullmatch(part) is None:
        return [part]
    first, last, step = map(Decimal, part.split(":"))
    if step <= 0 or last < first or (last - first) / step >= _MOST_STEPS:
        raise UserError(
            "bad_sweep", f"'{text}': {part} is first:last:step; it must go up, in at most {_MOST_STEPS} steps."
        )
    return [str(first + number * step) for number in range(int((last - first) / step) + 1)]


def class_of(group: str, name: str) -> type[Any]:
    noun = {JUDGES: "judge", ENGINES: "engine"}.get(group, "method")
    found = _class_in_file(group, name) if name in _builtin(group) else _plugin(group, name, noun)
    if not is_dataclass(found):
        raise UserError(
            "no_dataclass",
            f"{noun.title()} '{name}' is no dataclass, so it has no options to read; put @dataclass above it.",
        )
    return found


def _plugin(group: str, name: str, noun: str) -> type[Any]:
    plugins = _plugins(group)
    if name not in plugins:
        known = names(group)
        close = difflib.get_close_matches(name, known, n=1)
        hint = f" Did you mean '{close[0]}'?" if close else ""
        raise UserError(f"unknown_{noun}", f"Unknown {noun} '{name}'.{hint} Known {noun}s: {', '.join(known)}.")
    entry, owner = plugins[name], f"{noun.title()} '{name}'"
    try:
        plugin: type[Any] = entry.load()
    except (ImportError, AttributeError) as error:
        problem = f"{owner} ({entry.value}) cannot be imported: {error}. Reinstall it."
        raise UserError("broken_plugin", problem) from error
    return plugin


def _built(label: Label, kind: type[Any]) -> Any:
    options = convert_options(label.name, kind, label.options)
    try:
        return kind(**options)
    except ValueError as error:
        raise UserError("bad_option_value", f"{label.text}: {error}") from error


def _class_in_file(group: str, name: str) -> type[Any]:
    """The class named like its file or package, case and underscores ignored: early_exit.py holds EarlyExit."""
    module = import_module(f"{group}.{name}")
    wanted = name.replace("_", "").lower()
    for value in vars(module).values():
        if isinstance(value, type) and value.__name__.lower() == wanted:
            return value
    expected, file = name.title().replace("_", ""), "/__init__.py" if hasattr(module, "__path__") else ".py"
    raise UserError(
        "no_class_of_name",
        f"{group.rpartition('.')[2]}/{name}{file} has no class of its own name; call its class {expected}.",
    )


@cache
def _plugins(group: str) -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=group)}
