"""deploy/plugin: one official Triton by compose, and under KServe. The compose file's command line is run by
tests/integration/workers/test_plugin_fleet.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).resolve().parents[3] / "deploy" / "plugin"


def service() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((FOLDER / "docker-compose.yml").read_text())["services"]["triton"]
    return loaded


def test_models_are_loaded_at_the_start_from_what_is_mounted() -> None:
    (mount,) = service()["volumes"]
    assert mount.endswith(":/models:ro")
    assert "--model-repository=/models" in service()["command"]
    assert not any("model-control-mode" in flag for flag in service()["command"])


def test_kserve_has_the_same_version() -> None:
    model = yaml.safe_load((FOLDER / "kserve.yaml").read_text())["spec"]["predictor"]["model"]
    assert model["modelFormat"] == {"name": "triton"}
    assert f":{model['runtimeVersion']}}}" in service()["image"]
    assert set(model["args"]) <= set(service()["command"])
