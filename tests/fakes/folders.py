"""Model folders as hubs publish them, in tiny: any architecture, tokenizer file, module, head and limit."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from arlo.compile.quiet import known_noise_silenced
from arlo.compile.texts import prose
from tests.fakes.tiny_model import DIM, FAMILIES, MAX_TOKENS, OFFSET_FAMILIES

VOCABULARY = 700  # rows of every embedding table; tokenizers have fewer
LABELS = ("amber", "basil", "cedar", "delta", "ember")
TEXTS = (
    "which river is the longest of all",
    "The Café's ÉCLAIR costs 5",
    "naïve façade",
    "雨が降る, rain",
    "[MASK] and <mask> stay",
    "  two  spaces ",
    "tabs\tand\nlines",
    "Straße 🙂 x\u0301",
    "kelpie is a word",
)
LONG = "A walk along the Sea, and back again; " * 30

_LAYERS = ("num_hidden_layers", "num_layers", "n_layers", "n_layer")
_SIZES = {"hidden_size": DIM, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
_DECODER = _SIZES | {"num_key_value_heads": 1, "head_dim": 16, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_MORE: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("Qwen3", _DECODER),
    "mistral": ("Mistral", _DECODER | {"sliding_window": None}),
    "llama": ("Llama", _DECODER),
    "gpt2": ("GPT2", {"n_embd": DIM, "n_layer": 2, "n_head": 2, "bos_token_id": 1, "eos_token_id": 2}),
    "t5": ("T5", {"d_model": DIM, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2, "pad_token_id": 0}),
    "bart": ("Bart", {"d_model": DIM, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 64}),
    "luke": ("Luke", _SIZES | {"entity_vocab_size": 10, "pad_token_id": 1}),
    "ibert": ("IBert", _SIZES | {"pad_token_id": 1}),
}

# kind of tokenizer -> model, class in transformers, its special tokens by role in the order of their ids, templates
_BERT = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
_ROBERTA = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}
_KINDS: dict[str, tuple[str, str, dict[str, str], str, str]] = {
    "bert": ("WordPiece", "BertTokenizer", _BERT, "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1"),
    "mpnet": ("WordPiece", "MPNetTokenizer", _ROBERTA | {"unk": "[UNK]"}, "<s> $A </s>", "<s> $A </s> </s> $B </s>"),
    "roberta": ("BPE", "RobertaTokenizer", _ROBERTA, "<s> $A </s>", "<s> $A </s> </s> $B </s>"),
    "xlmr": ("Unigram", "XLMRobertaTokenizer", _ROBERTA, "<s> $A </s>", "<s> $A </s> </s> $B </s>"),
    "t5": ("Unigram", "T5Tokenizer", {"pad": "<pad>", "eos": "</s>", "unk": "<unk>"}, "$A </s>", "$A </s> $B </s>"),
    "qwen": ("BPE", "Qwen2Tokenizer", {"pad": "<pad>", "eos": "<eos>"}, "$A <eos>", "$A <eos> $B <eos>"),
    "mistral": ("BPE", "PreTrainedTokenizerFast", {"pad": "<unk>", "bos": "<s>", "eos": "</s>"}, "<s> $A </s>", ""),
}
_TOKENIZER_OF = {
    **dict.fromkeys(("roberta", "longformer", "luke", "ibert"), "roberta"),
    **dict.fromkeys(("xlm-roberta", "camembert", "esm"), "xlmr"),
    "mpnet": "mpnet",
    "t5": "t5",
    "qwen3": "qwen",
    **dict.fromkeys(("mistral", "llama", "gpt2"), "mistral"),
}


@functools.cache
def tokenizer_json(kind: str) -> str:
    """A tokenizer.json of this kind, trained on the prose and on TEXTS; it does not change the case."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    model, _, special, single, pair = _KINDS[kind]
    many: dict[str, Any] = {"vocab_size": 500, "special_tokens": list(special.values()), "show_progress": False}
    if model == "WordPiece":
        tokenizer = Tokenizer(models.WordPiece(unk_token=special["unk"]))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        trainer: Any = trainers.WordPieceTrainer(**many)
    elif model == "BPE":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), **many)
    else:
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
        )
        tokenizer.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(unk_token=special["unk"], **many)
    some = [prose()[:20_000], *TEXTS, *(text.lower() for text in TEXTS), *(text.upper() for text in TEXTS)]
    tokenizer.train_from_iterator(some * 2, trainer)
    ends = [(name, tokenizer.token_to_id(name)) for name in special.values()]
    tokenizer.post_processor = processors.TemplateProcessing(single=single, pair=pair or None, special_tokens=ends)
    return str(tokenizer.to_str())


