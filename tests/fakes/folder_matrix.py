"""Model folders, and how each is served or why it is refused, for tests/integration/test_folder_matrix.py."""

from __future__ import annotations

import dataclasses
from typing import Any

from tests.fakes.folders import LABELS
from tests.fakes.tiny_model import DIM, MAX_TOKENS

Module = tuple[str, dict[str, Any]]
MEAN: Module = ("Pooling", {"word_embedding_dimension": DIM, "pooling_mode_mean_tokens": True})
SWITCHES: Module = (
    "Pooling",
    {f"pooling_mode_{mode}_tokens": True for mode in ("weightedmean", "max", "mean", "mean_sqrt_len")}
    | {"word_embedding_dimension": DIM, "pooling_mode_cls_token": True},
)
NORMALIZE: Module = ("Normalize", {})
ADDED = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized", "special"), False)
PROMPTS = {"query": "ask: ", "document": "", "long": "One instruction, and a colon: "}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A folder, and what becomes of it."""

    task: str  # embed, rank, classify, tokens, answers
    folder: dict[str, Any]  # of write_folder
    limit: int = MAX_TOKENS  # tokens that the model takes
    refused: str = ""  # what the message says, in regular expressions that are all found
    onnx: bool = False  # served from an ONNX file of its network in onnx/

    @property
    def ids_only(self) -> bool:
        """There is no tokenizer."""
        return self.folder.get("files") == "none"


def pool(*modes: str, size: int = DIM, **config: Any) -> Module:
    """Pooling as newer folders have it."""
    return ("Pooling", {"embedding_dimension": size, "pooling_mode": modes[0] if len(modes) == 1 else modes, **config})


def dense(size: int, activation: str = "Tanh", *, of: int = DIM, bias: bool = True, **config: Any) -> Module:
    full = f"torch.nn.modules.{'linear' if activation == 'Identity' else 'activation'}.{activation}"
    return ("Dense", {"in_features": of, "out_features": size, "bias": bias, "activation_function": full, **config})


def embed(*modules: Module, limit: int = MAX_TOKENS, refused: str = "", onnx: bool = False, **folder: Any) -> Row:
    """An embedder. No modules: none at all."""
    folder = {"modules": modules or None, **folder}
    return Row(task="embed", folder=folder, limit=limit, refused=refused, onnx=onnx)


def labelled(task: str, labels: int = 0, *, refused: str = "", onnx: bool = False, **folder: Any) -> Row:
    """A classifier or a cross-encoder; config: over config.json."""
    head = {"tokens": "ForTokenClassification", "answers": "ForQuestionAnswering"}.get(
        task, "ForSequenceClassification"
    )
    if labels:
        named = dict(enumerate(LABELS[:labels]))
        folder |= {"id2label": named, "label2id": {label: number for number, label in named.items()}}
    return Row(task=task, folder={"head": head, **folder}, refused=refused, onnx=onnx)


def config(**changed: Any) -> dict[str, Any]:
    return {"extra": {"config.json": changed}}


def crossed(activation: str, *, refused: str = "") -> Row:
    """A cross-encoder that names its activation."""
    changed = config(sentence_transformers={"activation_fn": activation})
    return labelled("rank", 1, onnx=True, refused=refused, **changed)


def sentence(**said: Any) -> dict[str, Any]:
    return {"extra": {"config_sentence_transformers.json": said}}


def seq(length: int | None, name: str = "sentence_bert_config.json", **said: Any) -> dict[str, Any]:
    return {"extra": {name: {"max_seq_length": length, **said}}}


_NEW = {
    "transformer_task": "feature-extraction",
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    "module_output_name": "token_embeddings",
}
_SINGLE: dict[str, Any] = {"problem_type": "single_label_classification"}
_MULTI: dict[str, Any] = {"problem_type": "multi_label_classification"}

ROWS: dict[str, Row] = {
    # Families, each with another pooling.
    "bert": embed(MEAN, NORMALIZE),
    "bert-plain": embed(),
    "bert-masked": embed(head="ForMaskedLM"),
    "roberta": embed(pool("cls"), NORMALIZE, family="roberta"),
    "xlm-roberta": embed(pool("max"), family="xlm-roberta"),
    "camembert": embed(pool("mean_sqrt_len_tokens"), family="camembert"),
    "distilbert": embed(pool("weightedmean"), NORMALIZE, family="distilbert"),
    "mpnet": embed(pool("lasttoken"), family="mpnet"),
    "electra": embed(pool("cls", "mean", size=DIM), family="electra"),
    "albert": embed(pool("mean"), ("Dropout", {"dropout": 0.1}), family="albert"),
    "deberta-v2": embed(pool("max", "mean", "lasttoken"), NORMALIZE, family="deberta-v2", tokenizer="xlmr"),
    "modernbert": embed(pool("cls"), family="modernbert"),
    "nomic": embed(MEAN, family="nomic_bert"),
    "old-switches": embed(SWITCHES, onnx=True),
    # Decoders and the encoder of T5.
    "qwen3": embed(
        pool("lasttoken"), NORMALIZE, family="qwen3", head="ForCausalLM", tokenizer_config={"padding_side": "left"}
    ),
    "mistral": embed(pool("lasttoken"), NORMALIZE, family="mistral", tokenizer_config={"padding_side": "left"}),
    "t5": embed(pool("mean"), dense(24, "Identity", bias=False), NORMALIZE, family="t5", head="EncoderModel"),
    # Modules behind the pooling.
    "dense": embed(MEAN, dense(16), NORMALIZE),
    "dense-twice": embed(MEAN, dense(64, "Identity", bias=False), dense(20, "ReLU", of=64), onnx=True),
    "dense-after-norm": embed(pool("cls"), NORMALIZE, dense(16, "GELU"), new=True, onnx=True),
    "dense-residual": embed(MEAN, dense(24, "Identity", use_residual=True), refused="use_residual"),
    "layer-norm": embed(MEAN, ("LayerNorm", {"dimension": DIM}), NORMALIZE, onnx=True),
    "word-weights": embed(("WordWeights", {"vocab": [], "word_weights": {}}), refused="WordWeights"),
    "clip": embed(("CLIPModel", {}), refused="CLIPModel"),
    "no-pooling": embed(NORMALIZE, refused="Pooling"),
    "static": embed(("StaticEmbedding", {}), refused="StaticEmbedding"),
    "splade": embed(("SpladePooling", {"pooling_strategy": "max"}), head="ForMaskedLM", refused="SpladePooling"),
    "dense-before": embed(dense(DIM, module_input_name="token_embeddings"), MEAN, refused="Dense"),
    "remote-code": embed(
        MEAN, refused="model type", **config(model_type="new", auto_map={"AutoModel": "modeling.NewModel"})
    ),
    # Weights.
    "fp16-sharded": embed(MEAN, NORMALIZE, dtype="float16", weights="sharded"),
    "bf16-bin": embed(MEAN, dtype="bfloat16", weights="bin"),
    "subfolder": embed(MEAN, path="0_Transformer"),
    "limit-subfolder": embed(
        MEAN, limit=30, path="0_Transformer", extra={"0_Transformer/sentence_bert_config.json": {"max_seq_length": 30}}
    ),
    "classifier": embed(MEAN, head="ForSequenceClassification"),
    "saved": embed(
        MEAN,
        dense(16),
        NORMALIZE,
        saved_by="SentenceTransformer",
        extra={
            "sentence_bert_config.json": {"max_seq_length": 30},
            "config_sentence_transformers.json": {"prompts": PROMPTS, "default_prompt_name": "long"},
        },
        limit=30,
    ),
    "onnx": embed(MEAN, NORMALIZE, onnx=True, **sentence(prompts=PROMPTS)),
    "onnx-dense": embed(MEAN, dense(16), limit=24, onnx=True, **seq(24)),
    # Limits.
    "limit-sentence": embed(MEAN, NORMALIZE, limit=24, **seq(24)),
    "limit-old-name": embed(
        pool("cls"), NORMALIZE, limit=30, family="roberta", **seq(30, "sentence_roberta_config.json")
    ),
    "limit-tokenizer": embed(MEAN, limit=22, tokenizer_config={"model_max_length": 22}),
    "limit-both": embed(MEAN, limit=30, tokenizer_config={"model_max_length": 20}, **seq(30)),
    "limit-new": embed(
        MEAN, limit=26, new=True, tokenizer_config={"model_max_length": 26}, extra={"sentence_bert_config.json": _NEW}
    ),
    "limit-huge": embed(MEAN, tokenizer_config={"model_max_length": 10**30}, **seq(None)),
    "limit-above": embed(MEAN, **seq(4096)),
    "limit-none": embed(MEAN, tokenizer_config={"model_max_length": 20}, **seq(10**30)),
    "limit-options": embed(
        MEAN, limit=22, **seq(30, tokenizer_args={"model_max_length": 22}, processor_kwargs={"model_max_length": 26})
    ),
    "query-length": embed(MEAN, refused="query_length", **seq(24, query_length=16)),
    "model-kwargs": embed(MEAN, refused="model_kwargs", **seq(24, model_kwargs={"variant": "fp16"})),
    "limit-offset": embed(pool("cls"), NORMALIZE, family="roberta", tokenizer_config={"model_max_length": 512}),
    # Prompts and sizes.
    "prompts": embed(MEAN, NORMALIZE, **sentence(prompts=PROMPTS)),
    "default-prompt": embed(MEAN, **sentence(prompts=PROMPTS, default_prompt_name="query")),
    "default-document": embed(MEAN, **sentence(default_prompt_name="document")),
    "prompt-excluded": embed(pool("mean", include_prompt=False), refused="include_prompt", **sentence(prompts=PROMPTS)),
    "no-prompt-excluded": embed(pool("mean", include_prompt=False)),
    "truncate-dim": embed(MEAN, NORMALIZE, **sentence(prompts={}, truncate_dim=12)),
    # Tokenizer files.
    "json-alone": embed(MEAN, files="bare"),
    "json-cuts": embed(MEAN, NORMALIZE, stored=8),
    "lower-case": embed(MEAN, tokenizer_config={"do_lower_case": True}),
    "accents": embed(MEAN, tokenizer_config={"do_lower_case": True, "strip_accents": False}),
    "chinese": embed(MEAN, tokenizer_config={"tokenize_chinese_chars": False}),
    "lower-first": embed(MEAN, **seq(48, do_lower_case=True)),
    "lower-twice": embed(MEAN, tokenizer_config={"do_lower_case": True}, **seq(48, do_lower_case=True)),
    "prefix-space": embed(pool("cls"), NORMALIZE, family="roberta", tokenizer_config={"add_prefix_space": True}),
    "added-tokens": embed(MEAN, tokenizer_config={"added_tokens_decoder": {"600": ADDED | {"content": "kelpie"}}}),
    "added-tokens-file": embed(MEAN, extra={"added_tokens.json": {"kelpie": 601, "Sea": 602}}),
    "special-map": embed(
        MEAN, tokenizer_config={"cls_token": None}, extra={"special_tokens_map.json": {"cls_token": "[MASK]"}}
    ),
    "vocabulary": embed(MEAN, NORMALIZE, files="vocabulary"),
    "vocabulary-bpe": embed(pool("cls"), NORMALIZE, family="roberta", files="vocabulary"),
    "fast-class": embed(MEAN, tokenizer_config={"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": True}),
    "left-padding": embed(pool("cls"), onnx=True, tokenizer_config={"padding_side": "left"}),
    "left-cut": embed(MEAN, tokenizer_config={"truncation_side": "left"}, **sentence(prompts=PROMPTS)),
    "left-cut-bpe": embed(pool("cls"), family="roberta", tokenizer_config={"truncation_side": "left"}),
    "end-dropped": embed(pool("lasttoken"), NORMALIZE, family="mistral", tokenizer_config={"add_eos_token": False}),
    "sentencepiece": embed(MEAN, family="xlm-roberta", files="sentencepiece", refused="sentencepiece"),
    "no-tokenizer": embed(MEAN, files="none"),
    # Heads.
    "one-label": labelled("classify", 1),
    "unnamed-labels": labelled("classify", family="distilbert"),
    "five-labels": labelled("classify", 5),
    "swapped-labels": labelled("classify", onnx=True, **config(id2label={"1": "yes", "0": "no"})),
    "one-regression": labelled("classify", 1, onnx=True, **config(problem_type="regression")),
    "modernbert-labels": labelled("classify", 2, family="modernbert", classifier_pooling="mean"),
    "single-label": labelled("classify", 5, onnx=True, **config(**_SINGLE)),
    "multi-label": labelled("classify", 5, onnx=True, **config(**_MULTI)),
    "regression": labelled("classify", 5, onnx=True, **config(problem_type="regression")),
    "multi-label-roberta": labelled("classify", 2, family="roberta", **_MULTI),
    "applied-sigmoid": labelled("classify", 5, onnx=True, **config(function_to_apply="sigmoid")),
    "labels-as-words": labelled("classify", refused="id2label", **config(id2label={"yes": "a", "no": "b"})),
    "cross-encoder": labelled("rank", 1),
    "cross-identity": crossed("torch.nn.modules.linear.Identity"),
    "cross-tanh": crossed("torch.nn.modules.activation.Tanh"),
    "cross-softplus": crossed("torch.nn.modules.activation.Softplus", refused="Softplus"),
    "cross-own": crossed("mine.Activation", refused="mine.Activation"),
    "cross-left-cut": labelled("rank", 1, tokenizer_config={"truncation_side": "left"}),
    "cross-old": labelled("rank", 1, onnx=True, **config(sbert_ce_default_activation_function="torch.nn.Identity")),
    "cross-deberta": labelled("rank", 1, family="deberta-v2", tokenizer="xlmr"),
    "cross-qwen3": labelled("rank", 1, family="qwen3", refused="decoder"),
    "cross-saved": labelled(
        "rank", 1, saved_by="CrossEncoder", **config(sbert_ce_default_activation_function="torch.nn.Identity")
    ),
    "cross-regression": labelled("rank", 1, onnx=True, **config(problem_type="regression")),
    "tokens": labelled("tokens", 5, family="xlm-roberta"),
    "answers": labelled("answers"),
    # What is not served.
    "gpt2": embed(family="gpt2", head="LMHeadModel", refused="decoder"),
    "bart": embed(family="bart", refused="encoder-decoder"),
    "fnet": embed(MEAN, family="fnet", refused="padding"),
    "convbert": embed(MEAN, family="convbert", refused="padding"),
}
