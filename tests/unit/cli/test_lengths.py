"""`arlo compile lengths`: its inputs, its table, its JSON, its page, its messages."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from arlo.cli import lengths, main
from arlo.profiler import How, LatencyProfile, Point, RuntimeProfile
from arlo.workers.emulated.repository import write_emulated_repository


def parsed(*arguments: str | Path) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    lengths.add_parser(parser.add_subparsers())
    return parser.parse_args(["lengths", *map(str, arguments)])


def answer(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> Any:
    assert lengths.run(parsed(*arguments, "--json")) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Static runtimes of 32, 64, 96 and 128 tokens that take 1, 2, 3 and 4 ms."""
    folder = tmp_path / "emulated"
    write_emulated_repository(folder, model="m", max_lengths=(32, 64, 96, 128), latency_ms=(1, 2, 3, 4))
    return folder


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    def point(length: int) -> Point:
        us = 1000.0 + 100.0 * length
        return Point(length=length, batch=1, mean_us=us, p50_us=us, p98_us=us, samples=9, half_width_us=0.0)

    path = tmp_path / "profile.json"
    LatencyProfile(
        model="m",
        device="gpu: test",
        versions={},
        date="2026-01-01T00:00:00Z",
        provenance="measured",
        how=How(confidence=0.95, precision=0.05, max_seconds=1.0, threads=1, outputs=("x",)),
        runtimes=(
            RuntimeProfile(
                name="m_dynamic",
                hash="",
                max_length=256,
                max_batch=1,
                dynamic=True,
                points=tuple(point(length) for length in range(16, 257, 16)),
            ),
        ),
    ).save(path)
    return path


def test_from_a_repository(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "--repository", repository, "--histogram", "uniform:1:128")
    assert found["lengths"] == [32, 64, 96, 128]
    assert found["best"][-1]["expected_us"] == 2500.0
    assert found["latency"]["source"] == "latency profile"
    assert found["traffic"]["longest"] == 128
    half = answer(capsys, "--repository", repository, "--max-length", "64", "--max-runtimes", "1")
    assert half["lengths"] == [64]


def test_from_a_profile_with_lengths_to_compare(profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "--latency-profile", profile, "--lengths", "64,256", "--histogram", "fixed:60")
    assert found["named"]["expected_us"] == 7400.0
    assert found["named"]["shares"] == [1.0, 0.0]
    assert found["chosen"] == [64, 256]


def test_a_table(profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lengths.run(parsed("--latency-profile", profile)) == 0
    text = capsys.readouterr().out
    assert "requests: tweets, 125 tokens stretched to 256" in text
    assert "warning: a dynamic runtime's times stand for those of static ones" in text


def test_without_latencies_they_are_assumed_and_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert lengths.run(parsed("--max-length", "384")) == 0
    text = capsys.readouterr().out
    assert "warning: the latency is assumed, not measured" in text
    assert "of padded" in text
    assert "served up to 384 tokens" in text


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--max-length", "0"], "--max-length must be at least 1"),
        (["--max-runtimes", "0"], "--max-runtimes must be at least 1"),
        (["--histogram", "tweet"], "lengths are"),
        (["--lengths", "64,128"], "do not take 512 tokens"),
        (["--repository", "a", "--latency-profile", "b"], "not both"),
        (["--repository", "/nowhere"], "arlo.json"),
    ],
)
def test_wrong_options(arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", "lengths", *arguments]) == 2
    assert why in capsys.readouterr().err
