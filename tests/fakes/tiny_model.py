"""Model folders of real architectures with random weights and a real tokenizer, small enough for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from arlo.compile.quiet import known_noise_silenced
from arlo.compile.texts import prose

MAX_TOKENS = 48
DIM = 32
LABELS = 3
VOCABULARY = 400

_SIZES = {"hidden_size": DIM, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}


def write_tokenizer(folder: Path, special: tuple[str, ...] = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")) -> None:
    """A WordPiece tokenizer of the prose that the build verifies with; the first special token has id 0."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=VOCABULARY, special_tokens=list(special), show_progress=False)
    tokenizer.train_from_iterator([prose()[:40_000]], trainer)
    ends = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    # As real folders have it, and as no repository should: texts silently cut and padded.
    tokenizer.enable_truncation(max_length=12)
    tokenizer.enable_padding(length=12)
    tokenizer.save(str(folder / "tokenizer.json"))


def write_tiny(folder: Path, *, family: str = "bert", head: str = "", pooling: dict[str, Any] | None = None) -> Path:
    """A model folder. head: "", ForSequenceClassification or ForTokenClassification; pooling: makes it a
    sentence-transformers folder with this pooling configuration, normalised."""
    folder.mkdir(parents=True, exist_ok=True)
    with known_noise_silenced():
        import torch
        import transformers

        torch.manual_seed(7)
        if family == "bert":
            config = transformers.BertConfig(
                **_SIZES, vocab_size=VOCABULARY, max_position_embeddings=MAX_TOKENS, num_labels=LABELS
            )
        elif family == "roberta":  # positions count from the padding index, which is 1
            config = transformers.RobertaConfig(
                **_SIZES,
                vocab_size=VOCABULARY,
                max_position_embeddings=MAX_TOKENS + 2,
                num_labels=LABELS,
                type_vocab_size=1,
            )
        else:
            config = transformers.DistilBertConfig(
                dim=DIM, n_layers=2, n_heads=2, hidden_dim=64, vocab_size=VOCABULARY,
                max_position_embeddings=MAX_TOKENS, num_labels=LABELS,
            )  # fmt: skip
        names = {"bert": "Bert", "roberta": "Roberta", "distilbert": "DistilBert"}
        model = getattr(transformers, f"{names[family]}{head or 'Model'}")(config)
        model.save_pretrained(str(folder))
    first = ("[CLS]", "[PAD]") if family == "roberta" else ("[PAD]", "[CLS]")
    write_tokenizer(folder, (*first, "[UNK]", "[SEP]", "[MASK]"))
    if pooling is not None:
        kinds = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
        modules = [
            {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for index, (kind, path) in enumerate(kinds.items())
        ]
        (folder / "modules.json").write_text(json.dumps(modules))
        (folder / "1_Pooling").mkdir(exist_ok=True)
        (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": DIM, **pooling}))
    return folder


def write_shell(folder: Path, *, weights: bool = True, **config: Any) -> Path:
    """A folder that looks like a model of the given config.json, as far as it looks before loading."""
    folder.mkdir(parents=True, exist_ok=True)
    described = {"model_type": "bert", "architectures": ["BertModel"], "max_position_embeddings": MAX_TOKENS}
    (folder / "config.json").write_text(json.dumps(described | config))
    if weights:
        (folder / "model.safetensors").write_bytes(b"weights")
    return folder
