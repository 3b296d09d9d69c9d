"""How much of the baseline's answer a method's answer has, as text: the figures of summarising and translation.

They tell nothing of which answer is better, and a tie early in the text costs as much as a loss: see them beside the
verdicts. ROUGE-L is Lin: ROUGE, 2004 (F-measure of the longest common subsequence of words), by the rouge-score
library; chrF is Popovic: chrF, 2015 (F-measure of character n-grams up to 6, recall counting twice), by sacrebleu. The
baseline's answer is the reference. Both from 0 to 1: sacrebleu's 0 to 100 divided by 100.
"""

import re
from functools import cache, lru_cache
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd

if TYPE_CHECKING:
    from rouge_score.rouge_scorer import RougeScorer
    from sacrebleu.metrics.chrf import CHRF

_WORD = re.compile(r"[^\W_]+")
_KEPT = 1 << 16  # pairs of texts: repeats say the same, and a table asks more than once


class Overlap(NamedTuple):
    """ROUGE-L and chrF of an answer, from 0 to 1."""

    rouge_l: float
    chrf: float


@lru_cache(maxsize=_KEPT)
def overlap(text: str, reference: str) -> Overlap:
    """Of `text` with `reference`; 1 where they are equal, words in it or not."""
    if text == reference:
        return Overlap(1.0, 1.0)
    rouge, chrf = _scorers()
    rouge_l = rouge.score(reference, text)["rougeL"].fmeasure
    return Overlap(float(rouge_l), chrf.sentence_score(text, [reference]).score / 100)


def overlaps(pairs: pd.DataFrame) -> pd.DataFrame:
    """Columns `rouge_l` and `chrf` for each pair."""
    found = [overlap(*texts) for texts in zip(pairs["text"], pairs["text_baseline"], strict=True)]
    return pd.DataFrame(found, index=pairs.index, columns=list(Overlap._fields), dtype=float)


class _Words:
    """Words of any script in lower case; on ASCII those of rouge-score's own tokenizer, which drops all others."""

    def tokenize(self, text: str) -> list[str]:
        return _WORD.findall(text.lower())


@cache
def _scorers() -> "tuple[RougeScorer, CHRF]":
    """Made when the first two texts differ: rouge-score brings nltk along, which takes longer than the rest of it."""
    from rouge_score.rouge_scorer import RougeScorer
    from sacrebleu.metrics.chrf import CHRF

    return RougeScorer(["rougeL"], tokenizer=_Words()), CHRF()
