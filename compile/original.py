"""The original model in torch: loaded for the export, and again, as users run it, for the reference answers."""

from __future__ import annotations

from typing import Any

from arlo.compile.steps.resolve import ENCODERS_OF, SourceModel
from arlo.errors import CompileError

_CLASSES = {
    "embedding": "AutoModel",
    "sequence-classification": "AutoModelForSequenceClassification",
    "reranker": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "question-answering": "AutoModelForQuestionAnswering",
    "classification": "AutoModelForImageClassification",
}


def answer_of(original: Any, **inputs: Any) -> Any:
    """The original's answer. CompileError when it fails, for example for lack of positions or of further inputs."""
    try:
        return original(**inputs)
    except Exception as error:  # torch and the models' own code raise many kinds
        tokens = next(iter(inputs.values())).shape[-1]
        raise CompileError(
            f"the original model does not answer rows of {tokens} tokens ({type(error).__name__}: {error}): check that "
            "its config.json is that of its weights, or give lengths that it can read"
        ) from error


def load_original(model: SourceModel, *, attention: str | None = None) -> Any:
    """The model in float32 and evaluation mode. CompileError when it does not load whole.

    attention: implementation to use; None: the one that transformers chooses.
    """
    import torch
    import transformers

    name = _CLASSES[model.task]
    factory = getattr(transformers, ENCODERS_OF.get(model.model_type, name) if model.task == "embedding" else name)
    try:
        loaded, info = factory.from_pretrained(
            str(model.folder),
            dtype=torch.float32,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            **({} if attention is None else {"attn_implementation": attention}),
        )
    except Exception as error:  # transformers, safetensors and torch each raise their own kinds
        raise CompileError(
            f"export: transformers cannot load {model.folder} as {model.task} ({type(error).__name__}: {error}): "
            "check that the folder is whole and its model type is one that this transformers version knows"
        ) from error
    # An embedding is made from the hidden states, so a pooler that the checkpoint lacks is irrelevant.
    missing = [name for name in info["missing_keys"] if model.task != "embedding" or not name.startswith("pooler.")]
    if missing:
        raise CompileError(
            f"export: {model.folder} has no weights for {', '.join(sorted(missing)[:4])}: it was not trained for "
            f"{model.task}; choose another task or another folder"
        )
    loaded.config.use_cache = False  # decoders give back keys and values otherwise
    return loaded.eval()
