"""What figures stand on: the code, the machine, and models, modules and sizes, so that they can be taken again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from benchctl.decoding.model.target import Target
from benchctl.decoding.modules.trainable import modules_sha256
from benchctl.errors import UserError
from benchctl.measuring.check import Choice
from benchctl.measuring.clock import utc_now
from benchctl.measuring.machine.host import commit, machine_facts, versions
from benchctl.measuring.run import model_info
from benchctl.registry import parse_label


def circumstances() -> dict[str, object]:
    """When figures are taken, by which code, on what machine."""
    return {
        "created": utc_now().isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine_facts("cpu"),
        "versions": versions(),
    }


def without_places(label: str) -> str:
    """A label as figures name it."""
    return parse_label(label).without_places.text


def refuse_equal_names(choices: Sequence[Choice]) -> None:
    """Raises UserError where two labels would have the same name, their modules lying in folders of one name."""
    found: dict[str, str] = {}
    for choice in choices:
        other = found.setdefault(without_places(choice.label), choice.label)
        if other != choice.label:
            raise UserError(
                "equal_names",
                f"{other} and {choice.label} would both be named {without_places(choice.label)}; rename a folder, "
                "or measure each by itself.",
            )


def origin(
    models: Mapping[str, tuple[str, Target]], choices: Sequence[Choice], prompts: int, max_new_tokens: int
) -> dict[str, object]:
    """Facts and hashes of each model, by its role, given by name; the hash of each label's modules; the sizes.

    ``prompts`` are those of each embedded suite, which are part of the code.
    """
    modules = {without_places(choice.label): choice.modules for choice in choices}
    return {
        "models": {role: asdict(model_info(name, target)) for role, (name, target) in models.items()},
        "modules_sha256": {label: modules_sha256(folder) for label, folder in modules.items() if folder},
        "prompts_per_suite": prompts,
        "max_new_tokens": max_new_tokens,
    }
