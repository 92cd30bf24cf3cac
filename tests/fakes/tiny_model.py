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


def write_tokenizer(
    folder: Path,
    special: tuple[str, ...] = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    kind: str = "WordPiece",
) -> None:
    """A tokenizer of the prose that the build verifies with: "WordPiece", "BPE" of bytes, or "Unigram". The first
    special token has id 0."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    many: dict[str, Any] = {"vocab_size": VOCABULARY, "special_tokens": list(special), "show_progress": False}
    if kind == "WordPiece":
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer: Any = trainers.WordPieceTrainer(**many)
    elif kind == "BPE":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), **many)
    else:
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.normalizer = normalizers.NFKC()
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(unk_token="[UNK]", **many)
    tokenizer.train_from_iterator([prose()[:40_000]], trainer)
    ends = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    if kind == "WordPiece":  # as real folders have it, and as no repository should: texts silently cut and padded
        tokenizer.enable_truncation(max_length=12)
        tokenizer.enable_padding(length=12)
    tokenizer.save(str(folder / "tokenizer.json"))


def describe_tokenizer(folder: Path, special: tuple[str, ...]) -> None:
    """tokenizer_config.json, by which transformers takes tokenizer.json as it is."""
    named = {f"{name[1:-1].lower()}_token": name for name in special}
    described = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": MAX_TOKENS, **named}
    (folder / "tokenizer_config.json").write_text(json.dumps(described))


def write_tiny(
    folder: Path,
    *,
    family: str = "bert",
    head: str = "",
    pooling: dict[str, Any] | None = None,
    labels: int = LABELS,
    tokenizer: str = "WordPiece",
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
    special = (*first, "[UNK]", "[SEP]", "[MASK]")
    write_tokenizer(folder, special, tokenizer)
    describe_tokenizer(folder, special)
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


def write_onnx(
    path: Path,
    *,
    outputs: tuple[str, ...] = ("last_hidden_state",),
    inputs: tuple[str, ...] = ("input_ids", "attention_mask"),
    axes: tuple[str | int, str | int] = ("batch", "sequence"),
    opset: int = 18,
    labels: int = LABELS,
    int32: bool = False,
    half: bool = False,
    external: bool = False,
) -> Path:
    """An ONNX file as exporters write it: a table of embeddings under the mask, and small heads on the first token.

    outputs: some of last_hidden_state, sentence_embedding, pooler_output, logits, token_logits. external: the weights
    lie in `<name>.data`. Inputs beside the mask and the ids are there and not used.
    """
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(3)
    kind, dtype = (TensorProto.FLOAT16, np.float16) if half else (TensorProto.FLOAT, np.float32)
    constants = {
        "table": random.normal(size=(VOCABULARY, DIM)).astype(dtype),
        "head": random.normal(size=(DIM, labels)).astype(dtype),
        "first": np.array(0, np.int64),
        "last_axis": np.array([2], np.int64),
    }
    old = opset < 13  # Unsqueeze took its axes as an attribute
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["embedded"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=kind),
        helper.make_node("Unsqueeze", ["mask"], ["mask3"], axes=[2])
        if old
        else helper.make_node("Unsqueeze", ["mask", "last_axis"], ["mask3"]),
        helper.make_node("Mul", ["embedded", "mask3"], ["last_hidden_state"]),
        helper.make_node("Gather", ["last_hidden_state", "first"], ["sentence_embedding"], axis=1),
        helper.make_node("Tanh", ["sentence_embedding"], ["pooler_output"]),
        helper.make_node("MatMul", ["sentence_embedding", "head"], ["logits"]),
        helper.make_node("MatMul", ["last_hidden_state", "head"], ["token_logits"]),
    ]
    rows, tokens = axes
    shapes = {
        **{name: [rows, DIM] for name in ("sentence_embedding", "pooler_output")},
        "last_hidden_state": [rows, tokens, DIM],
        "logits": [rows, labels],
        "token_logits": [rows, tokens, labels],
    }
    integer = TensorProto.INT32 if int32 else TensorProto.INT64
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info(name, integer, list(axes)) for name in inputs],
        [helper.make_tensor_value_info(name, kind, shapes[name]) for name in outputs],
        [
            numpy_helper.from_array(array, name)
            for name, array in constants.items()
            if not (old and name == "last_axis")
        ],
    )
    for node in graph.node:  # the head of tokens goes by the name of the other one
        if node.output[0] == "token_logits" and "token_logits" in outputs:
            node.output[0] = "logits"
        elif node.output[0] == "logits" and "token_logits" in outputs:
            node.output[0] = "row_logits"
    for value in graph.output:
        if value.name == "token_logits":
            value.name = "logits"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.save(model, str(path), save_as_external_data=external, location=f"{path.name}.data", size_threshold=1024)
    return path
