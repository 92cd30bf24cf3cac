"""The control plane's metrics say what its status says; the page and the dashboard say what the metrics are."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from arlo.control.http.metrics import METRICS, make_registry
from arlo.control.http.status import COUNTERS, ControlStatus
from tests.fakes.control_status import control_status, several_status

ROOT = Path(__file__).resolve().parents[3]


def samples(status: ControlStatus) -> dict[str, dict[tuple[str, ...], float]]:
    """Name -> label values, in the order of their names -> value; read back from the exposed text."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(generate_latest(make_registry(lambda: status)).decode()):
        for sample in family.samples:
            labels = tuple(sample.labels[name] for name in sorted(sample.labels))
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


def test_values_are_the_statuss() -> None:
    got = samples(control_status())
    assert got["arlo_control_state"] == {
        ("starting",): 0,
        ("serving",): 0,
        ("replacing",): 1,
        ("degraded",): 0,
    }
    assert got["arlo_control_desired_instances"] == {
        ("64", "minilm", "minilm_64"): 2,
        ("128", "minilm", "minilm_128"): 1,
        ("256", "minilm", "minilm_256"): 1,
        ("512", "minilm", "minilm_512"): 1,
    }
    assert got["arlo_control_observed_instances"][("128", "minilm", "minilm_128")] == 1
    assert got["arlo_control_observed_instances"][("256", "minilm", "minilm_256")] == 0
    assert got["arlo_control_demand_requests"] == {
        ("64", "minilm"): 96.4,
        ("128", "minilm"): 30.2,
        ("256", "minilm"): 12.5,
        ("512", "minilm"): 2.25,
    }
    assert got["arlo_control_demand_peak_requests"][("512", "minilm")] == 6
    assert got["arlo_control_slo_seconds"] == {("minilm",): 0.15}
    assert got["arlo_control_runtime_latency_seconds"][("64", "minilm", "minilm_64")] == pytest.approx(0.00115)
    assert got["arlo_control_workers"][("ready",)] == 5
    assert got["arlo_control_workers"][("stopped",)] == 0
    assert got["arlo_control_workers_at_step"][("loading",)] == 1
    assert got["arlo_control_worker_step_seconds"][("loading", "w3")] == 0.4
    assert got["arlo_control_worker_serves"] == {
        ("minilm_64", "w0"): 1,
        ("minilm_64", "w1"): 1,
        ("minilm_128", "w2"): 1,
        ("minilm_512", "w4"): 1,
    }
    assert got["arlo_control_worker_process_restarts_total"][("w4",)] == 2
    assert got["arlo_control_last_plan_age_seconds"] == {(): 86}
    assert got["arlo_control_last_plan_solve_seconds"] == {(): pytest.approx(0.0021)}
    assert got["arlo_control_last_plan_info"] == {("queueing", "shift", "exact"): 1}
    assert got["arlo_control_scaling_maximum_workers"] == {(): 8}
    assert got["arlo_control_replacements_total"] == {(): 7}


def test_every_counter_is_there_and_0_when_the_status_lacks_it() -> None:
    got = samples(dataclasses.replace(control_status(), counters={"plans": 3}))
    assert {name: got[f"arlo_control_{name}_total"][()] for name in COUNTERS} == dict.fromkeys(COUNTERS, 0) | {
        "plans": 3
    }


def test_before_the_first_plan_there_is_none() -> None:
    got = samples(dataclasses.replace(control_status(), plans=[]))
    assert "arlo_control_last_plan_age_seconds" not in got
    assert "arlo_control_last_plan_info" not in got
    assert got["arlo_control_plans_total"][()] >= 0


def test_a_runtime_that_may_no_longer_be_allocated_is_still_shown() -> None:
    got = samples(dataclasses.replace(control_status(), observed={"old_96": 1}))
    assert got["arlo_control_observed_instances"][("", "", "old_96")] == 1


def test_a_static_and_a_dynamic_runtime_of_one_length_are_one_bin() -> None:
    status = control_status()
    twin = dataclasses.replace(status.runtimes[-1], name="minilm_512_dynamic", dynamic=True)
    got = samples(dataclasses.replace(status, runtimes=[*status.runtimes, twin], demand=[*status.demand, 0.5]))
    assert got["arlo_control_demand_requests"][("512", "minilm")] == 2.75
    assert got["arlo_control_runtime_capacity"][("512", "minilm", "minilm_512_dynamic")] == 30


def test_of_several_models_each_has_figures_of_its_own() -> None:
    """Their longest lengths are the same: without the model there would be one figure for both, or the sum."""
    for dedicated in (False, True):
        got = samples(several_status(dedicated=dedicated))
        assert got["arlo_control_demand_requests"] == {
            ("64", "embedder"): 32,
            ("512", "embedder"): 7.5,
            ("256", "reranker"): 128,
            ("512", "reranker"): 7.5,
        }
        assert got["arlo_control_slo_seconds"] == {("embedder",): 0.05, ("reranker",): 0.2}
        runtimes = ("embedder_bundle", "reranker_bundle" if dedicated else "embedder_bundle")
        counts = (2, 1) if dedicated else (3, 3)  # all of those that they share
        wanted = {
            ("512", model, runtime): count
            for model, runtime, count in zip(("embedder", "reranker"), runtimes, counts, strict=True)
        }
        assert got["arlo_control_desired_instances"] == got["arlo_control_observed_instances"] == wanted
        assert list(got["arlo_control_runtime_capacity"].values()) == [10, 40]


def test_names_follow_prometheus_rules() -> None:
    names = [metric.full_name for metric in METRICS]
    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert re.fullmatch(r"arlo_(control|cascade)_[a-z_]+", metric.full_name)
        assert metric.help.endswith(".")
        assert len(metric.help) > 10
        assert not re.search(r"_(ms|percent|count)(_|$)", metric.name), "base units: seconds, shares"


def test_the_page_has_every_control_metric() -> None:
    """The same text as tools/metrics_page.py writes, without starting a gateway."""
    page = (ROOT / "docs" / "metrics.md").read_text()
    for metric in METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        assert f"| `{metric.full_name}` | {metric.kind} | {labels} | {metric.help} |\n" in page
    own = page.partition("## Control plane")[2]
    assert set(re.findall(r"^\| `(arlo_\w+)`", own, re.M)) == {metric.full_name for metric in METRICS}


def test_the_dashboard_shows_the_control_plane() -> None:
    dashboard = json.loads((ROOT / "deploy" / "grafana" / "dashboards" / "arlo.json").read_text())
    text = json.dumps([panel.get("targets", []) for panel in dashboard["panels"]])
    known = {metric.full_name for metric in METRICS}
    asked = set(re.findall(r"\barlo_control_\w+", text))
    assert asked <= known
    assert {f"arlo_control_{name}" for name in ("desired_instances", "observed_instances", "demand_requests")} <= asked
