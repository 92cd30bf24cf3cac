"""Step 3 for the engine torch: the original model becomes `model.json` and `weights.safetensors` of its encoder.

Input: the source folder. Output: a model folder as `arlo.templates.torch.encoder` reads it; the weights in the
precision asked for. A family that the encoder does not know keeps the code of transformers, see
`templates/torch/foreign`. Cache key: config and weight hashes, task, pooling, precision, versions, this code.
Check: `verify`, against the original.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from arlo.compile.cache import Cache, Entry, code_version, tool_versions
from arlo.compile.engines.interface import EngineSettings, Precision
from arlo.compile.layers import torch_layers
from arlo.compile.original import answer_of, load_original
from arlo.compile.quiet import known_noise_silenced
from arlo.compile.repository.triton_config import model_code
from arlo.compile.steps.resolve import SourceModel
from arlo.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from arlo.templates.torch.encoder import Architecture

TOOLS = ("torch", "transformers", "safetensors")
FAMILIES = ("bert", "roberta", "xlm-roberta", "camembert", "mpnet", "distilbert", "electra", "modernbert", "nomic_bert")
_MPNET_BUCKETS = 32  # transformers ignores the number in config.json
_UNBOUNDED = 1 << 20  # positions of a model that has no limit
_OFFSET = ("roberta", "xlm-roberta", "camembert", "mpnet")
_ACTIVATIONS = {
    **{"gelu": "gelu", "relu": "relu", "silu": "silu", "swish": "silu", "tanh": "tanh"},
    **dict.fromkeys(("gelu_new", "gelu_pytorch_tanh", "gelu_fast"), "gelu_tanh"),
}

# Names of the encoder -> names below the family's base model; {} is the number of a layer. Several are joined by rows.
_EMBEDDINGS = {
    "word": "embeddings.word_embeddings",
    "position": "embeddings.position_embeddings",
    "token_type": "embeddings.token_type_embeddings",
    "norm": "embeddings.LayerNorm",
}
_BERT = _EMBEDDINGS | {
    "project": "embeddings_project",
    "qkv": "encoder.layer.{}.attention.self.query encoder.layer.{}.attention.self.key "
    "encoder.layer.{}.attention.self.value",
    "out": "encoder.layer.{}.attention.output.dense",
    "norm1": "encoder.layer.{}.attention.output.LayerNorm",
    "up": "encoder.layer.{}.intermediate.dense",
    "down": "encoder.layer.{}.output.dense",
    "norm2": "encoder.layer.{}.output.LayerNorm",
}
_NAMES: dict[str, dict[str, str]] = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert", "electra"), _BERT),
    "mpnet": _BERT
    | {
        "qkv": "encoder.layer.{}.attention.attn.q encoder.layer.{}.attention.attn.k encoder.layer.{}.attention.attn.v",
        "out": "encoder.layer.{}.attention.attn.o",
        "norm1": "encoder.layer.{}.attention.LayerNorm",
    },
    "distilbert": _EMBEDDINGS
    | {
        "qkv": "transformer.layer.{}.attention.q_lin transformer.layer.{}.attention.k_lin "
        "transformer.layer.{}.attention.v_lin",
        "out": "transformer.layer.{}.attention.out_lin",
        "norm1": "transformer.layer.{}.sa_layer_norm",
        "up": "transformer.layer.{}.ffn.lin1",
        "down": "transformer.layer.{}.ffn.lin2",
        "norm2": "transformer.layer.{}.output_layer_norm",
    },
    "modernbert": {
        "word": "embeddings.tok_embeddings",
        "norm": "embeddings.norm",
        "last_norm": "final_norm",
        "qkv": "layers.{}.attn.Wqkv",
        "out": "layers.{}.attn.Wo",
        "norm1": "layers.{}.attn_norm",
        "up": "layers.{}.mlp.Wi",
        "down": "layers.{}.mlp.Wo",
        "norm2": "layers.{}.mlp_norm",
    },
    "nomic_bert": _EMBEDDINGS
    | {
        "qkv": "layers.{}.self_attn.q_proj layers.{}.self_attn.k_proj layers.{}.self_attn.v_proj",
        "out": "layers.{}.self_attn.o_proj",
        "norm1": "layers.{}.post_attention_layernorm",
        "up": "layers.{}.mlp.gate_proj layers.{}.mlp.up_proj",
        "down": "layers.{}.mlp.down_proj",
        "norm2": "layers.{}.post_mlp_layernorm",
    },
}
# Heads: how a row becomes a vector, then the module of each layer, or the activation where there is no such module.
_POOLER = ("cls", "{base}.pooler.dense", "tanh", "classifier")
_DENSE = ("cls", "classifier.dense", "tanh", "classifier.out_proj")
_ROW_HEADS: dict[str, tuple[str, ...]] = {
    "bert": _POOLER,
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert", "mpnet"), _DENSE),
    "electra": ("cls", "classifier.dense", "gelu", "classifier.out_proj"),
    "distilbert": ("cls", "pre_classifier", "relu", "classifier"),
    "modernbert": ("{pooling}", "head.dense", "{activation}", "head.norm", "classifier"),
}
_TOKEN_HEADS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(FAMILIES, ("", "classifier")),
    "modernbert": ("", "head.dense", "{activation}", "head.norm", "classifier"),
}
_SPAN_HEADS = {family: head if family == "modernbert" else ("", "qa_outputs") for family, head in _TOKEN_HEADS.items()}


def export_torch_step(cache: Cache, model: SourceModel, precision: Precision) -> Entry:
    """Entry with the model folder; meta: `outputs` (as OutputTensor fields), `notes`, and `packs`, whether its family
    may be packed. ConfigError for a source without a torch model: an ONNX file, or inputs other than text."""
    if model.onnx is not None or model.row_length is not None:
        raise ConfigError(f"{model.source} is not a folder of a text encoder for torch: use --engine onnxruntime")
    parts = {
        "hashes": model.hashes,
        "task": model.task,
        "pooling": model.pooling,
        "layers": [layer.kind for layer in model.layers],
        "normalize": model.normalize,
        "positions": model.positions,
        "precision": precision,
        "tools": tool_versions(*TOOLS),
        "code": [code_version("steps/export_torch", "original", "layers"), *map(cache.hash, model_code("torch"))],
    }
    return cache.step("export", parts, lambda folder: export_torch(model, precision, folder))


def kinds_of(settings: EngineSettings, exported: Entry) -> EngineSettings:
    """The settings, with the kinds that pay for the family if none are named. ConfigError for `packed` if the family
    cannot be packed."""
    packs = bool(exported.meta["packs"])
    if "packed" in settings.kinds and not packs:
        family = exported.meta["family"]
        why = f"models of the type {family} are not packed here, only {', '.join(FAMILIES)}"
        if family in FAMILIES:
            why = f"this {family} has a head, an activation or a setting that is not packed here"
        raise ConfigError(f"{why}: use --kinds static,dynamic")
    return dataclasses.replace(settings, kinds=settings.kinds or ("static", "packed" if packs else "dynamic"))


def export_torch(model: SourceModel, precision: Precision, folder: Path) -> dict[str, Any]:
    """Write the model folder; returns the meta of `export_torch_step`."""
    from arlo.compile.steps.export import describe_output

    with known_noise_silenced() as notes:
        import torch
        from safetensors.torch import save_file

        from arlo.templates.torch.encoder import CONFIG, DTYPES, WEIGHTS

        original = load_original(model)
        arch, weights = convert(model, original, precision)
        arch.write(folder)
        if arch.family == "transformers":
            original.config.architectures = [type(original).__name__]
            original.config.save_pretrained(folder)
            weights = dict(original.state_dict())
        dtype = DTYPES[precision]
        kept = {
            name: tensor.to(dtype if tensor.is_floating_point() else tensor.dtype) for name, tensor in weights.items()
        }
        layers = torch_layers(model.layers, normalize=False)
        kept |= {f"tail.{name}": tensor for name, tensor in layers.state_dict().items()}
        save_file({name: tensor.contiguous().clone() for name, tensor in kept.items()}, folder / WEIGHTS)
        (folder / WEIGHTS).chmod((folder / CONFIG).stat().st_mode)  # safetensors leaves it to its owner alone
        ids = torch.full((2, 9), model.inputs[0].pad_value + 1)
        with torch.inference_mode():
            answer = answer_of(original, input_ids=ids, attention_mask=torch.ones_like(ids))
    if model.task == "embedding":
        width = answer.last_hidden_state.shape[-1]
        pooled = layers(torch.zeros(2, width * len(model.pooling)))
        shapes = {"sentence_embedding": tuple(pooled.shape), "last_hidden_state": (2, 9, width)}
    else:
        shapes = {name: tuple(answer[name].shape) for name in arch.outputs}
    return {
        "outputs": [describe_output(name, shape) for name, shape in shapes.items()],
        "notes": notes,
        "packs": arch.family != "transformers",
        "family": model.model_type,
    }


def convert(model: SourceModel, original: Any, precision: Precision) -> tuple[Architecture, dict[str, Any]]:
    """The encoder equivalent to the transformers model `original`, and its float32 weights by the encoder's names; for
    an unknown family, the family `transformers` without weights."""
    from arlo.templates.torch.encoder import Architecture

    config, family = original.config, model.model_type
    common: dict[str, Any] = {
        "vocabulary": config.vocab_size,
        "width": config.hidden_size,
        "layers": config.num_hidden_layers,
        "heads": config.num_attention_heads,
        "positions": model.positions or _first(config, "max_position_embeddings") or _UNBOUNDED,
        "pad": model.inputs[0].pad_value,
        "pooling": model.pooling,
        "tail": tuple(layer.kind for layer in model.layers),
        "normalize": model.normalize,
        "outputs": _outputs(model),
        "precision": precision,
    }
    activation = _ACTIVATIONS.get(_first(config, "hidden_activation", "hidden_act", "activation"))
    head = _head_of(model, config)
    if family not in FAMILIES or activation is None or head is None or _unusual(family, config):
        typed = any(tensor.name == "token_type_ids" for tensor in model.inputs)
        types = int(config.type_vocab_size) if typed else 0
        by_token = ("tokens",) if model.task == "token-classification" else ()
        return Architecture(**common, family="transformers", intermediate=0, types=types, head=by_token), {}
    own: dict[str, Any] = {
        "family": family,
        "activation": activation,
        "intermediate": int(_first(config, "intermediate_size", "hidden_dim")),
        "norm_eps": 1e-12 if family == "distilbert" else float(_first(config, "norm_eps", "layer_norm_eps") or 1e-12),
        "types": 0 if family in ("mpnet", "distilbert", "modernbert") else int(config.type_vocab_size),
    }
    if family in _OFFSET:
        pad = 1 if family == "mpnet" else int(config.pad_token_id)
        own |= {"position_offset": pad + 1, "pad": pad, "relative": family == "mpnet"}
        if model.positions is None:  # config.json says nothing, and the class has its own default
            own["positions"] = config.max_position_embeddings - pad - 1
    if family == "electra":
        own["embedding"] = config.embedding_size
    if family in ("modernbert", "nomic_bert"):
        bias = family == "modernbert" and bool(config.attention_bias)
        own |= {"learned_positions": False, "gated": True, "rotary": _bases(config), "bias": bias}
    if family == "modernbert":
        near = [int(config.local_attention) // 2 * (kind == "sliding_attention") for kind in config.layer_types]
        own |= {"pre_norm": True, "norm_bias": bool(config.norm_bias), "windows": tuple(near)}
    own["head_pool"], own["head"], weights = _head(original, head)
    arch = Architecture(**common | own)
    return arch, weights | _body(original.base_model, arch)


def _first(config: Any, *names: str) -> Any:
    """The first of these settings that the configuration has."""
    return next((value for name in names if (value := getattr(config, name, None)) is not None), None)


def _outputs(model: SourceModel) -> tuple[str, ...]:
    if model.task == "embedding":
        return ("sentence_embedding", "last_hidden_state")
    return ("start_logits", "end_logits") if model.task == "question-answering" else ("logits",)


def _unusual(family: str, config: Any) -> bool:
    """Whether it has settings that the encoder does not compute."""
    ropes = getattr(config, "rope_parameters", None) or {}
    size = config.hidden_size // config.num_attention_heads
    return (
        getattr(config, "position_embedding_type", None) not in (None, "absolute")
        or bool(getattr(config, "is_decoder", False))
        or any(
            rope.get("rope_type", "default") != "default"
            for rope in ([ropes] if "rope_type" in ropes else ropes.values())
            if rope is not None
        )
        or (family == "modernbert" and (config.mlp_bias != config.attention_bias or config.local_attention < 2))
        or (family == "mpnet" and config.relative_attention_num_buckets != _MPNET_BUCKETS)
        or (_first(config, "head_dim") or size) != size
    )


def _bases(config: Any) -> tuple[float, ...]:
    """The base of the rotary positions in each layer."""
    ropes = config.rope_parameters
    if "rope_theta" in ropes:
        return (float(ropes["rope_theta"]),) * int(config.num_hidden_layers)
    return tuple(float(ropes[kind]["rope_theta"]) for kind in config.layer_types)


def _head_of(model: SourceModel, config: Any) -> tuple[str, ...] | None:
    """The pooling of a row to a vector, then the head's modules and activations; None for an unknown head."""
    if model.task == "embedding":
        return ("",)
    by_task = {"token-classification": _TOKEN_HEADS, "question-answering": _SPAN_HEADS}
    head = by_task.get(model.task, _ROW_HEADS).get(model.model_type)
    if head is None:
        return None
    known = {"{pooling}": _first(config, "classifier_pooling"), "{activation}": _first(config, "classifier_activation")}
    named = tuple(known.get(name, name) for name in head)
    return None if named[0] not in ("", "cls", "mean") or None in named else named


