"""A user's own models and prompts made ready for `benchctl verify`: in float64, whatever they are stored in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from benchctl.decoding.model.target import Target, TargetInfo
from benchctl.errors import UserError
from benchctl.measuring.check import choose_device, load_suites
from benchctl.measuring.choices import Choice, check_tokenizers, choose_methods, choose_models
from benchctl.measuring.prompts.conversation import messages
from benchctl.measuring.prompts.fit import fit_suite
from benchctl.measuring.run import ModelStore
from benchctl.measuring.settings import ModelSettings, PromptSettings


@dataclass(frozen=True)
class OwnModel:
    """The target under its name, the methods asked for, prepared for it or unsupported, and the ids of the prompts."""

    name: str
    target: Target
    choices: tuple[Choice, ...]
    prompts: tuple[list[int], ...]


def prepare(
    methods: Sequence[str], asked: PromptSettings, models: ModelSettings, notify: Callable[[str], None]
) -> OwnModel:
    """Check everything, then load the models.

    Raises UserError for what the user can put right: labels, models, prompts, a method that cannot run on this target.
    Prompts that leave no room for an answer are left out, and of a prompt with several turns only the first is asked.
    """
    names = choose_models(models)
    _, *choices = choose_methods(methods, names)
    if not choices:
        raise UserError("autoregressive is what methods are held to: name another --method.")
    device, _ = choose_device(models)
    tokenizer = check_tokenizers(names, choices)
    info = TargetInfo.of(tokenizer.config)
    choices = [choice.fit(info) for choice in choices]
    suites = load_suites(asked, notify)  # which may be far away, so all else comes first
    suites = tuple(fit_suite(suite, tokenizer, "skip", notify) for suite in suites)
    torch.set_num_threads(models.threads)
    store = ModelStore("float64", device)
    target = store(names.target)

    return OwnModel(
        name=names.target,
        target=target,
        choices=tuple(choice.prepare(target, store, names.draft) for choice in choices),
        prompts=tuple(tokenizer.encode_chat(messages(prompt, [])) for suite in suites for prompt in suite.prompts),
    )
