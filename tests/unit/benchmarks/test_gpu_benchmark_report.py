"""The GPU benchmark's report: ratios, means over tweets, profiles that the simulator loads, plots, the document."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from arlo.profiler.format import LatencyProfile
from arlo.simulator.profiles import load_profile
from benchmarks.gpu import cli
from benchmarks.gpu.plots import lines, page, svg
from benchmarks.gpu.profile import FILE, write_profiles
from benchmarks.gpu.results import Results, at_batch, expected, padded_us, ratios, span, tweets
from benchmarks.gpu.store import write_result
from benchmarks.gpu.summary import summary

LENGTHS = tuple(range(64, 513, 64))
SHAPES = {"static": 1.0, "dynamic": 1.5, "padded": 0.0, "profiles": 1.1}


def stats(us: float) -> dict[str, Any]:
    return {
        "median_us": us,
        "p25_us": us * 0.9,
        "p75_us": us * 1.1,
        "p98_us": us * 1.3,
        "mean_us": us * 1.02,
        "half_width_us": us * 0.01,
        "runs": 20,
    }


def record(name: str, length: int, batch: int, us: float, **more: Any) -> dict[str, Any]:
    return {
        "model": "bert-base",
        "precision": "fp16",
        "length": length,
        "batch": batch,
        "contender": name,
        "environment": "here",
        "whole": stats(us + 50),
        "compute": stats(us),
        "first_s": 0.5,
        "cosine": 0.9999,
        "wrong": False,
        "state": {"other_load": 0.02, "clocks.sm": "1980 MHz"},
        "at": 1_700_000_000,
        **more,
    }


def result() -> dict[str, Any]:
    """A device that takes 10 us a token and row; dynamic half as much again; padded as static at 512."""
    cells = [
        record(f"tensorrt-{shape}", length, batch, (factor * length or 512) * 10 * batch)
        for shape, factor in SHAPES.items()
        for length in LENGTHS
        for batch in (1, 4)
    ]
    cells += [record("sentence-transformers", length, 1, length * 40.0, compute=None) for length in LENGTHS]
    cells.append(record("ort-cuda-static", 64, 1, 1.0, wrong=True, cosine=0.2))
    cells.append({**{k: v for k, v in cells[0].items() if k != "whole"}, "contender": "ort-cuda-padded", "error": "no"})
    names = {f"tensorrt-{shape}": {"backend": "tensorrt", "shape": shape} for shape in SHAPES}
    names |= {f"ort-cuda-{shape}": {"backend": "ort-cuda", "shape": shape} for shape in ("static", "padded")}
    names["sentence-transformers"] = {"backend": "sentence-transformers", "shape": "user"}
    run = {"rate_rps": 10.0, "requests": 100, "p50_ms": 5.0, "p98_ms": 9.0, "attainment": 0.99, "placed": "1 x 512"}
    return {
        "schema": "arlo.gpu-benchmark/1",
        "command": "python -m benchmarks.gpu --quick",
        "note": "",
        "at": 1_700_000_000,
        "seconds": 60.0,
        "machine": {
            "kind": "gpu", "name": "Some GPU", "slug": "some-gpu", "facts": {"driver_version": "580.1"},
            "versions": {"torch": "2.9"},
        },
        "options": {"cell_s": 0.3, "threads": 1},
        "contenders": names,
        "unavailable": {"tensorrt-rtx-static fp16": "not installed"},
        "dropped": ["bert-base fp16 tensorrt-static: batch 32 at 16"],
        "interrupted": False,
        "end_to_end": {
            "about": "one trace",
            "runs": [
                {"load": "light", "scheme": name, "mean_ms": ms, "problems": [], **run}
                for name, ms in (("ST", 40.0), ("DT", 20.0), ("Arlo", 10.0))
            ],
        },
        "cells": cells,
    }  # fmt: skip


@pytest.fixture
def results() -> Results:
    return Results(result())


def test_groups_are_backends_with_their_shapes(results: Results) -> None:
    groups = results.groups()
    assert [(g.backend, sorted(g.names)) for g in groups] == [
        ("tensorrt", ["dynamic", "padded", "profiles", "static"]),
        ("sentence-transformers", ["user"]),
    ]
    assert len(results.errors) == 2  # the wrong answer and the error are in no time


def test_ratios_are_of_the_device_where_it_was_timed(results: Results) -> None:
    (group, library) = results.groups()
    static, dynamic = (results.of(group, shape, compute=True) for shape in ("static", "dynamic"))
    assert set(ratios(dynamic, static, 1).values()) == {1.5}
    assert at_batch(results.of(group, "static"), 1)[512] == 5170  # the whole call
    assert results.on_device(group)
    assert not results.on_device(library)


def test_the_mean_over_lengths_is_that_of_a_hand_count() -> None:
    static = {64: 10.0, 128: 20.0, 192: 40.0}
    lengths, share = np.array([1, 64, 65, 192], np.int32), np.array([0.1, 0.4, 0.3, 0.2])
    mean = expected(static, {64: 30.0, 192: 90.0}, None, lengths, share)
    assert mean is not None
    assert mean.levels == 3
    assert mean.static_us == pytest.approx(0.5 * 10 + 0.3 * 20 + 0.2 * 40)
    assert mean.padded_us == 40
    assert mean.saved == pytest.approx(1 - 19 / 40)
    line = 0.5 * 30 + 0.3 * (30 + 60 / 128) + 0.2 * 90
    assert mean.dynamic_us == pytest.approx(line)
    assert mean.saved_over_dynamic == pytest.approx(1 - 19 / line)
    assert padded_us({64: 50.0, 192: 50.0}, lengths, share) == pytest.approx(50)


def test_no_mean_where_the_runtimes_do_not_cover_the_lengths() -> None:
    lengths, share = np.array([100, 300], np.int32), np.array([0.5, 0.5])
    assert expected({}, {}, None, lengths, share) is None
    assert expected({64: 1.0, 128: 2.0}, {}, None, lengths, share) is None
    assert expected({512: 2.0}, {}, None, lengths, share) is None  # one runtime is no polymorphing


def test_tweets_stretched_reach_the_longest_runtime() -> None:
    lengths, share = tweets(512, stretched=True)
    assert lengths.max() == 512
    assert share.sum() == pytest.approx(1)
    plain, _ = tweets(512, stretched=False)
    assert plain.max() < 512 < 5 * plain.max()


def test_span() -> None:
    assert span([1.0, 1.004]) == "1.00x"
    assert span([1.2, 3.5]) == "1.20x to 3.50x"
    assert span([]) == "not measured"


def test_the_profile_loads_in_the_simulator_and_as_arlo_profile_writes_it(results: Results, tmp_path: Path) -> None:
    (folder,), problem = write_profiles(results, tmp_path)
    assert problem == ""
    assert folder == tmp_path / "profiles" / "bert-base-fp16-tensorrt"
    profile = load_profile(folder)
    assert profile.static_ms(512) == pytest.approx(5.17)
    assert profile.dynamic_ms(128) == pytest.approx(1.97)
    assert profile.max_batch == 4
    assert (profile.step, profile.max_length) == (64, 512)
    saved = LatencyProfile.load(folder / FILE)
    assert [runtime.max_length for runtime in saved.runtimes] == [*LENGTHS, 512]
    point = saved.runtimes[0].point(64, 4)
    assert point is not None
    assert (point.p50_us, point.compute_us, point.samples) == (2610, 2560 * 1.02, 20)
    assert saved.staircase


def test_arlo_simulate_runs_on_the_profile(
    results: Results, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from arlo.cli.app import main

    (folder,), _ = write_profiles(results, tmp_path)
    arguments = ["simulate", "--profile", str(folder), "--rate", "100", "--duration-s", "5", "--workers", "4"]
    assert main([*arguments, "--warmup-s", "0", "--json"]) == 0
    assert "512" in capsys.readouterr().out


def test_the_document_states_the_ratios_beside_the_papers(results: Results) -> None:
    text = summary(results, problems=["nothing was drawn"])
    assert "| bert-base | fp16 | tensorrt | device | 1.50x | 1.50x |" in text
    assert "1.22x to 3.56x" in text
    assert "| 512 | 1.50 |" in text
    assert "python -m benchmarks.gpu --quick" in text
    assert "tensorrt-rtx-static fp16: not installed" in text
    assert "bert-base fp16 tensorrt-static: batch 32 at 16" in text
    assert "ort-cuda-static, 64 x 1: wrong answer, cosine 0.2" in text
    assert "ort-cuda-padded, 64 x 1: no" in text
    assert "the mean of Arlo is 75.0 % below ST, 50.0 % below DT" in text
    assert "1.10x" in text  # one engine with several profiles
    assert "nothing was drawn" in text
    assert "clocks.sm, after a cell | 1980 MHz" in text


def test_the_padding_table_is_the_mean_over_tweets(results: Results) -> None:
    lengths, share = tweets(512, stretched=True)
    mine = float(share @ (np.ceil(lengths / 64) * 640 + 50))
    row = next(line for line in summary(results).splitlines() if "stretched | 8" in line)
    assert f"| {mine / 1000:.3f} | 5.170 | {100 * (1 - mine / 5170):.1f} % |" in row


def test_plots_are_well_formed_and_have_every_line(results: Results) -> None:
    (group, _) = results.groups()
    picture = svg("a < b", {group.backend: lines(results, group)})
    root = ElementTree.fromstring(picture)
    drawn = root.findall("{http://www.w3.org/2000/svg}polyline")
    assert len(drawn) == len(SHAPES)
    assert all(len(line.attrib["points"].split()) == len(LENGTHS) for line in drawn)
    html = page(results)
    assert "tensorrt-profiles" in html
    assert "dynamic over static" in html  # the heat map of two batches


def test_a_report_is_made_again_from_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_result(tmp_path, result())
    assert cli.main(["--report", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cells"] == len(result()["cells"])
    assert {path.name for path in tmp_path.iterdir()} == {
        "latency.json", "summary.md", "profiles", "fig02.html", "fig02-bert-base-fp16.svg",
    }  # fmt: skip


def test_a_report_of_nothing_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--report", str(tmp_path)]) == 1
    assert "measure first" in capsys.readouterr().err
