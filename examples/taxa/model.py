"""The model: letters through a small convolutional backbone, one head for each rank of the taxonomy.

B: samples. L: letters. E: dimensions of a letter. W: width of the backbone. M: meta-features. C: classes of a rank.
"""

from collections.abc import Mapping

import torch
from data import COMPONENTS, META_DIM, PAD
from torch import Tensor, nn
from yacs.config import CfgNode


class Backbone(nn.Module):
    """Letters (B, L) and meta-features (B, M) to features (B, W), shared by all heads."""

    def __init__(self, letters: int, config: CfgNode) -> None:
        super().__init__()
        width, dim = config.WIDTH, config.LETTER_DIM
        self.letter = nn.Embedding(letters + 1, dim, padding_idx=PAD)
        self.near = nn.Conv1d(dim, width, 3, padding=1)
        self.far = nn.Conv1d(width, width, 3, padding=1)
        self.near_act, self.far_act, self.out_act = nn.GELU(), nn.GELU(), nn.GELU()
        self.query = nn.Parameter(torch.randn(1, 1, width) * width**-0.5)
        self.look = nn.MultiheadAttention(width, config.HEADS, batch_first=True)
        self.meta = nn.Linear(META_DIM + len(COMPONENTS), width)
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(config.DROPOUT)
        self.shared = nn.Linear(width, width)  # the last layer that all heads share: GradNorm looks at it

    def forward(self, letters_BL: Tensor, meta_BM: Tensor, shown: Tensor) -> Tensor:
        padding_BL = letters_BL == PAD
        x_BEL = self.letter(letters_BL).transpose(1, 2)
        x_BWL = self.near_act(self.near(x_BEL)).masked_fill(padding_BL[:, None], 0.0)
        x_BWL = x_BWL + self.far_act(self.far(x_BWL))
        x_BLW = x_BWL.transpose(1, 2)
        query = self.query.expand(len(letters_BL), 1, -1)
        seen_B1W, _ = self.look(query, x_BLW, x_BLW, key_padding_mask=padding_BL)
        x_BW = seen_B1W[:, 0] + x_BLW.amax(1) + self.meta(torch.cat([meta_BM, shown], 1))
        features: Tensor = self.out_act(self.shared(self.dropout(self.norm(x_BW))))
        return features


class Classifier(nn.Module):
    """The backbone with a head for each rank; returns scores (B, C) by rank."""

    def __init__(self, letters: int, classes: Mapping[str, int], config: CfgNode) -> None:
        super().__init__()
        self.backbone = Backbone(letters, config)
        self.heads = nn.ModuleDict({rank: nn.Linear(config.WIDTH, number) for rank, number in classes.items()})

    def forward(self, letters_BL: Tensor, meta_BM: Tensor, shown: Tensor) -> dict[str, Tensor]:
        features_BW = self.backbone(letters_BL, meta_BM, shown)
        return {rank: head(features_BW) for rank, head in self.heads.items()}