def write_tokenizer(
    folder: Path, kind: str, *, files: str = "json", stored: int = 0, config: dict[str, Any] | None = None
) -> None:
    """The files of a tokenizer. files: `json`, `bare` (tokenizer.json alone), `vocabulary` (vocab.txt, or vocab.json
    and merges.txt), `sentencepiece`. stored: truncation and padding in tokenizer.json. config: over
    tokenizer_config.json."""
    from tokenizers import Tokenizer

    made = json.loads(tokenizer_json(kind))
    model, name, special, _, _ = _KINDS[kind]
    if files == "vocabulary":
        words = sorted(made["model"]["vocab"], key=made["model"]["vocab"].get)
        if model == "WordPiece":
            (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
        else:
            (folder / "vocab.json").write_text(json.dumps(made["model"]["vocab"]))
            merges = (pair if isinstance(pair, str) else " ".join(pair) for pair in made["model"]["merges"])
            (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n", encoding="utf-8")
    elif files == "sentencepiece":
        from transformers.utils import sentencepiece_model_pb2_new as proto

        pieces: Any = proto.ModelProto()  # type: ignore[attr-defined]
        for at, (piece, score) in enumerate(made["model"]["vocab"]):
            pieces.pieces.add(piece=piece, score=score, type=2 if piece == special["unk"] else 3 if at < 4 else 1)
        (folder / "sentencepiece.bpe.model").write_bytes(pieces.SerializeToString())
    else:
        tokenizer = Tokenizer.from_str(tokenizer_json(kind))
        if stored:
            tokenizer.enable_truncation(max_length=stored)
            tokenizer.enable_padding(length=stored)
        tokenizer.save(str(folder / "tokenizer.json"))
    if files != "bare":
        named: dict[str, Any] = {f"{role}_token": token for role, token in special.items()}
        if "cls" in named and kind != "bert":
            named |= {"bos_token": special["cls"], "eos_token": special["sep"]}
        if kind == "bert":
            named |= {"do_lower_case": False}
        described = {"tokenizer_class": name, "model_max_length": MAX_TOKENS, **named} | (config or {})
        (folder / "tokenizer_config.json").write_text(json.dumps({k: v for k, v in described.items() if v is not None}))


def write_network(
    folder: Path, *, family: str, head: str, weights: str = "safetensors", dtype: str = "float32", **config: Any
) -> None:
    """config.json and weights. weights: `safetensors`, `sharded`, `bin`; config: of transformers' configuration."""
    import torch
    import transformers

    prefix, described = (_MORE | FAMILIES)[family]
    positions = MAX_TOKENS + 2 if family in OFFSET_FAMILIES | {"luke", "ibert"} else MAX_TOKENS
    sizes = {"vocab_size": VOCABULARY, "max_position_embeddings": positions}
    if family == "t5":
        del sizes["max_position_embeddings"]
    if family in OFFSET_FAMILIES:
        described = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2} | described
    if family != "modernbert":  # whose layers differ; an export takes a second for each
        described = described | {name: 1 for name in described if name in _LAYERS}
    torch.manual_seed(7)
    made = getattr(transformers, f"{prefix}Config")(**described | sizes | config)
    model = getattr(transformers, f"{prefix}{head}")(made).eval()
    with torch.no_grad():
        for _, part in sorted(model.named_parameters()):
            noise = torch.randn_like(part)
            part.copy_(noise * 0.25 if part.dim() > 1 else part + noise * 0.1)
    model = model.to(getattr(torch, dtype))
    model.save_pretrained(folder, max_shard_size="50KB" if weights == "sharded" else "1GB")
    if weights == "bin":
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()


def write_modules(
    folder: Path, modules: tuple[tuple[str, dict[str, Any]], ...], *, path: str = "", new: bool = False
) -> None:
    """modules.json with Transformer first, and the folders of the others. new: names of modules since 5.4."""
    import torch
    from safetensors.torch import save_file

    base = {"Transformer", "Dense", "Normalize"}
    listed = []
    for at, (kind, config) in enumerate((("Transformer", {}), *modules)):
        place = path if at == 0 else f"{at}_{kind}"
        where = "base" if kind in base else "sentence_transformer"
        full = f"sentence_transformers.{where}.modules.{kind.lower()}" if new else "sentence_transformers.models"
        listed.append({"idx": at, "name": str(at), "path": place, "type": f"{full}.{kind}"})
        if at == 0:
            continue
        (folder / place).mkdir()
        if config:
            (folder / place / "config.json").write_text(json.dumps(config))
        made = torch.Generator().manual_seed(at)
        state = {}
        if kind == "Dense":
            shape = (config["out_features"], config["in_features"])
            state = {"linear.weight": torch.randn(shape, generator=made) * 0.3}
            if config["bias"]:
                state["linear.bias"] = torch.randn(shape[0], generator=made)
        elif kind == "LayerNorm":
            state = {f"norm.{name}": torch.randn(config["dimension"], generator=made) for name in ("weight", "bias")}
        if state:
            save_file(state, str(folder / place / "model.safetensors"))
    (folder / "modules.json").write_text(json.dumps(listed))


def write_folder(
    folder: Path,
    *,
    family: str = "bert",
    head: str = "Model",
    tokenizer: str = "",
    files: str = "json",
    stored: int = 0,
    tokenizer_config: dict[str, Any] | None = None,
    modules: tuple[tuple[str, dict[str, Any]], ...] | None = None,
    path: str = "",
    new: bool = False,
    extra: dict[str, Any] | None = None,
    saved_by: str = "",
    **network: Any,
) -> Path:
    """A model folder. modules: what sentence-transformers puts behind Transformer, which lies in `path`; None: no
    modules.json. extra: JSON by file name, over what is there. saved_by: class of sentence-transformers that loads the
    folder and saves it again, as it is written today. network: of `write_network`."""
    inner = folder / path
    inner.mkdir(parents=True)
    with known_noise_silenced():
        write_network(inner, family=family, head=head, **network)
        if files != "none":
            kind = tokenizer or _TOKENIZER_OF.get(family, "bert")
            write_tokenizer(inner, kind, files=files, stored=stored, config=tokenizer_config)
    if modules is not None:
        write_modules(folder, modules, path=path, new=new)
    for name, content in (extra or {}).items():
        place = folder / name
        there = json.loads(place.read_text()) if place.is_file() and isinstance(content, dict) else {}
        place.write_text(json.dumps(there | content if isinstance(content, dict) else content))
    if saved_by:
        import sentence_transformers

        with known_noise_silenced():
            model = getattr(sentence_transformers, saved_by)(str(folder), device="cpu", local_files_only=True)
            model.save_pretrained(str(folder), create_model_card=False)
    return folder
