"""A model under test: its folder, its texts, its torch module and its ONNX graph, each made once."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import numpy as np

from arlo.compile.quiet import known_noise_silenced
from arlo.compile.steps.resolve import demo_model_path
from arlo.compile.texts import prose
from arlo.errors import EnvironmentProblem
from benchmarks.gpu.contenders.base import Batch, Embeddings, forget

# The published configurations; the vocabulary is bert-base-uncased's size, whatever words it holds.
CONFIGS: dict[str, dict[str, int]] = {
    "bert-base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
    "bert-large": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
}
VOCABULARY = 30_522
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


class Subject:
    """Use in one thread. `close` gives the memory back."""

    def __init__(
        self,
        model: str,
        precision: str,
        *,
        device: str,
        work: Path,
        longest: int,
        max_batch: int,
        threads: int,
    ) -> None:
        self.model = model
        self.precision = precision
        self.device = device  # of torch: cpu, cuda
        self.longest = longest
        self.max_batch = max_batch
        self.threads = threads
        self.work = work
        self._module: Any = None
        self._reference: Any = None

    @functools.cached_property
    def folder(self) -> Path:
        """The Hugging Face folder; random weights of a real configuration are made when first asked for."""
        return model_folder(self.model, self.work)

    @functools.cached_property
    def tokenizer(self) -> Any:
        """As AutoTokenizer loads it."""
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(str(self.folder), local_files_only=True)

    def batch(self, length: int, rows: int) -> Batch:
        """The same rows each time it is asked: text of exactly `length` tokens, as the model's tokenizer sees it."""
        texts = [self._text(length, row) for row in range(rows)]
        ids = self.tokenizer(texts)["input_ids"]
        return Batch(length, np.array(ids, np.int64), texts)

    def _text(self, length: int, row: int) -> str:
        """Text of exactly `length` tokens: prose, or made words, and short words where a last one does not fit."""
        words = _prose_words() if self.model == "minilm" else _made_words()
        start = (row * 7919 + length * 101) % (len(words) // 2)
        text = list(words[start : start + length - 2])
        while (over := self._tokens(text) - length) > 0:
            del text[-max(1, over // 2) :]
        filler = "the" if self.model == "minilm" else _word(0)
        return " ".join(text + [filler] * (length - self._tokens(text)))

    def _tokens(self, words: list[str]) -> int:
        return len(self.tokenizer(" ".join(words), verbose=False)["input_ids"])

    def module(self) -> Any:
        """The torch module on the device: (input_ids, attention_mask) -> mean-pooled embeddings in float32."""
        if self._module is None:
            self._module = _pooled(load(self.folder, self.precision)).to(self.device).eval()
        return self._module

    def reference(self, batch: Batch) -> Embeddings:
        """The answer in float32 for the first and the last row, [1 or 2, dims]: what all are held against."""
        import torch

        if self._reference is None:
            exact = self.precision == "fp32"
            self._reference = self.module() if exact else _pooled(load(self.folder, "fp32")).to(self.device).eval()
        rows = batch.ends().padded(batch.length)
        with torch.no_grad():
            tensors = [torch.from_numpy(rows[name]).to(self.device) for name in ("input_ids", "attention_mask")]
            answer: Embeddings = self._reference(*tensors).cpu().numpy()
        return answer

    def close(self) -> None:
        """Give the modules' memory back."""
        self._module = self._reference = None
        forget()


def model_folder(model: str, work: Path) -> Path:
    """The Hugging Face folder of a model, made below `work` where it has random weights."""
    if model == "minilm":
        return demo_model_path()
    folder = work / "models" / model
    if not (folder / "complete").exists():
        _make(model, folder)
        (folder / "complete").touch()
    return folder


def load(folder: Path, precision: str) -> Any:
    """AutoModel in the precision, evaluation mode, without a pooler, which embeddings do not use."""
    import torch
    from transformers import AutoModel

    dtype = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[precision]
    with known_noise_silenced():  # the pooler of a checkpoint that is not loaded
        loaded = AutoModel.from_pretrained(str(folder), dtype=dtype, local_files_only=True, add_pooling_layer=False)
    return loaded.eval()


def _make(model: str, folder: Path) -> None:
    import torch
    from transformers import BertConfig, BertModel

    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    config = BertConfig(vocab_size=VOCABULARY, **CONFIGS[model])  # type: ignore[arg-type]
    BertModel(config, add_pooling_layer=False).save_pretrained(str(folder))
    _save_tokenizer(folder)


@functools.cache
def _prose_words() -> tuple[str, ...]:
    """Words of letters alone: some of them are several tokens."""
    return tuple(word for word in prose().split() if word.isalpha())


@functools.cache
def _made_words() -> tuple[str, ...]:
    """Words of the made vocabulary, each one token, in an order that looks like text."""
    random = np.random.default_rng(0)
    return tuple(_word(index) for index in random.integers(0, VOCABULARY - len(_SPECIAL), 20_000))


def _word(index: int) -> str:
    letters = "abcdefghijklmnopqrstuvwxyz"
    return "".join(letters[(index // 26**place) % 26] for place in range(4))


def _save_tokenizer(folder: Path) -> None:
    """A WordPiece tokenizer like BERT's whose vocabulary is made up: nothing is downloaded."""
    from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors
    from tokenizers.models import WordPiece
    from transformers import PreTrainedTokenizerFast

    words = {_word(index): index + len(_SPECIAL) for index in range(VOCABULARY - len(_SPECIAL))}
    vocabulary = {word: index for index, word in enumerate(_SPECIAL)} | words
    if len(vocabulary) != VOCABULARY:
        raise EnvironmentProblem(f"the made vocabulary has {len(vocabulary)} words, not {VOCABULARY}")
    tokenizer = Tokenizer(WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = dict(zip(("pad", "unk", "cls", "sep", "mask"), _SPECIAL, strict=True))
    fast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, model_max_length=512, **{f"{name}_token": token for name, token in names.items()}
    )
    fast.save_pretrained(str(folder))


def _pooled(original: Any) -> Any:
    import torch

    class Pooled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.original = original

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            hidden = self.original(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state.float()
            real = attention_mask.unsqueeze(-1).float()
            return (hidden * real).sum(1) / real.sum(1)

    return Pooled()


@dataclasses.dataclass(frozen=True, slots=True)
class Size:
    """What a forward pass of one row must do at least."""

    flops: float  # of the matrix products, two for each multiply-add
    weight_bytes: float  # in the precision


def size(folder: Path, precision: str, tokens: int) -> Size:
    """Counted from config.json: the linear layers, and the two products of attention."""
    import json

    config = json.loads((folder / "config.json").read_text())
    width, layers, inner = config["hidden_size"], config["num_hidden_layers"], config["intermediate_size"]
    linear = layers * (4 * width * width + 2 * width * inner)
    flops = 2.0 * tokens * linear + 4.0 * layers * width * tokens * tokens
    return Size(flops, linear * (4.0 if precision == "fp32" else 2.0))
