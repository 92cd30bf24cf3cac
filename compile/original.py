"""The original model in torch: loaded for the export, and again, as users run it, for the reference answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arlo.compile.pooling import pool_numpy
from arlo.compile.quiet import known_noise_silenced
from arlo.compile.resolve import SourceModel
from arlo.errors import CompileError

_CLASSES = {
    "embedding": "AutoModel",
    "sequence-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
}


def load_original(model: SourceModel, *, attention: str | None = None) -> Any:
    """The model in float32 and evaluation mode. CompileError when it does not load whole.

    attention: implementation to use; None: the one that transformers chooses.
    """
    import torch
    import transformers

    factory = getattr(transformers, _CLASSES[model.task])
    try:
        loaded, info = factory.from_pretrained(
            str(model.folder),
            dtype=torch.float32,
            local_files_only=True,
            output_loading_info=True,
            **({} if attention is None else {"attn_implementation": attention}),
        )
    except Exception as error:  # transformers, safetensors and torch each raise their own kinds
        raise CompileError(
            f"export: transformers cannot load {model.folder} as {model.task} ({type(error).__name__}: {error}): "
            "check that the folder is whole and its model type is one that this transformers version knows"
        ) from error
    # An embedding is made from the hidden states: a pooler that the checkpoint lacks plays no part in it.
    missing = [name for name in info["missing_keys"] if model.task != "embedding" or not name.startswith("pooler.")]
    if missing:
        raise CompileError(
            f"export: {model.folder} has no weights for {', '.join(sorted(missing)[:4])}: it was not trained for "
            f"{model.task}; choose another task or another folder"
        )
    return loaded.eval()


class Reference:
    """Answers of the original model, one row at a time and without padding. Loads the model when first asked.

    It runs the attention that transformers chooses, not the one that is exported: one more independent part.
    """

    def __init__(self, model: SourceModel) -> None:
        self._model = model
        self._loaded: Any = None
        self._answers: dict[tuple[int, ...], dict[str, NDArray[np.float64]]] = {}

    def answer(self, ids: Sequence[int]) -> dict[str, NDArray[np.float64]]:
        """Outputs by name for one row of token ids: [dim], or [tokens, dim] for token-level outputs."""
        key = tuple(ids)
        if key not in self._answers:
            self._answers[key] = self._compute(key)
        return self._answers[key]

    def _compute(self, ids: tuple[int, ...]) -> dict[str, NDArray[np.float64]]:
        with known_noise_silenced():
            import torch

            if self._loaded is None:
                self._loaded = load_original(self._model)
            with torch.inference_mode():
                row = torch.tensor([ids], dtype=torch.int64)
                answer = self._loaded(input_ids=row, attention_mask=torch.ones_like(row))
        if self._model.task != "embedding":
            return {"logits": answer.logits[0].double().numpy()}
        hidden = answer.last_hidden_state[0].numpy()
        pooled = pool_numpy(hidden, self._model.pooling, normalize=self._model.normalize)
        return {"sentence_embedding": pooled, "last_hidden_state": hidden.astype(np.float64)}
