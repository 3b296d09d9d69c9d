"""Everything that can be wrong with a run, checked before any weights are loaded."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchctl.decoding.model.target import TargetInfo
from benchctl.errors import UserError
from benchctl.measuring.choices import Choice, Models, check_tokenizers, choose_methods, choose_models
from benchctl.measuring.clock import utc_now
from benchctl.measuring.prompts.fit import Filler, fit_suite, make_filler
from benchctl.measuring.prompts.suites import Suite, load_suite
from benchctl.measuring.settings import ModelSettings, PromptSettings, RunSettings
from benchctl.records.writer import check_output, read

_NAMED = 2


@dataclass(frozen=True)
class CheckedRun:
    """A run that can start: its settings, with every default and choice filled in. The baseline is choices[0]."""

    settings: RunSettings
    choices: tuple[Choice, ...]
    models: Models
    suites: tuple[Suite, ...]
    dtype: str
    device: str
    out: Path
    filler: Filler = Filler()


def check(settings: RunSettings, notify: Callable[[str], None]) -> CheckedRun:
    """Read prompts, tokenizers and configurations and check everything else. Raises UserError."""
    _check_modes(settings)
    models = choose_models(settings.models)
    choices = choose_methods(settings.labels, models, settings.batch_size)
    device, dtype = choose_device(settings.models)
    check_out(settings.out, settings)
    tokenizer = check_tokenizers(models, choices, settings.batch_size)
    info = TargetInfo.of(tokenizer.config)
    choices = tuple(choice.fit(info) for choice in choices)
    filler = make_filler(tokenizer, settings.prompts.context_fill)
    suites = load_suites(settings.prompts, notify)  # may be downloaded, so last
    out = settings.out
    if out is None:
        out = settings.folder / f"{name_run(suites, choices, settings.labels)}.jsonl"
        check_out(out, settings)
    room = tokenizer.context_tokens - len(filler.ids)
    suites = tuple(fit_suite(suite, tokenizer, settings.prompts.long_prompts, notify, room) for suite in suites)
    return CheckedRun(settings, choices, models, suites, dtype, device, out, filler)


def _check_modes(settings: RunSettings) -> None:
    """Refuse --replay with sampling: acceptance of a draft depends on the text, so a forced text would change it."""
    if "replay" in settings.repeat.modes and settings.answers.temperature > 0:
        raise UserError("--replay forces a greedy text: leave out --temperature, or --replay.")


def choose_device(settings: ModelSettings) -> tuple[str, str]:
    """Device and dtype; "auto" is a GPU where there is one, bfloat16 on it and float32 on a CPU."""
    usable = torch.cuda.is_available()
    if settings.device == "cuda" and not usable:
        raise UserError("This machine has no GPU that torch can use; run with --device cpu.")
    device = ("cuda" if usable else "cpu") if settings.device == "auto" else settings.device
    dtype = ("bfloat16" if device == "cuda" else "float32") if settings.dtype == "auto" else settings.dtype
    return device, dtype


def load_suites(settings: PromptSettings, notify: Callable[[str], None]) -> tuple[Suite, ...]:
    """The prompts asked for, suite by suite, each bench once."""
    suites = tuple(
        load_suite(bench, source=settings.source, limit=settings.limit, notify=notify)
        for bench in dict.fromkeys(settings.benches)
    )
    names = [suite.name for suite in suites]
    double = next((name for name in names if names.count(name) > 1), None)
    if double is not None:
        raise UserError(f"Two suites are called '{double}', so their rows would be mixed up. Rename one file.")
    return suites


def check_out(out: Path | None, settings: RunSettings) -> None:
    """Raises UserError if `out` cannot be written, or cannot be resumed. `out` is None while it has no name."""
    if settings.resume and settings.out is None:
        raise UserError("--resume needs the results file: add --out FILE.")
    if out is None:
        return
    check_output(out, resume=settings.resume)
    if not out.exists():
        _check_folder(out)
    elif settings.resume and b"\n" in out.read_bytes():
        read(out)


def name_run(suites: Sequence[Suite], choices: Sequence[Choice], methods: Sequence[str]) -> str:
    """`<suite>-<label>-<time>`, without characters that are special in a shell or a file pattern."""
    benches = [suite.name for suite in suites]
    labels = [choice.label for choice in choices[1:]] or [choices[0].label]
    chosen = "all" if "all" in methods else _join(labels, "methods")
    time = utc_now().strftime("%Y%m%dT%H%M%S")
    return re.sub(r"[^\w.+=-]+", "-", f"{_join(benches, 'suites')}-{chosen}").strip("-") + f"-{time}"


def _join(names: Sequence[str], noun: str) -> str:
    return "+".join(names) if len(names) <= _NAMED else f"{len(names)}-{noun}"


def _check_folder(out: Path) -> None:
    """Tries to write: permission bits do not show a read-only file system, nor the rights of root."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out.parent):
            pass
    except OSError as error:
        raise UserError(f"{out}: cannot be written: {error.strerror}. Give another --out.") from error
