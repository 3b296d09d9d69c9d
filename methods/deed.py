"""Exit at the first layer whose adapted state is confident, and compute skipped layers when a later token needs them.

Tang et al.: DEED: Dynamic Early Exit on Decoder for Accelerating Encoder-Decoder Transformer Models, 2023, arXiv
2311.08623: an adaptation module per layer before one shared head, deep supervision, the largest probability as
confidence, deeper features just in time. Ours: the decoder-only port on a frozen target, low-rank modules, and
mode=draft, where the exits draft and the full model verifies (LayerSkip, 2404.16710).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from benchctl.decoding.adaptive import KvFill, View, deferred_exact
from benchctl.decoding.method import Context
from benchctl.decoding.model.target import Target, TargetInfo
from benchctl.decoding.modules.exits import ExitModule, ExitPolicy, Exits, exits_loss
from benchctl.decoding.modules.low_rank import AdapterSettings
from benchctl.decoding.modules.trainable import Trainable, TrainingBatch


@dataclass
class Deed(ExitPolicy, Trainable):
    """Exit at the first adapted layer whose largest probability reaches ``threshold``.

    mode          exit (lossy) or draft (exits draft, the full model verifies: exact)
    modules       folder of the trained adaptation modules
    threshold     probability that a token needs to exit; 0 exits at the first exit, above 1 never
    exits         exit layers joined by +, such as 4+8; empty: all exits of the modules, or every layer in training
    rank, alpha   inner units of a module, and its scale: its output is multiplied by alpha / rank (ours)
    draft_tokens  tokens drafted per verification in mode=draft
    draft_vocabulary  tokens that exits score in mode=draft: stored (those kept with the modules, if any) or whole;
                  probabilities are shares of these tokens
    """

    mode: Literal["exit", "draft"] = "exit"
    modules: str = ""
    threshold: float = 0.9
    exits: str = ""
    rank: int = 64
    alpha: float = 256.0
    draft_tokens: int = 4
    draft_vocabulary: Literal["stored", "whole"] = "stored"
    supports_encoder_decoder = True
    demo = ("mode=draft,threshold=0.3,exits=4,draft_tokens=2",)
    trained_for = ("alpha",)
    draws_tokens = True

    def __post_init__(self) -> None:
        super().__post_init__()
        AdapterSettings("bottleneck", self.rank, self.alpha)  # refuses what cannot be

    @property
    def kv_fill(self) -> KvFill:
        return deferred_exact

    def default_exits(self, layers: int) -> tuple[int, ...]:
        return tuple(range(1, layers))

    def build(self, info: TargetInfo, lm_head: Tensor) -> Exits:
        shape = (info.hidden_size, self.rank, lm_head.device, False, self.alpha / self.rank)
        return Exits({layer: ExitModule(*shape) for layer in self.exit_layers(info)}, {})

    def loss(self, module: Exits, batch: TrainingBatch) -> Tensor:
        """L = L_avg + L_N but for the terms of the last layer, which are constants, and their scale."""
        return exits_loss(module, batch)

    def prepare(self, target: Target) -> None:
        self.load_exits("deed", target)

    def decide(self, context: Context, view: View) -> bool:
        return self.threshold == 0 or view.confidence("softmax_max") >= self.threshold  # 0 needs no softmax
