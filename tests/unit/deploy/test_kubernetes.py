"""deploy/kubernetes: consistent in itself and with the compose cluster, which describes the same programs."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "deploy" / "kubernetes"


@pytest.fixture(scope="module")
def objects() -> dict[tuple[str, str], dict[str, Any]]:
    """By kind and name, all that the kustomization lists."""
    listed = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]
    assert sorted(listed) == sorted(path.name for path in FOLDER.glob("*.yaml") if path.name != "kustomization.yaml")
    every = [each for name in listed for each in yaml.safe_load_all((FOLDER / name).read_text())]
    return {(each["kind"], each["metadata"]["name"]): each for each in every}


def container(workload: dict[str, Any]) -> dict[str, Any]:
    (only,) = workload["spec"]["template"]["spec"]["containers"]
    found: dict[str, Any] = only
    return found


def test_workers_start_as_those_of_the_compose_cluster(objects: dict[tuple[str, str], dict[str, Any]]) -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    worker = objects["StatefulSet", "worker"]
    assert container(worker)["args"] == compose["services"]["worker-0"]["command"]
    assert container(worker)["resources"]["limits"]["nvidia.com/gpu"] == 1


def test_the_configuration_names_the_workers_and_the_ports(objects: dict[tuple[str, str], dict[str, Any]]) -> None:
    config = tomllib.loads((FOLDER / "arlo.toml").read_text())
    worker = objects["StatefulSet", "worker"]
    count, service = worker["spec"]["replicas"], worker["spec"]["serviceName"]
    assert config["workers"]["endpoints"] == [f"worker-{index}.{service}:8001" for index in range(count)]
    assert sum(config["deployment"]["allocation"].values()) == count
    ports = {each["name"]: each["containerPort"] for each in container(objects["Deployment", "gateway"])["ports"]}
    addresses = {
        name: int(config["gateway"][key].rpartition(":")[2])
        for name, key in (
            *(("grpc", "grpc_address"), ("api", "api_address")),
            *(("metrics", "http_address"), ("admin", "admin_address")),
        )
    }
    assert ports == addresses
    (port,) = container(objects["StatefulSet", "control"])["ports"]
    assert config["control"]["http_address"].endswith(f":{port['containerPort']}")


def test_services_select_pods_that_there_are_and_ports_that_they_open(
    objects: dict[tuple[str, str], dict[str, Any]],
) -> None:
    pods = {
        each["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/name"]: {
            port[key] for port in container(each)["ports"] for key in ("name", "containerPort")
        }
        for (kind, _), each in objects.items()
        if kind in ("StatefulSet", "Deployment")
    }
    for (kind, _), each in objects.items():
        if kind == "Service":
            opened = pods[each["spec"]["selector"]["app.kubernetes.io/name"]]
            assert {port.get("targetPort", port["port"]) for port in each["spec"]["ports"]} <= opened


def test_the_admin_port_is_for_the_control_plane_alone(objects: dict[tuple[str, str], dict[str, Any]]) -> None:
    policy = objects["NetworkPolicy", "gateway"]["spec"]
    rules = [rule for rule in policy["ingress"] if {"port": 8003} in rule["ports"]]
    assert [rule["from"] for rule in rules] == [
        [{"podSelector": {"matchLabels": {"app.kubernetes.io/name": "control"}}}]
    ]
    workers = objects["NetworkPolicy", "workers"]["spec"]["ingress"]
    assert all("from" in rule for rule in workers if {"port": 8001} in rule["ports"])
