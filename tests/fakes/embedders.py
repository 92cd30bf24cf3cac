"""Small sentence-transformers folders of embedders that are more than BERT with a pooling."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from arlo.compile.quiet import known_noise_silenced
from tests.fakes.tiny_model import MAX_TOKENS, VOCABULARY, write_tokenizer

WIDTH = 32
_DECODER = {"num_key_value_heads": 2, "pad_token_id": 0, "max_position_embeddings": MAX_TOKENS}
_SIZES = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
# name -> class in transformers, configuration, architecture that config.json names
MODELS: dict[str, tuple[str, dict[str, Any], str]] = {
    "bert": ("Bert", _SIZES | {"max_position_embeddings": MAX_TOKENS}, "BertModel"),
    "qwen3": ("Qwen3", _SIZES | _DECODER | {"head_dim": 8}, "Qwen3ForCausalLM"),
    "mistral": ("Mistral", _SIZES | _DECODER | {"sliding_window": 16}, "MistralModel"),
    "t5": ("T5", {"d_model": WIDTH, "d_kv": 8, "num_layers": 2, "num_heads": 4, "d_ff": 48}, "T5EncoderModel"),
}


def write_embedder(
    folder: Path, name: str, *, pooling: str = "mean", layers: Sequence[Any] = (), padding_side: str = "right"
) -> Path:
    """Write a folder of one of MODELS. layers: modules of sentence-transformers behind the pooling."""
    folder.mkdir(parents=True, exist_ok=True)
    with known_noise_silenced():
        import torch
        import transformers

        kind, described, architecture = MODELS[name]
        torch.manual_seed(7)
        config = getattr(transformers, f"{kind}Config")(vocab_size=VOCABULARY, **described)
        model = getattr(transformers, f"{kind}{'Encoder' * (name == 't5')}Model")(config)
        with torch.no_grad():
            for weight in model.parameters():
                weight.copy_(torch.randn_like(weight) * 0.2 if weight.dim() > 1 else weight)
        model.config.architectures = [architecture]
        model.save_pretrained(str(folder))
        special = ("[PAD]", "[CLS]", "[UNK]", "[SEP]", "[MASK]")
        write_tokenizer(folder, special)
        named = {f"{token[1:-1].lower()}_token": token for token in special}
        told: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "padding_side": padding_side, **named}
        (folder / "tokenizer_config.json").write_text(json.dumps(told | {"model_max_length": MAX_TOKENS}))
        modules = [("Transformer", ""), ("Pooling", "1_Pooling")]
        (folder / "1_Pooling").mkdir(exist_ok=True)
        described = {"embedding_dimension": WIDTH, "pooling_mode": pooling}
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(described))
        for number, layer in enumerate(layers, start=2):
            modules.append((type(layer).__name__, f"{number}_{type(layer).__name__}"))
            (folder / modules[-1][1]).mkdir(exist_ok=True)
            layer.save(str(folder / modules[-1][1]))
        listed = [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in modules]
        for number, module in enumerate(listed):
            module["name"] = str(number)
        (folder / "modules.json").write_text(json.dumps(listed))
    return folder
