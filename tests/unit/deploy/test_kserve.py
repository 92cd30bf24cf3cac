"""deploy/kserve: fields that KServe has, and a command line that the program takes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from arlo.cli import app

FOLDER = Path(__file__).resolve().parents[3] / "deploy" / "kserve"


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / name).read_text())
    return found


# In a process of its own: the package's protocol and tritonclient's have messages of the same names.
FIELDS = """
import json, kserve, kubernetes.client
made = {}
for package in (kubernetes.client, kserve):
    for kind, model in ((name, getattr(package, name)) for name in dir(package)):
        if hasattr(model, "openapi_types"):
            made[kind] = {model.attribute_map[name]: of for name, of in model.openapi_types.items()}
print(json.dumps(made))
"""


@pytest.fixture(scope="module")
def fields() -> dict[str, dict[str, str]]:
    """What the fields of each kind are, by KServe's and Kubernetes' own models."""
    said = subprocess.run([sys.executable, "-c", FIELDS], check=True, capture_output=True, text=True, timeout=120)
    made: dict[str, dict[str, str]] = json.loads(said.stdout.splitlines()[-1])
    return made


def check(fields: dict[str, dict[str, str]], kind: str, given: Any) -> None:
    if kind.startswith("list["):
        for each in given:
            check(fields, kind[5:-1], each)
    elif kind in fields:
        assert set(given) <= set(fields[kind]), f"{kind} has no {set(given) - set(fields[kind])}"
        for name, value in given.items():
            check(fields, fields[kind][name], value)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("runtime.yaml", "V1alpha1ClusterServingRuntime"),
        ("service.yaml", "V1beta1InferenceService"),
        ("compile.yaml", "V1Job"),
    ],
)
def test_fields_are_those_of_kserve(fields: dict[str, dict[str, str]], name: str, kind: str) -> None:
    assert kind in fields
    check(fields, kind, read(name))


def test_the_program_takes_its_command_line() -> None:
    (container,) = read("runtime.yaml")["spec"]["containers"]
    program, *words = container["args"]
    assert program == "arlo"
    args = app.build_parsers(words[0]).top.parse_args(words)
    assert (args.port, args.grpc_port, args.model) == (8080, 9000, "/mnt/models")
    assert args.port == container["ports"][0]["containerPort"]
    (compiler,) = read("compile.yaml")["spec"]["template"]["spec"]["containers"]
    built = app.build_parsers("compile").top.parse_args(compiler["args"][1:])
    model = read("service.yaml")["spec"]["predictor"]["model"]
    assert model["storageUri"] == f"pvc://models/{built.out.name}"
    assert compiler["image"] == container["image"]
    formats = {each["name"] for each in read("runtime.yaml")["spec"]["supportedModelFormats"]}
    assert read("service.yaml")["spec"]["predictor"]["model"]["modelFormat"]["name"] in formats
