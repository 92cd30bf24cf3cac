"""A model whose family encoder.py does not know: the code of transformers, on padded rows only.

Its folder holds config.json and weights.safetensors next to model.json. It needs transformers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .encoder import DTYPES, WEIGHTS, Architecture, Places, embedding, layer_of


class Foreign(nn.Module):
    """The part of `Encoder`'s interface that padded rows need."""

    packs = False

    def __init__(self, folder: Path, *, device: str, precision: str = "") -> None:
        super().__init__()
        import transformers
        from safetensors.torch import load_file

        self.arch = Architecture.read(folder)
        config = transformers.AutoConfig.from_pretrained(str(folder))
        dtype = DTYPES[precision or self.arch.precision]
        model = getattr(transformers, config.architectures[0])._from_config(config, dtype=dtype)
        weights = load_file(folder / WEIGHTS)
        tail = {name: weights.pop(name) for name in list(weights) if name.startswith("tail.")}
        model.load_state_dict(weights)
        self._model = model.eval().to(device)
        self.tail = nn.Sequential(*map(layer_of, self.arch.tail))
        self.tail.load_state_dict({name.removeprefix("tail."): tensor for name, tensor in tail.items()})
        self.tail.eval().to(device)

    def prepack(self) -> None:
        """Do nothing: the layers are those of transformers."""

    def padded(self, ids: Tensor, mask: Tensor | None, types: Tensor | None = None) -> Any:
        """The answer of transformers for `ids` [rows, tokens]."""
        given: dict[str, Tensor] = {"input_ids": ids, "attention_mask": torch.ones_like(ids) if mask is None else mask}
        if self.arch.types > 1:
            given["token_type_ids"] = torch.zeros_like(ids) if types is None else types
        return self._model(**given)

    def answers_padded(self, answer: Any, mask: Tensor | None) -> dict[str, Tensor]:
        """The outputs by name, float32."""
        if self.arch.outputs[0] != "sentence_embedding":
            return {name: answer[name].float() for name in self.arch.outputs}
        hidden = answer.last_hidden_state
        rows, tokens, width = hidden.shape
        places = Places.padded(rows, tokens, mask, hidden.device)
        return embedding(self.arch, hidden.reshape(-1, width), places, self.tail) | {
            "last_hidden_state": hidden.float()
        }
