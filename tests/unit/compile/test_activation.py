"""Which activation of logits a folder asks for; tests/integration/test_folder_matrix.py compares with the libraries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from arlo.compile import CompileOptions
from arlo.compile.cache import Hasher
from arlo.compile.steps.resolve import SourceModel, resolve
from arlo.errors import ConfigError
from tests.fakes.tiny_model import write_shell

MULTI_LABEL = {"problem_type": "multi_label_classification"}
IDENTITY = {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}
TANH = {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Tanh", "version": "4.0.0"}}
CASES: list[tuple[int, dict[str, Any], str, str]] = [
    (3, {}, "softmax", "identity"),
    (2, {"problem_type": "single_label_classification"}, "softmax", "identity"),
    (3, MULTI_LABEL, "sigmoid", "identity"),
    (3, {"problem_type": "regression"}, "identity", "identity"),
    (3, {"function_to_apply": "none"}, "softmax", "identity"),  # the pipeline looks at it last, and never gets there
    (1, {}, "sigmoid", "sigmoid"),
    (1, {"problem_type": "regression"}, "identity", "sigmoid"),
    (1, IDENTITY, "identity", "identity"),
    (1, TANH, "tanh", "tanh"),
    (1, IDENTITY | TANH, "tanh", "tanh"),
    (3, {"sentence_transformers": {"activation_fn": "torch.nn.Softmax"}} | MULTI_LABEL, "softmax", "softmax"),
]


def _read(folder: Path, task: str = "auto") -> SourceModel:
    return resolve(CompileOptions(source=folder, out=Path("out"), lengths=(16,), task=task), Hasher())


def _shell(folder: Path, labels: int, config: dict[str, Any], saved: dict[str, Any] | None = None) -> Path:
    names = {str(number): f"LABEL_{number}" for number in range(labels)}
    write_shell(folder, architectures=["BertForSequenceClassification"], id2label=names, **config)
    if saved is not None:
        (folder / "config_sentence_transformers.json").write_text(json.dumps(saved))
    return folder


@pytest.mark.parametrize(("labels", "config", "of_labels", "of_scores"), CASES)
def test_as_the_folder_says(
    tmp_path: Path, labels: int, config: dict[str, Any], of_labels: str, of_scores: str
) -> None:
    model = _read(_shell(tmp_path, labels, config))
    assert (model.label_activation, model.score_activation) == (of_labels, of_scores)


def test_what_sentence_transformers_saved_of_the_model_goes_first(tmp_path: Path) -> None:
    saved = {"model_type": "CrossEncoder", "activation_fn": "torch.nn.modules.activation.Sigmoid"}
    folder = _shell(tmp_path, 1, TANH, saved)
    model = _read(folder)
    assert (model.label_activation, model.score_activation) == ("tanh", "tanh"), (
        "CrossEncoder reads the file with modules.json alone"
    )
    module = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}
    (folder / "modules.json").write_text(json.dumps([module]))
    model = _read(folder)
    assert (model.label_activation, model.score_activation) == ("sigmoid", "sigmoid")


@pytest.mark.parametrize("named", ["torch.nn.modules.activation.ReLU", "evil.Sigmoid", 7])
def test_an_activation_that_is_not_known_is_refused_by_name(tmp_path: Path, named: Any) -> None:
    folder = _shell(tmp_path, 1, {"sentence_transformers": {"activation_fn": named}})
    with pytest.raises(ConfigError, match=str(named)):
        _read(folder)
    assert _read(folder, "embedding").score_activation == ""  # without a head it does not matter
