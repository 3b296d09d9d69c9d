"""Forms that checkpoints have: quantised weights that stand for plain ones, and folders that need a step first."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

from benchctl.errors import UserError

# How quantised weights are read as the values they stand for: transformers' configuration, and the packages it needs.
_DEQUANTISED = {
    "fp8": ("FineGrainedFP8Config", ("accelerate",)),
    "mxfp4": ("Mxfp4Config", ()),
    "compressed-tensors": ("CompressedTensorsConfig", ("compressed_tensors",)),
}
_TOKENIZER = ("*token*", "vocab*", "*.model", "*.tiktoken", "tekken*", "merges*")


def quantised_form(config: Any) -> str:
    """The name of the form of a model's quantised weights; "" for plain ones."""
    settings = getattr(config, "quantization_config", None)
    if not settings:
        return ""
    method = settings.get("quant_method", "") if isinstance(settings, dict) else settings.quant_method
    return str(getattr(method, "value", method)) or "unnamed"


def check_quantised(config: Any) -> None:
    """Raises UserError for quantised weights that cannot be read as the values they stand for."""
    if not (form := quantised_form(config)):
        return
    if form not in _DEQUANTISED:
        raise UserError(
            "quantised_checkpoint",
            f"weights of the form {form!r} cannot be read: transformers turns only {', '.join(_DEQUANTISED)} into "
            "plain values. Name the unquantised model, or measure this one with an engine (benchctl list engines).",
        )
    if missing := [name for name in _DEQUANTISED[form][1] if importlib.util.find_spec(name) is None]:
        package = missing[0].replace("_", "-")
        raise UserError(
            "quantised_checkpoint",
            f"weights of the form {form!r} need the package {package}: pip install {package}, or name the unquantised "
            "model.",
        )


def dequantising(config: Any) -> dict[str, Any]:
    """Options with which transformers reads quantised weights as the values they stand for; none for plain ones."""
    import transformers

    if not (form := quantised_form(config)):
        return {}
    return {"quantization_config": getattr(transformers, _DEQUANTISED[form][0])(dequantize=True)}


def check_folder(folder: Path) -> None:
    """Raises UserError for a folder from which no model can be loaded before something else is done."""
    ggufs = sorted(file.name for file in folder.glob("*.gguf"))
    if (folder / "adapter_config.json").is_file():
        check_adapter(folder, folder / "adapter_config.json")
    if (folder / "config.json").is_file():
        if not any(file for pattern in _TOKENIZER for file in folder.glob(pattern) if file.suffix != ".safetensors"):
            raise UserError(
                "no_tokenizer",
                f"{folder} has no tokenizer, so prompts cannot become token ids; copy tokenizer.json and "
                "tokenizer_config.json of the model it was made from into it.",
            )
    elif ggufs:
        files = " or ".join(str(folder / name) for name in ggufs[:3])
        raise UserError("gguf_in_folder", f"{folder} has no config.json but GGUF files; name the file itself: {files}.")
    else:
        raise UserError(
            "model_not_loadable",
            f"cannot load {folder}: it has no config.json, so it contains no model. Name a folder with config.json, or "
            "a GGUF file.",
        )


def check_adapter(path: str | Path, file: Path) -> None:
    """Raises UserError for the configuration ``file`` of an adapter: its model would run without it."""
    try:
        base = json.loads(file.read_text(encoding="utf-8")).get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError):
        base = None
    raise UserError(
        "adapter",
        f"{path} has an adapter{f' of {base}' if base else ''} (adapter_config.json), which benchctl does not apply. "
        "Merge it into the model with the package peft (merge_and_unload, then save_pretrained) and name the new "
        "folder.",
    )
