"""Write the encoder of a model folder as ONNX, for the rivals that run it. usage: export.py MODEL_FOLDER OUT.onnx

Inputs INT64 [rows, tokens], both free; output last_hidden_state FP32 [rows, tokens, dims].
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoModel


def main(folder: str, out: Path) -> None:
    """Export to a temporary file first, so that an interrupted export is never taken for a whole one."""
    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    names = ["input_ids", "attention_mask", "token_type_ids"]
    example = tuple(torch.ones(2, 16, dtype=torch.int64) for _ in names)
    rows, tokens = torch.export.Dim("rows", min=1, max=512), torch.export.Dim("tokens", min=2, max=512)

    class Encoder(torch.nn.Module):
        """Nothing but the hidden state."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
            """INT64 [rows, tokens] each -> FP32 [rows, tokens, dims]."""
            hidden = self.model(input_ids=ids, attention_mask=mask, token_type_ids=types).last_hidden_state
            assert isinstance(hidden, torch.Tensor)
            return hidden

    out.parent.mkdir(parents=True, exist_ok=True)
    scratch = out.with_name("new.onnx")
    torch.onnx.export(
        Encoder(),
        example,
        scratch,
        dynamo=True,
        input_names=names,
        output_names=["last_hidden_state"],
        dynamic_shapes=tuple({0: rows, 1: tokens} for _ in names),
        external_data=False,
    )
    scratch.rename(out)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
