"""Reading a checkpoint layer by layer, so that no more than one layer is held in two forms.

transformers' loader keeps the files mapped, and all weights converted, until the model is complete. Here a layer is
read when transformers' forward reaches it, becomes a layer of the target, and is dropped.
"""

from __future__ import annotations

import copy
import ctypes
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from benchctl.decoding.model.families import family_of
from benchctl.decoding.model.tokenizer import downloaded_file

Read = Callable[[str, Tensor], Tensor]
"""Turns a weight's name and stored tensor into the weight to use."""


class _EmptyOnMeta(TorchFunctionMode):
    """Weights that a model allocates get a shape only; what it computes from its configuration is real."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        place = {"device": "meta"} if function is torch.empty else {}
        return function(*args, **{**(kwargs or {}), **place})


@dataclass(frozen=True)
class Layerwise:
    """A ``model`` of transformers that has no weights yet, and the file of each weight."""

    model: Any
    files: Mapping[str, Path]

    def read_outside(self, read: Read, device: str) -> None:
        """Let ``read`` give the weights that are in no layer; what the model computed itself goes to ``device``."""
        prefix, _ = _layers(self.model)
        self._read((name for name in self.files if not name.startswith(f"{prefix}.")), read)
        self.model.tie_weights()
        self.model._apply(lambda tensor: tensor if tensor.is_meta else tensor.to(device))

    def each_layer(self, read: Read, use: Callable[[int], None]) -> None:
        """In the next forward of the model ``read`` gives each layer's weights; after ``use`` they are dropped."""
        prefix, layers = _layers(self.model)

        def register(index: int, layer: nn.Module) -> None:
            names = [f"{prefix}.{index}.{name}" for name, _ in layer.named_parameters()]

            # Weights made in inference mode could not take part in training.
            @torch.inference_mode(False)
            def before(*_: Any) -> None:
                self._read(names, read)

            @torch.inference_mode(False)
            def after(*_: Any) -> None:
                use(index)
                layer.to("meta")
                for hook in hooks:  # each keeps the model alive
                    hook.remove()
                _trim()

            hooks = (layer.register_forward_pre_hook(before), layer.register_forward_hook(after))

        for index, layer in enumerate(layers):
            register(index, layer)

    def _read(self, names: Iterable[str], read: Read) -> None:
        for name in names:
            # The file is closed after each weight: pages of an open one count as memory of the process.
            with safe_open(self.files[name], framework="pt") as file:
                weight = read(name, file.get_tensor(name))
            owner, _, leaf = name.rpartition(".")
            setattr(self.model.get_submodule(owner), leaf, nn.Parameter(weight, requires_grad=False))


def _trim() -> None:
    """Give free memory back to the system. glibc keeps it between blocks in use: 1 GB for a model that holds 3.6 GB."""
    with suppress(OSError, AttributeError, TypeError):  # other systems have no such function
        ctypes.CDLL(None).malloc_trim(0)


def _layers(model: Any) -> tuple[str, nn.ModuleList]:
    """Name and modules of a model's list of layers: the first list of that length, since lists in layers come later."""
    count = family_of(model.config).layers(model.config)
    lists = ((name, module) for name, module in model.named_modules() if isinstance(module, nn.ModuleList))
    return next((name, module) for name, module in lists if len(module) == count)


def open_layerwise(path: str | Path, config: Any, dtype: torch.dtype | None = None) -> Layerwise | None:
    """The model in a folder or hub id, ready to be read by layer in ``dtype``.

    None where transformers' own loader is needed: for an encoder, for pickled or quantised weights, for weights with
    other names or shapes than the model's, and for damaged files, whose fault it names.
    """
    from transformers import AutoModelForCausalLM

    if config.is_encoder_decoder or getattr(config, "quantization_config", None):
        return None
    try:
        found = {name: weight for file in _files(path) for name, weight in _weights(file)}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
    options = {"dtype": dtype, "experts_implementation": "eager", "trust_remote_code": False}
    with _EmptyOnMeta():
        model: Any = AutoModelForCausalLM.from_config(copy.deepcopy(config), **options)  # type: ignore[no-untyped-call]
    shapes = {name: tuple(weight.shape) for name, weight in model.named_parameters()}
    if {name: shape for name, (_, shape) in found.items()} != shapes or model._keep_in_fp32_modules:
        return None
    return Layerwise(model.eval(), {name: file for name, (file, _) in found.items()})


def reads_layerwise(path: str | Path, config: Any) -> bool:
    """Whether a folder is read by layer; of a hub id, whose files may not be here yet, whether its family allows it."""
    if not Path(path).is_dir():
        return not (config.is_encoder_decoder or family_of(config).experts_per_token(config))
    return open_layerwise(path, config) is not None


def _files(path: str | Path) -> list[Path]:
    """The safetensors files that transformers reads of a folder or hub id, downloaded where they are not cached."""
    folder = Path(path)

    def file(name: str) -> Path | None:
        found = folder / name if folder.is_dir() else downloaded_file(str(path), name)
        return found if found is not None and found.is_file() else None

    if (whole := file("model.safetensors")) is not None:
        return [whole]
    if (index := file("model.safetensors.index.json")) is None:
        return []
    names = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
    shards = [file(name) for name in dict.fromkeys(names)]
    return [shard for shard in shards if shard is not None]


def _weights(file: Path) -> Iterator[tuple[str, tuple[Path, tuple[int, ...]]]]:
    """Each weight in a safetensors file, with the file and its shape. Rotations in old files are computed instead.

    Format: github.com/huggingface/safetensors. The file is not mapped, since an estimate must not need that memory.
    """
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        head = json.loads(stream.read(min(length, file.stat().st_size)))
    weights = {name: each for name, each in head.items() if name != "__metadata__"}
    if 8 + length + max(each["data_offsets"][1] for each in weights.values()) != file.stat().st_size:
        raise ValueError(f"{file} is cut off")
    for name, each in weights.items():
        if not name.endswith("rotary_emb.inv_freq"):
            yield name, (file, tuple(each["shape"]))
