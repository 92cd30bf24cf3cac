"""deploy/kserve: fields that KServe has, and a command line that the program takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from arlo.cli import app

FOLDER = Path(__file__).resolve().parents[3] / "deploy" / "kserve"


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / name).read_text())
    return found


def check(kind: str, given: Any) -> None:
    """Every field is one of KServe's own model of the object; what has a model itself is looked into."""
    import kserve
    import kubernetes.client

    model = getattr(kserve, kind, getattr(kubernetes.client, kind, None))
    if kind.startswith("list["):
        for each in given:
            check(kind[5:-1], each)
    elif model is not None:
        names = {name: attribute for attribute, name in model.attribute_map.items()}
        assert set(given) <= set(names), f"{kind} has no {set(given) - set(names)}"
        for name, value in given.items():
            check(model.openapi_types[names[name]], value)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("runtime.yaml", "V1alpha1ClusterServingRuntime"), ("service.yaml", "V1beta1InferenceService")],
)
def test_fields_are_those_of_kserve(name: str, kind: str) -> None:
    check(kind, read(name))


def test_the_program_takes_its_command_line() -> None:
    (container,) = read("runtime.yaml")["spec"]["containers"]
    program, *words = container["args"]
    assert program == "arlo"
    args = app.build_parsers(words[0]).top.parse_args(words)
    assert (args.port, args.grpc_port, args.model) == (8080, 9000, "/mnt/models")
    assert args.port == container["ports"][0]["containerPort"]
    formats = {each["name"] for each in read("runtime.yaml")["spec"]["supportedModelFormats"]}
    assert read("service.yaml")["spec"]["predictor"]["model"]["modelFormat"]["name"] in formats
