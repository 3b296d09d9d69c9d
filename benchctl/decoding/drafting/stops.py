"""Where a draft that grows token by token ends.

By rules on the drafter's probabilities, or a length learnt from earlier drafts of the answer.

A rule is asked after each token, and the token that ends a draft stays in it. So sampled answers keep the target's
distribution under token and block verification alike.
"""

from __future__ import annotations

from math import log, prod, sqrt
from typing import Literal

import torch
from torch import Tensor

from benchctl.decoding.drafting.grow import wide

StopRule = Literal["confidence", "product", "entropy", "bandit"]
_WANTED_ACCEPTANCE, _ADJUSTMENT = 0.9, 0.001  # of "adaptive", as in the code of Draft & Verify
_ENTROPY_FACTOR = 0.2  # gamma of AdaEDL
_EXPLORATION = 0.15  # sqrt(2) in UCB1; less, because most drafts show what every length would have gained


class Stop:
    """When the drafts of one answer end; every draft has ``draft_tokens`` tokens at most.

    confidence  after a token with a probability below ``least`` (transformers' assistant_confidence_threshold)
    product     after tokens that together have a probability below ``least``
    adaptive    as confidence; after each draft ``least`` rises by 0.001 if a moving average of the acceptance rate is
                below 0.9, else it falls by that unless the draft was as long as possible (Draft & Verify, Zhang et al.
                2309.08168, by its code)
    entropy     after a token where 1 - sqrt(0.2 H(q)), which bounds its acceptance, is below ``least``
                (AdaEDL, Agrawal et al. 2410.18351; SVIP, 2411.18462, has the same form). Ours: the threshold
                is fixed, AdaEDL adapts it
    bandit      after the number of tokens with the best upper confidence bound of its reward (UCB1, Auer et al. 2002;
                BanditSpec, Hou et al. 2505.15141); not by ``least``

    ``least`` 0 never ends a draft. The reward of n tokens is committed tokens / (1 + ``token_cost`` n), where a drafted
    and verified token costs ``token_cost`` target passes. Ours: a draft whose first rejected token is known also shows
    what other lengths would have gained, so they learn from it too; the clock is never read, so steps can be repeated.
    """

    def __init__(self, rule: Literal[StopRule, "adaptive"], least: float, draft_tokens: int, token_cost: float) -> None:
        self._rule, self._least, self._most, self._token_cost = rule, least, draft_tokens, token_cost
        self._acceptance = 0.0  # moving average
        self._probs: list[float] = []
        self._gains = [0.0] * draft_tokens  # sums of rewards of 1, 2, ... tokens
        self._trials = [0] * draft_tokens

    def begin(self) -> int:
        """Tokens that the next draft has at most."""
        self._probs = []
        if self._rule != "bandit":
            return self._most
        total = sum(self._trials)
        bounds = [
            gain / trials + _EXPLORATION * sqrt(log(total) / trials) if trials else float("inf")
            for gain, trials in zip(self._gains, self._trials, strict=True)
        ]
        # Untried lengths come first, the longest before the others: it shows most about them.
        return max(range(self._most), key=lambda at: (bounds[at], at)) + 1

    def ends(self, draft_logits: Tensor, place: int) -> bool:
        """Whether the draft ends with the token at ``place`` of logits [1, k]; asked once per token, in order."""
        if self._rule == "bandit" or not self._least:
            return False
        probs = wide(draft_logits)[0].softmax(-1)
        if self._rule == "entropy":
            entropy = float(torch.special.entr(probs).sum())
            return 1.0 - sqrt(_ENTROPY_FACTOR * entropy) < self._least
        self._probs.append(float(probs[place]))
        likely = prod(self._probs) if self._rule == "product" else self._probs[-1]
        return likely < self._least

    def learn(self, drafted: int, accepted: int) -> None:
        """What verification gave: nothing about longer drafts where all was accepted."""
        if self._rule == "adaptive" and drafted:
            self._acceptance = 0.5 * self._acceptance + 0.5 * accepted / drafted
            if self._acceptance < _WANTED_ACCEPTANCE:
                self._least += _ADJUSTMENT
            elif drafted < self._most:
                self._least -= _ADJUSTMENT
        if self._rule != "bandit" or not drafted:
            return
        known = drafted if accepted == drafted else self._most
        for at in range(known):
            reward = (min(accepted, at + 1) + 1) / (1.0 + self._token_cost * (at + 1))
            self._gains[at] += reward / (self._most + 1)
            self._trials[at] += 1
