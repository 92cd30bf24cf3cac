"""A vision transformer that merges tokens between attention and MLP of every layer, in torch, for one static size.

It follows ToMe (arXiv 2210.09461), which OTAS (arXiv 2401.05031, section II-C) adopts: the class token is left alone,
and keys are compared. Images have no padding, so every row has the same number of tokens, and the cost of merging does
not depend on the row's length as it does with text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from arlo.compile.adapt.merge import attend, check_layers, merge_tokens

if TYPE_CHECKING:
    import torch

FAMILIES = ("dinov2",)  # norms before attention and MLP, layer scales, absolute positions
PROTECTED = 1  # the class token


def merging_vit(body: Any, schedule: Sequence[int]) -> Any:
    """A torch module from `pixels` [rows, 3, height, width] to `hidden` [rows, left, width], normed, and `size`
    [rows, left], how many patches a token stands for. The class token is at place 0.

    body: a transformers model of one of FAMILIES. schedule: tokens that each layer merges away, [layers]; with zeros
    only it computes what the body computes. CompileError when the schedule has another number of layers.
    """
    import torch

    check_layers(body, schedule)

    class Merging(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = body

        def forward(self, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            hidden = self.body.embeddings(pixels)
            size = torch.ones_like(hidden[:, :, 0])
            places = torch.arange(hidden.shape[1], device=hidden.device).unsqueeze(0)
            kept = (places == 0).to(hidden.dtype).expand(hidden.shape[0], -1)
            for layer, merged in zip(self.body.encoder.layer, schedule, strict=True):
                inside, normed = layer.attention, layer.norm1(hidden)
                parts = (inside.q_proj, inside.k_proj, inside.v_proj)
                context, keys = attend(parts, inside.head_dim, normed, normed, size)
                hidden = hidden + layer.layer_scale1(inside.o_proj(context))
                if merged:
                    hidden, size, kept, _ = merge_tokens(hidden, keys, size, kept, merged)
                hidden = hidden + layer.layer_scale2(layer.mlp(layer.norm2(hidden)))
            return self.body.layernorm(hidden), size

    return Merging().eval()


def pool_image(hidden: torch.Tensor, size: torch.Tensor) -> torch.Tensor:
    """[rows, 2 width]: the class token, and the mean of the patches, a token as often as it stands for."""
    import torch

    weights = size[:, 1:].unsqueeze(-1)
    return torch.cat([hidden[:, 0], (hidden[:, 1:] * weights).sum(1) / weights.sum(1)], -1)
