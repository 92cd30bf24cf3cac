"""Part of step 1, resolve: the functions from a model's logits to probabilities and scores, as in the libraries.

Probabilities of labels are those of the text-classification pipeline of transformers; scores of pairs those of
CrossEncoder of sentence-transformers. An activation that a cross-encoder's folder names goes before both rules.
"""

from __future__ import annotations

import re
from typing import Literal, cast

from arlo.catalog.manifest import Activation
from arlo.compile.steps.folder import OBJECT, TEXT, Settings
from arlo.errors import ConfigError

_TORCH = re.compile(r"torch\.nn\.(modules\.\w+\.)?(Softmax|Sigmoid|Identity|Tanh)")
_OF_ROWS = ("sequence-classification", "reranker", "classification")


def activations(
    config: Settings, saved: Settings, *, task: str, labels: int
) -> tuple[Activation | Literal[""], Activation | Literal[""]]:
    """Activations of labels and of scores; empty if the task has no logits of labels. `config` is the folder's
    config.json, `saved` its config_sentence_transformers.json. ConfigError for an unknown activation."""
    if task == "token-classification":
        return "softmax", ""
    if task not in _OF_ROWS:
        return "", ""
    own = _own(config, saved)
    problem = config.get("problem_type")
    of_labels: Activation = "softmax"
    if problem == "regression":
        of_labels = "identity"
    elif problem == "multi_label_classification" or labels == 1:
        of_labels = "sigmoid"
    return own or of_labels, own or ("sigmoid" if labels == 1 else "identity")


def _own(config: Settings, saved: Settings) -> Activation | None:
    """The activation that the folder of a cross-encoder names, in the order in which CrossEncoder looks for it."""
    newer = Settings(config.read("sentence_transformers", OBJECT, None) or {}, config.path)
    named = saved.read("activation_fn", TEXT, None)
    if named is None and "activation_fn" in newer:
        named = newer.read("activation_fn", TEXT, None)
    elif named is None:
        named = config.read("sbert_ce_default_activation_function", TEXT, None)
    if named is None:
        return None
    known = _TORCH.fullmatch(named)
    if known is None:
        raise ConfigError(
            f"{config.path.parent} names the activation {named!r}, which is not known: supported are torch.nn.Softmax, "
            "Sigmoid, Identity and Tanh; name one of these in its config.json (sentence_transformers.activation_fn)"
        )
    return cast(Activation, known[2].lower())
