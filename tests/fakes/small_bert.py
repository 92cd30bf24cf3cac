"""A small BERT with random weights, and rows for it."""

from __future__ import annotations

import torch
import transformers


def body(layers: int = 3) -> object:
    """A small BERT with random weights."""
    torch.manual_seed(3)
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=40,
    )
    return transformers.BertModel(config, add_pooling_layer=False).eval()  # type: ignore[no-untyped-call]


def rows(lengths: list[int], width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random ids and mask [rows, width]."""
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(1, 50, (len(lengths), width), generator=generator)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        mask[row, :length] = 1
    return ids * mask, mask
