"""What people run today: sentence-transformers and plain transformers, from text to embeddings, tokenising included."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any, cast

from arlo.compile.quiet import known_noise_silenced
from benchmarks.gpu.contenders.base import Batch, Call, Embeddings, forget, package_missing
from benchmarks.gpu.plan import Shape
from benchmarks.gpu.subject import Subject, load


def _cannot(precision: str, *packages: str) -> str:
    if reason := package_missing("torch", *packages):
        return reason
    import torch

    return "" if precision == "fp32" or torch.cuda.is_available() else f"{precision} is not measured on a CPU"


@dataclasses.dataclass(frozen=True, slots=True)
class Transformers:
    """AutoTokenizer and AutoModel; `padding` as in the tokenizer's argument."""

    padding: bool | str

    @property
    def backend(self) -> str:
        return "transformers"

    @property
    def name(self) -> str:
        return "transformers-longest" if self.padding is True else "transformers-maxlength"

    @property
    def shape(self) -> Shape:
        return "user" if self.padding is True else "padded"

    @property
    def slow(self) -> bool:
        return False

    def available(self, precision: str) -> str:
        return _cannot(precision, "transformers")

    def open(self, subject: Subject, length: int) -> _Model:
        return _Model(subject, self.padding)


class _Model:
    def __init__(self, subject: Subject, padding: bool | str) -> None:
        self._subject = subject
        self._padding = padding
        self._model = load(subject.folder, subject.precision).to(subject.device)

    def prepare(self, batch: Batch) -> Call:
        import torch

        tokenizer, model, device = self._subject.tokenizer, self._model, self._subject.device
        texts, most = batch.texts, self._subject.longest

        def whole() -> Embeddings:
            rows = tokenizer(texts, padding=self._padding, truncation=True, max_length=most, return_tensors="pt")
            rows = rows.to(device)
            with torch.inference_mode():
                hidden = model(**rows).last_hidden_state
                real = rows["attention_mask"].unsqueeze(-1)
                pooled = (hidden.float() * real).sum(1) / real.sum(1)
            return cast(Embeddings, pooled.cpu().numpy())

        return Call(whole)

    def close(self) -> None:
        self._model = None
        forget()


@dataclasses.dataclass(frozen=True, slots=True)
class SentenceTransformers:
    """SentenceTransformer(folder).encode(texts): mean pooling, padded to the longest text of the batch."""

    backend: str = "sentence-transformers"
    name: str = "sentence-transformers"
    shape: Shape = "user"
    slow: bool = False

    def available(self, precision: str) -> str:
        return _cannot(precision, "sentence_transformers")

    def open(self, subject: Subject, length: int) -> _Encoder:
        return _Encoder(subject)


class _Encoder:
    def __init__(self, subject: Subject) -> None:
        import torch
        from sentence_transformers import SentenceTransformer

        log = logging.getLogger("sentence_transformers")
        level = log.level
        log.setLevel(logging.ERROR)  # "no sentence-transformers model: mean pooling", which is what is wanted
        try:
            with known_noise_silenced():
                self._encoder: Any = SentenceTransformer(
                    str(subject.folder), device=subject.device, local_files_only=True
                )
        finally:
            log.setLevel(level)
        self._encoder.max_seq_length = subject.longest
        self._encoder.to({"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[subject.precision])

    def prepare(self, batch: Batch) -> Call:
        encoder = self._encoder

        def whole() -> Embeddings:
            found = encoder.encode(batch.texts, batch_size=len(batch.texts), show_progress_bar=False)
            return cast(Embeddings, found)

        return Call(whole)

    def close(self) -> None:
        self._encoder = None
        forget()


CONTENDERS: tuple[Any, ...] = (Transformers(True), Transformers("max_length"), SentenceTransformers())
