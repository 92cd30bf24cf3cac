"""`arlo adapt` is stopped and goes on; several maximum lengths of each count; how long the rest takes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from arlo.catalog.flow_file import load_flow
from arlo.catalog.manifest import Manifest
from arlo.cli.adapted import chosen_pairs, counts_of, read_adapted, tokens_file
from arlo.cli.app import main
from arlo.compile.adapt import kept, measure
from arlo.compile.progress import TimeLeft
from arlo.compile.tools.verify import verify_repository
from arlo.simulator.tokens.file import load_tokens
from tests.fakes.labelled_texts import write_labelled_texts


@pytest.mark.long
@pytest.mark.timeout(900)
def test_stopped_and_gone_on(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is finished is never made again; each step by itself, whatever other counts there are."""
    pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    monkeypatch.setenv("ARLO_CACHE", str(tmp_path / "cache"))
    data, out = write_labelled_texts(tmp_path / "data.jsonl", texts=120, words=9), tmp_path / "out"
    words = ["adapt", str(tiny), "--length", "24", "--data", str(data), "--out", str(out), "--no-compile", "--json"]

    def run(merge: str, *more: str) -> tuple[int, list[str], str]:
        code = main([*words, "--merge", merge, *more])
        told = capsys.readouterr()
        return code, [line for line in told.err.splitlines() if "/" in line[:16]], told.out

    turns: list[int] = []
    once = measure.timed

    def stopped(*args: Any, **more: Any) -> Any:
        turns.append(1)
        if len(turns) == 4:  # warming up, two turns, and then Ctrl-C
            raise KeyboardInterrupt
        return once(*args, **more)

    monkeypatch.setattr(measure, "timed", stopped)
    assert main([*words, "--merge", "0,3"]) == 130
    told = capsys.readouterr().err
    assert "what is finished is kept" in told
    assert "cached" not in told
    assert "s left" in told
    assert not (out / "adapt.json").exists()

    def nothing_is_made(name: str) -> Callable[..., Any]:
        def fail(*_: Any, **__: Any) -> Any:
            pytest.fail(f"{name} was made again")

        return fail

    for name in ("embed", "fit_head", "agreed", "batches"):
        monkeypatch.setattr(measure, name, nothing_is_made(name))
    monkeypatch.setattr(measure, "timed", once)
    code, lines, first = run("0,3")
    assert code == 0
    steps = 1 + 2 * 2 + measure.ROUNDS
    assert [line.split()[1] for line in lines] == [f"{i}/{steps}" for i in range(1, steps + 1)]
    assert sum("cached" in line for line in lines) == steps - (measure.ROUNDS - 2)
    monkeypatch.setattr(measure, "timed", nothing_is_made("timed"))
    code, lines, second = run("0,3")
    assert (code, sum("cached" in line for line in lines)) == (0, steps)
    assert json.loads(first) == json.loads(second)
    monkeypatch.setattr(measure, "timed", once)
    code, lines, _ = run("3")  # beside other variants, and so measured anew
    assert [("latency" in line) != ("cached" in line) for line in lines] == [True] * (3 + measure.ROUNDS)
    code, lines, _ = run("0,3", "--remeasure")
    assert [("latency" in line) != ("cached" in line) for line in lines] == [True] * steps