def _head(original: Any, names: tuple[str, ...]) -> tuple[str, tuple[str, ...], dict[str, Any]]:
    """Pooling, layers and weights of the head, as Architecture names them."""
    import torch

    layers: list[str] = []
    weights: dict[str, Any] = {}
    for index, name in enumerate(names[1:]):
        if name in _ACTIVATIONS:
            layers.append(_ACTIVATIONS[name])
            continue
        module = original.get_submodule(name.replace("{base}", original.base_model_prefix))
        if isinstance(module, torch.nn.Linear):
            layers.append(f"linear:{module.in_features}:{module.out_features}" + ":nobias" * (module.bias is None))
        else:
            layers.append("norm")
        weights |= {f"head.{index}.{kind}": tensor.detach() for kind, tensor in module.state_dict().items()}
    return names[0], tuple(layers), weights


def _body(base: Any, arch: Architecture) -> dict[str, Any]:
    """The weights below the head."""
    import torch

    found = {name: tensor.detach() for name, tensor in base.state_dict().items()}
    weights: dict[str, Any] = {}
    for name, source in _NAMES[arch.family].items():
        for layer in range(arch.layers) if "{}" in source else (None,):
            parts = source.format(*[layer] * source.count("{}")).split()
            for kind in ("weight", "bias"):
                tensors = [found[f"{part}.{kind}"] for part in parts if f"{part}.{kind}" in found]
                if tensors:
                    own = name if layer is None else f"layers.{layer}.{name}"
                    weights[f"{own}.{kind}"] = torch.cat(tensors)
    if arch.relative:
        bias = base.encoder.relative_attention_bias
        distance = torch.arange(1 - arch.positions, arch.positions)
        buckets = base.encoder.relative_position_bucket(distance, num_buckets=bias.num_embeddings)
        weights["distance.weight"] = bias.weight.detach()[buckets]
    return weights
