"""Dropping tokens: in each layer those go that receive the least attention, and nothing is left of them.

Padding goes first, which receives none; tokens that are left alone stay. As merging, it changes what the layers behind
compute on; unlike merging, what a token said is gone, so there is no answer for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_TIE = 1e-6  # of equals the later one goes
_KEPT, _PADDING = 1e4, -1.0  # beyond what a token can receive


def drop_tokens(
    hidden: torch.Tensor, received: torch.Tensor, size: torch.Tensor, kept: torch.Tensor, dropped: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Drop `dropped` tokens of each row.

    hidden: [rows, tokens, width]; received: [rows, tokens], the attention of heads and real queries; size: [rows,
    tokens], 0 for padding; kept: [rows, tokens], above 0 for tokens that are left alone. Returns hidden, size and kept
    of those that stay, in their order.
    """
    import torch

    real = (size > 0).to(hidden.dtype)
    at = torch.arange(hidden.shape[1], device=hidden.device).to(hidden.dtype)
    score = received * real + _PADDING * (1 - real) + _KEPT * kept - _TIE * at
    chosen = torch.topk(score, hidden.shape[1] - dropped, dim=-1).indices
    chosen = torch.topk(chosen, chosen.shape[1], dim=-1, largest=False).values  # in their order
    return (
        torch.gather(hidden, 1, chosen.unsqueeze(-1).expand(-1, -1, hidden.shape[2])),
        torch.gather(size, 1, chosen),
        torch.gather(kept, 1, chosen),
    )
