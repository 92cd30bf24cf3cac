"""The demo's check: served answers against those that transformers computes independently from the same texts."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

LIMIT = 1e-4


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Over `texts` embeddings: the largest absolute difference of any component."""

    texts: int
    largest: float

    @property
    def ok(self) -> bool:
        """Within LIMIT; no text compared is not."""
        return self.texts > 0 and self.largest <= LIMIT


class DirectModel:
    """A sentence-transformers MiniLM in transformers, one text at a time, nothing padded.

    Mean over the tokens, then scaled to length 1, as the model's card says.
    """

    def __init__(self, folder: Path) -> None:
        import torch
        import transformers

        torch.set_num_threads(1)
        transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        self._model = transformers.AutoModel.from_pretrained(str(folder), local_files_only=True).eval()

    def embed(self, row: str | Sequence[int]) -> NDArray[np.float32]:
        """The embedding, float32[dim], of a text or of token ids."""
        import torch

        ids = self._tokenizer(row)["input_ids"] if isinstance(row, str) else list(row)
        with torch.inference_mode():
            hidden = self._model(
                input_ids=torch.tensor([ids]), attention_mask=torch.ones((1, len(ids)), dtype=torch.int64)
            ).last_hidden_state
            vector = torch.nn.functional.normalize(hidden.mean(dim=1), dim=1)[0]
        result: NDArray[np.float32] = vector.numpy()
        return result


def compare(
    served: Sequence[tuple[Any, NDArray[Any]]], model: DirectModel, step: Callable[[], None] = lambda: None
) -> Difference:
    """`served`: (text or ids, embedding) pairs; `step` is called after each."""

    def difference(pair: tuple[Any, NDArray[Any]]) -> float:
        row, embedding = pair
        found = float(np.max(np.abs(embedding - model.embed(row))))
        return found if np.isfinite(found) else np.inf  # NaN must not pass as "no difference"

    # One text per core, each on one thread: threads that wait for each other crawl where other programs run too.
    pool = concurrent.futures.ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0)))
    largest = 0.0
    try:
        for found in pool.map(difference, served):
            largest = max(largest, found)
            step()
    finally:
        pool.shutdown(cancel_futures=True)
    return Difference(texts=len(served), largest=largest)
