"""Families of models that our own layers reproduce: one file per group, found by its name."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from typing import Any

from benchctl.decoding.model.families.family import Family
from benchctl.decoding.model.forms import check_quantised
from benchctl.errors import UserError


class _Unknown(Family):
    """Facts of a model that our own layers do not run, by the usual names of its configuration's fields."""

    def kv_heads(self, config: Any) -> int:
        return self.heads(config) if hasattr(config, "v_head_dim") else super().kv_heads(config)

    def head_dim(self, config: Any) -> int:
        """Mean width of a key and a value, which differ in DeepSeek's attention."""
        if not hasattr(config, "v_head_dim"):
            return super().head_dim(config)
        return int(config.qk_nope_head_dim + config.qk_rope_head_dim + config.v_head_dim) // 2


_UNKNOWN = _Unknown()


@cache
def known() -> dict[str, Family]:
    """The family of each model type that our layers reproduce."""
    families: dict[str, Family] = {}
    for module in pkgutil.iter_modules(__path__):
        found = vars(importlib.import_module(f"{__name__}.{module.name}")).values()
        for kind in found:
            if isinstance(kind, type) and issubclass(kind, Family):
                families |= dict.fromkeys(kind.types, kind())
    return families


def family_of(config: Any) -> Family:
    """The family of a configuration. Raises UserError for a type that is not known."""
    if config.model_type not in known():
        raise UserError(
            "unknown_family",
            f"models of type {config.model_type!r} have no layers of benchctl's own, which this needs; known: "
            f"{', '.join(sorted(known()))}. `benchctl run` measures others by --executor transformers",
        )
    return known()[config.model_type]


def facts_of(config: Any) -> Family:
    """The family of a configuration or, for a type that is not known, what the usual names of its fields say."""
    return known().get(config.model_type, _UNKNOWN)


def check_family(config: Any) -> None:
    """UserError unless the configuration is of a family, and of a variant, that our layers reproduce."""
    family = family_of(config)
    check_quantised(config)
    family.check(config)


def context_tokens(config: Any) -> int:
    """Positions the model can take."""
    return facts_of(config).context_tokens(config)