@pytest.mark.long
@pytest.mark.timeout(900)
def test_several_lengths(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A count at each length that it can be, measured on the rows that fit, served from one repository that verifies;
    what rows are right is that of the shortest engine that each fits."""
    pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    monkeypatch.setenv("ARLO_CACHE", str(tmp_path / "cache"))
    data, out = write_labelled_texts(tmp_path / "data.jsonl", texts=120, words=9), tmp_path / "out"
    words = ["adapt", str(tiny), "--merge", "0,6", "--lengths", "16,24", "--data", str(data), "--out", str(out)]
    assert main([*words, "--max-batch", "2", "--json"]) == 0
    result = read_adapted(out)
    assert [each["name"] for each in result["variants"]] == ["m0-16", "m0-24", "m6-24"]  # 16 are too few for 6
    short, long, _ = result["variants"]
    assert short["rows"] < long["rows"] == result["rows"]["measured"]
    assert sum(part["rows"] for part in short["bins"]) == short["rows"]
    assert not (out / ".parts").exists()
    manifest = Manifest.load(out / "m0")
    assert [runtime.max_length for runtime in manifest.runtimes] == [16, 24]
    assert all(each.verification for each in verify_repository(out / "m0"))
    flow = load_flow(out / "flow.toml")
    assert [(v.tokens, v.max_lengths) for v in flow.stages[0].variants] == [(0, (16, 24)), (-6, (24,))]
    fewer, every = counts_of(result)
    assert fewer.accuracy == result["variants"][2]["accuracy"]
    beyond = [part for part in long["bins"] if part["max_length"] > 16]
    right = sum(part["accuracy"] * part["rows"] for part in (*short["bins"], *beyond))
    assert every.accuracy == pytest.approx(right / long["rows"])
    spec = load_tokens(out / "tokens.toml")
    assert [[length for length, _ in variant.engines] for variant in spec.variants] == [[24], [16, 24]]
    assert spec.lengths.percentile(100) == 24
    fewer_out = tmp_path / "fewer"
    words[-1] = str(fewer_out)
    assert main([*words, "--max-batch", "2", "--worth-us", "0", "--no-compile", "--json"]) == 0
    kept_names = {each["name"] for each in read_adapted(fewer_out)["variants"]}
    assert kept_names <= {"m0-16", "m0-24", "m6-24"}
    assert "m0-24" in kept_names or kept_names == {"m6-24"}


def test_chosen_pairs() -> None:
    """What is short goes to a short engine of all tokens, what is long may lose some; a count keeps its longest."""

    def variant(length: int, tokens: int, ms: float, right: float) -> dict[str, Any]:
        bins = [{"max_length": end, "accuracy": right if end > 32 else 0.9} for end in (32, 64) if end <= length]
        return {
            "name": f"m{-tokens}-{length}", "length": length, "tokens": tokens, "kind": "merge", "accuracy": right,
            "bins": bins, "latency_ms": {"1": ms},
        }  # fmt: skip

    variants = [
        variant(32, 0, 2.0, 0.9),
        variant(64, 0, 5.0, 0.9),
        variant(32, -8, 1.9, 0.5),
        variant(64, -8, 3.0, 0.8),
    ]
    names = [each["name"] for each in chosen_pairs(variants, {20: 1.0, 60: 1.0}, 0.0, 2)]
    assert names == ["m8-32", "m8-64"]  # time alone
    names = [each["name"] for each in chosen_pairs(variants, {20: 1.0, 60: 1.0}, 1000.0, 2)]
    assert names == ["m0-64", "m8-32", "m8-64"]
    dear = [each["name"] for each in chosen_pairs(variants[:2] + variants[3:], {20: 1.0, 60: 1.0}, 150.0, 2)]
    assert dear == ["m0-32", "m0-64", "m8-64"]  # m0-64 beside m0-32: rows of any length


def test_tokens_file_by_length(tmp_path: Path) -> None:
    """Bins of enough rows, and lengths as the measured rows had them."""
    bins = [
        {"max_length": end, "rows": rows, "accuracy": right} for end, rows, right in ((32, 300, 0.9), (64, 100, 0.5))
    ]
    variant = {
        "name": "m0-64", "tokens": 0, "length": 64, "accuracy": 0.8, "by_task": {"all": 0.8},
        "bins_by_task": {"all": bins}, "latency_ms": {"1": 4.0, "8": 20.0},
    }  # fmt: skip
    file = tmp_path / "tokens.toml"
    file.write_text(tokens_file({"model": "x", "slo_ms": 500, "variants": [variant]}))
    spec = load_tokens(file)
    assert (spec.length, spec.bins) == (64, (32, 64))
    assert spec.accuracy_of("all")[0] == pytest.approx(((270 + 160) / 500, (50 + 160) / 300), abs=1e-4)
    assert float((spec.lengths.tokens <= 32).mean()) == pytest.approx(0.75, abs=0.01)


def test_time_left() -> None:
    """By what steps of a kind took, now or when they went into the cache; of other kinds nothing is known."""
    left = TimeLeft(["rows", "variant", "accuracy", "variant", "accuracy"])
    left.done("rows", 0.0)
    assert str(left) == "over 0 s left"
    left.done("variant", 10.0)
    assert str(left) == "over 10 s left"
    left.done("accuracy", 2.0)
    assert str(left) == "about 12 s left"
    left.done("variant", 20.0)
    assert left.seconds == pytest.approx(2)
    left.done("accuracy", 2.0)
    assert left.seconds == 0


def test_digest() -> None:
    """Arrays by content, type and shape."""
    a = np.arange(6, dtype=np.int64)
    assert kept.digest(a) == kept.digest(a.copy())
    others = (a.reshape(2, 3), a.astype(np.int32), a + 1, list(a))
    assert len({kept.digest(each) for each in (a, *others)}) == 5
    assert kept.digest("a", "b") != kept.digest("ab")


def test_files_beside_the_tokenizer_are_part_of_a_body(tmp_path: Path) -> None:
    """They are copied into every variant."""
    model: Any = SimpleNamespace(
        tokenizer_folder=tmp_path, hashes={}, task="embedding", pooling=("mean",), normalize=True
    )
    seen = []
    for words in ("", "one", "two"):
        if words:
            (tmp_path / "special_tokens_map.json").write_text(words)
        seen.append(kept.body_of(model))
    assert seen[0] != seen[1] != seen[2]
