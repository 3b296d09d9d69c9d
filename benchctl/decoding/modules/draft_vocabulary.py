"""The tokens that a drafter scores: a subset of a large vocabulary, kept in a file next to the drafter's weights.

Ids that are frequent in text, as in FR-Spec, Zhao et al. 2025, arXiv 2502.14856. Verification scores all tokens, so
answers, also sampled ones, stay those of the target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from benchctl.decoding.model.kernels import Linear
from benchctl.decoding.model.loading import DRAFT_VOCABULARY
from benchctl.decoding.model.target import Target
from benchctl.errors import UserError


def read_draft_vocabulary(folder: str | Path) -> Tensor | None:
    """The ids [k], int64 and ascending, of the draft vocabulary in ``folder``; None where the folder has none.

    Raises UserError for a file that holds anything else.
    """
    file = Path(folder) / DRAFT_VOCABULARY
    if not file.is_file():
        return None
    try:
        tensors = load_file(file)
        if list(tensors) != ["ids"] or tensors["ids"].dtype != torch.int32:
            raise ValueError("it must hold one tensor, ids, of int32")
        ids = tensors["ids"].long()
        _check(ids)
    except (OSError, ValueError, SafetensorError) as error:
        message = f"{file}: cannot be read ({error}); train the modules again, or get the folder again"
        raise UserError("file_not_readable", message) from error
    return ids


def write_draft_vocabulary(folder: Path, ids: Tensor) -> None:
    """Keep ``ids`` [k] in ``folder``. Raises ValueError unless they ascend from 0 or more and fit into int32."""
    _check(ids)
    save_file({"ids": ids.to("cpu", torch.int32).contiguous()}, folder / DRAFT_VOCABULARY)


def _check(ids: Tensor) -> None:
    if ids.dim() != 1 or len(ids) < 2:  # some confidences compare the two likeliest tokens
        raise ValueError(f"ids have shape {list(ids.shape)}; they must be a list of two ids at least")
    if int(ids[0]) < 0 or int(ids[-1]) > torch.iinfo(torch.int32).max or not bool((ids[1:] > ids[:-1]).all()):
        raise ValueError("ids must ascend, from 0 or more, without repeats")


@dataclass(frozen=True, eq=False)
class DraftVocabulary:
    """What stands behind a drafter's logits [rows, k]: the tokens ``ids`` [k], or where that is None all tokens.

    ``own_ids`` [k] are these tokens in the drafter's own vocabulary, where that is another one than the target's. With
    ids (3, 5, 9) the second of three logits is that of token 5.
    """

    ids: Tensor | None = None
    own_ids: Tensor | None = None

    @cached_property
    def _tokens(self) -> tuple[int, ...]:
        assert self.ids is not None, "a subset"
        return tuple(self.ids.tolist())

    @cached_property
    def _copies(self) -> dict[torch.device, Tensor]:
        return {}

    def _ids_on(self, device: torch.device) -> Tensor:
        """The ids on ``device``, copied there once: a copy at each step would be part of the step's time."""
        assert self.ids is not None, "a subset"
        if device not in self._copies:
            self._copies[device] = self.ids.to(device)
        return self._copies[device]

    @property
    def _columns(self) -> Tensor | None:
        return self.ids if self.own_ids is None else self.own_ids

    def lm_head(self, model: Target) -> Linear:
        """The LM head of ``model`` for these tokens: normed [rows, width] to logits [rows, k]. To be made once."""
        return model.lm_head if self._columns is None else model.head_rows(self._columns)

    def of(self, values: Tensor) -> Tensor:
        """[..., k] of ``values`` [..., vocabulary of the drafter]."""
        return values if self._columns is None else values[..., self._columns]

    def token(self, place: int) -> int:
        """The id behind the logit at ``place``."""
        return place if self.ids is None else self._tokens[place]

    def ids_at(self, places: Tensor) -> Tensor:
        """The ids behind the logits at ``places``."""
        return places if self.ids is None else self._ids_on(places.device)[places]

    def counters(self, answer: Sequence[int]) -> dict[str, float]:
        """What the harness counts for an answer: tokens that are scored, and those of the answer that are not."""
        if self.ids is None:
            return {}
        outside = ~torch.isin(torch.tensor(answer), self.ids)
        return {"draft_vocabulary": float(len(self.ids)), "outside_draft_vocabulary": float(outside.sum())}

    def spread(self, probs: Tensor, vocabulary: int) -> Tensor:
        """Probabilities [rows, k] as [rows, vocabulary]: 0 for the tokens that are not scored."""
        if self.ids is None:
            return F.pad(probs, (0, vocabulary - probs.shape[-1]))
        return probs.new_zeros(probs.shape[0], vocabulary).index_copy_(-1, self._ids_on(probs.device), probs)


ALL_TOKENS = DraftVocabulary()


class UsesDraftVocabulary:
    """Mix-in of a drafter that may score a draft vocabulary: ``class Mine(Speculative, UsesDraftVocabulary)``.

    The dataclass has an option ``draft_vocabulary: Literal["stored", "whole"] = "stored"``: what lies next to the
    drafter's weights, all tokens where nothing does; or all tokens. The harness counts the tokens of answers that lie
    outside.
    """

    draft_vocabulary: Literal["stored", "whole"]
    vocabulary: DraftVocabulary = ALL_TOKENS

    def load_vocabulary(self, folder: str | Path | None, tokens: int) -> None:
        """Read `vocabulary`, in `prepare`, for a target of so many tokens; ``folder`` holds the drafter's weights.

        Raises UserError for a damaged file, and for ids that the target does not have.
        """
        ids = None
        if folder is not None and self.draft_vocabulary == "stored":
            ids = read_draft_vocabulary(folder)
        if ids is not None and int(ids[-1]) >= tokens:
            raise UserError(
                "draft_vocabulary_too_large",
                f"{Path(folder or '') / DRAFT_VOCABULARY}: holds token {int(ids[-1])}, but the target has {tokens} "
                "tokens; name modules made for it, or give draft_vocabulary=whole",
            )
        self.vocabulary = DraftVocabulary(ids)
