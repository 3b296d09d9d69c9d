"""A target with an encoder through the command line: `run` with every method that claims such targets, and `doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from command import cli, ok
from fixtures_run import invoke_run
from tiny_encoder import random_folder
from untrained import facts_of, untrained

from benchctl.decoding.model.target import Target
from benchctl.decoding.modules.folders import save_modules
from benchctl.decoding.modules.trainable import Trainable
from benchctl.records.writer import read
from benchctl.registry import METHODS, build, method_class, names

NEW_TOKENS = 12
LABELS = (
    *("prompt_lookup", "suffix", "token_recycling", "combine[first=prompt_lookup,then=suffix]"),
    *("auto_exit", "early_exit[exits=2,threshold=0.1]", "deed[modules=exits,mode=draft,exits=2+3,threshold=0.1]"),
)


def encoding(folder: Path, name: str = "encoding") -> Target:
    """A T5 folder of this name, with modules for the label of deed in ``exits``."""
    target = Target.load(random_folder(folder / name))
    label = LABELS[-1]
    method = build(label)
    assert isinstance(method, Trainable)
    save_modules(folder / "exits", untrained(method, target), facts_of(label, method, target))
    return target


def test_every_method_that_claims_encoders_has_a_label_here() -> None:
    claiming = {name for name in names(METHODS) if method_class(name).supports_encoder_decoder}
    assert claiming == {label.partition("[")[0] for label in LABELS} | {"autoregressive"}


@pytest.mark.slow
def test_a_run_with_an_encoder_measures_every_method_that_claims_it(here: Path) -> None:
    """Every run of a T5 target was refused at its end: the encoded prompt was taken for a weight that changed.

    No test ran such a target through the command line.
    """
    target = encoding(here)
    asked = [word for label in LABELS for word in ("--method", label)]
    lengths = ("--max-new-tokens", NEW_TOKENS, "--repeats", 1)
    ok(invoke_run("--model", "encoding", "--draft-model", "", *asked, *lengths))
    file = read(here / "out.jsonl")
    rows = [row for row in file.rows if row.repeat >= 0]
    assert [row.error for row in rows] == [None] * len(rows) and len(rows) == 4 * (1 + len(LABELS))
    exact = {method.label for method in file.run.methods[1:] if method.exactness != "lossy"}
    assert len(exact) >= 5
    assert {row.verdict for row in rows if row.label in exact} == {"identical"}
    kind: Any = transformers.T5ForConditionalGeneration
    model = kind.from_pretrained(here / "encoding").eval()
    prompt = target.tokenizer.encode_chat([{"role": "user", "content": "Say something."}])
    settings = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "use_cache": False}
    expected = model.generate(torch.tensor([prompt]), **settings)[0, 1:].tolist()
    (plain,) = (row for row in rows if (row.label, row.prompt_id) == ("autoregressive", "short"))
    assert list(plain.token_ids) == expected


@pytest.mark.slow
def test_doctor_examines_methods_on_a_target_with_an_encoder(here: Path) -> None:
    encoding(here)
    asked = [word for label in LABELS for word in ("--method", label)]
    ok(cli("doctor", "--model", "encoding", *asked, "--bench", "three.jsonl"))
