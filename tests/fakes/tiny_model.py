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
_FACTORISED = _SIZES | {"embedding_size": 16}
_DEBERTA = _SIZES | {"relative_attention": True, "position_biased_input": False, "type_vocab_size": 0}
# As the published checkpoints have it: which kinds of relative attention there are, and in what order.
_DEBERTA_V2 = _DEBERTA | {
    "pos_att_type": ["p2c", "c2p"], "position_buckets": 8, "norm_rel_ebd": "layer_norm", "share_att_key": True,
}  # fmt: skip
_MARKS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 3}
_DISTILBERT = {"dim": DIM, "n_layers": 2, "n_heads": 2, "hidden_dim": 64}
_SQUEEZEBERT = {f"{part}_groups": 2 for part in ("q", "k", "v", "post_attention", "intermediate", "output")}

# family -> name of its classes in transformers, configuration
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("Bert", _SIZES),
    "roberta": ("Roberta", _SIZES | {"type_vocab_size": 1}),
    "xlm-roberta": ("XLMRoberta", _SIZES | {"type_vocab_size": 1}),
    "camembert": ("Camembert", _SIZES | {"type_vocab_size": 1}),
    "distilbert": ("DistilBert", _DISTILBERT),
    "deberta": ("Deberta", _DEBERTA | {"pos_att_type": ["c2p", "p2c"], "max_relative_positions": -1}),
    "deberta-v2": ("DebertaV2", _DEBERTA_V2),
    "electra": ("Electra", _FACTORISED),
    "albert": ("Albert", _FACTORISED),
    "mpnet": ("MPNet", _SIZES),
    "modernbert": (
        "ModernBert",
        _SIZES | _MARKS | {"cls_token_id": 1, "sep_token_id": 3, "global_attn_every_n_layers": 2, "local_attention": 8},
    ),
    "nomic_bert": ("NomicBert", _SIZES),
    "eurobert": ("EuroBert", _SIZES | _MARKS),
    "squeezebert": ("SqueezeBert", _SIZES | {"embedding_size": DIM} | _SQUEEZEBERT),
    "mobilebert": (
        "MobileBert",
        _SIZES | {"embedding_size": DIM, "intra_bottleneck_size": 16, "num_feedforward_networks": 2},
    ),
    "roformer": ("RoFormer", _FACTORISED),
    "ernie": ("Ernie", _SIZES),
    "esm": ("Esm", _SIZES | {"pad_token_id": 1, "mask_token_id": 4, "position_embedding_type": "rotary"}),
    "convbert": ("ConvBert", _SIZES | {"embedding_size": DIM, "head_ratio": 1, "num_groups": 1, "conv_kernel_size": 3}),
    "fnet": ("FNet", {k: v for k, v in _SIZES.items() if k != "num_attention_heads"}),
    "longformer": ("Longformer", _SIZES | {"attention_window": [8, 8], "type_vocab_size": 1, "pad_token_id": 1}),
}
# In these, positions count from the padding index, which is 1: two of them are never used.
OFFSET_FAMILIES = frozenset({"roberta", "xlm-roberta", "camembert", "mpnet", "esm", "longformer"})


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


def write_tiny(
    folder: Path, *, family: str = "bert", head: str = "", pooling: dict[str, Any] | None = None, labels: int = LABELS
) -> Path:
    """A model folder of one of FAMILIES. head: "", ForSequenceClassification or ForTokenClassification, of `labels`
    classes; pooling: makes it a sentence-transformers folder with this pooling configuration, normalised."""
    folder.mkdir(parents=True, exist_ok=True)
    name, described = FAMILIES[family]
    positions = MAX_TOKENS + 2 if family in OFFSET_FAMILIES else MAX_TOKENS
    with known_noise_silenced():
        import torch
        import transformers

        torch.manual_seed(7)
        config = getattr(transformers, f"{name}Config")(
            **described, vocab_size=VOCABULARY, max_position_embeddings=positions, num_labels=labels
        )
        model = getattr(transformers, f"{name}{head or 'Model'}")(config)
        model.save_pretrained(str(folder))
    first = ("[CLS]", "[PAD]") if family in OFFSET_FAMILIES else ("[PAD]", "[CLS]")
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
        (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")  # no tensor at all
    return folder
