"""Schedules that are chosen layer by layer: the programme beside all schedules, its table, and `arlo adapt` with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arlo.cascade.records import read_data
from arlo.catalog.flow_file import load_flow
from arlo.catalog.manifest import Manifest
from arlo.catalog.schedule import clamped, merge_schedule, merged_multiplications
from arlo.cli.app import main
from arlo.compile.adapt import kept
from arlo.compile.adapt.schedules import best_schedule, loss_of
from arlo.compile.adapt.sensitivity import modelled, tried
from arlo.compile.adapt.tasks import FIT_SHARES
from tests.fakes.labelled_texts import write_labelled_texts

WIDTH = 8


@st.composite
def problems(draw: st.DrawFn) -> tuple[Any, list[int], int]:
    """Losses of a few layers and tokens, a constant schedule, and protected tokens: any losses, in the order of
    merges or not, with ties or without."""
    layers, tokens, protected = draw(st.integers(1, 4)), draw(st.integers(2, 12)), draw(st.integers(1, 2))
    most = max(0, (tokens - protected) // 2)
    draws = np.random.default_rng(draw(st.integers(0, 10_000)))
    losses = draws.random((layers, tokens + 1, most + 1)).round(draw(st.sampled_from([1, 9])))
    if draw(st.booleans()):
        losses = np.sort(losses, 2)
    constant = merge_schedule(tokens, layers, draw(st.integers(0, 4)), protected=protected)
    return losses, constant, protected


def every_schedule(layers: int, tokens: int, protected: int) -> Any:
    """Of all layers, each at most half of the tokens that are not protected."""
    if not layers:
        yield ()
        return
    for merged in range(max(0, (tokens - protected) // 2) + 1):
        for rest in every_schedule(layers - 1, tokens - merged, protected):
            yield (merged, *rest)


@given(problems())
@settings(max_examples=150, deadline=None)
def test_best_of_all_schedules(problem: tuple[Any, list[int], int]) -> None:
    losses, constant, protected = problem
    layers, tokens = losses.shape[0], losses.shape[1] - 1
    budget = merged_multiplications(tokens, constant, width=WIDTH)
    found = best_schedule(losses, constant, width=WIDTH, protected=protected)
    within = [
        loss_of(losses, each)
        for each in every_schedule(layers, tokens, protected)
        if merged_multiplications(tokens, each, width=WIDTH) <= budget
    ]
    assert found.loss == pytest.approx(min(within), abs=1e-9)
    assert found.loss == pytest.approx(loss_of(losses, found.schedule), abs=1e-9)
    assert found.schedule in set(every_schedule(layers, tokens, protected))
    assert merged_multiplications(tokens, found.schedule, width=WIDTH) <= budget
    assert found.loss <= loss_of(losses, constant)


@pytest.mark.parametrize(("tokens", "layers", "merge", "width"), [(128, 6, 12, 384), (512, 12, 24, 768)])
def test_of_real_size(tokens: int, layers: int, merge: int, width: int) -> None:
    """Whatever the layers' losses, within the budget and no worse; by a model that adds up, one by one and together."""
    draws = np.random.default_rng(7)
    counts = tried(tokens, 2)
    steep = np.linspace(2, 0.1, layers)[:, None] * (np.array(counts) / counts[-1]) ** 3
    constant = [merge] * layers
    for losses in modelled(steep * draws.uniform(0.5, 1.5, steep.shape), counts, tokens):
        found = best_schedule(losses, constant, width=width, protected=2)
        assert found.loss < loss_of(losses, constant)
        work = merged_multiplications(tokens, found.schedule, width=width)
        assert work <= merged_multiplications(tokens, constant, width=width)
        left = tokens - np.cumsum([0, *found.schedule])
        assert all(merged <= (before - 2) // 2 for merged, before in zip(found.schedule, left, strict=False))


def test_nothing_to_gain_is_the_constant_schedule() -> None:
    """Of equals the constant one; of a budget of all tokens no merge at all."""
    losses = np.zeros((3, 17, 8))
    assert best_schedule(losses, [2, 2, 2], width=WIDTH, protected=2).schedule == (2, 2, 2)
    assert best_schedule(losses, [0, 0, 0], width=WIDTH, protected=2).schedule == (0, 0, 0)


def test_how_layers_add_up() -> None:
    """Alone, merges cost the same whatever is left; together, what they add to those before; never less for more."""
    counts = tried(16, 2)
    assert counts == [1, 2, 4, 5, 7]
    measured = np.array([[0.0, 0.0, 0.1, 0.05, 0.4], [0.0, 0.0, 0.0, 0.0, 0.1]])
    alone, together = modelled(measured, counts, 16)
    assert alone.shape == together.shape == (2, 17, 8)
    assert np.array_equal(alone[:, 16], together[:, 16])
    assert alone[0, 16].tolist() == pytest.approx([0, 0, 0, 0.05, 0.1, 0.1, 0.25, 0.4])
    assert alone[0, 12, 4] == pytest.approx(0.1)
    assert together[0, 12, 4] == pytest.approx(0.4 + 0.15 - 0.1)  # from 4 to 8, one beyond what was tried
    assert (np.diff(alone, axis=2) >= 0).all()


@pytest.mark.parametrize(("tokens", "layers", "merge"), [(4, 1, 1), (128, 6, 18)])
def test_what_can_be_tried_where_a_constant_schedule_can_be(tokens: int, layers: int, merge: int) -> None:
    assert not clamped(tokens, layers, merge, protected=2)
    assert tried(tokens, 2)[-1] == (tokens - 2) // 2


def test_divergences() -> None:
    """None without merges nor of rows that lose padding only; more tokens gone, more of it."""
    torch = pytest.importorskip("torch")
    from arlo.compile.adapt.merge import merging_body
    from arlo.compile.adapt.sensitivity import divergences
    from tests.fakes.small_bert import body, rows

    class Variant(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.merging = merging_body(body(), (0, 0, 0))

        def forward(self, ids: Any, mask: Any) -> Any:
            return 5 * self.merging(ids, mask)[0][:, 0]

    def batch(lengths: list[int]) -> dict[str, Any]:
        ids, mask = rows(lengths, 16)
        return {"input_ids": ids.numpy(), "attention_mask": mask.numpy()}

    schedules = [(0, 0, 0), (2, 0, 0), (7, 0, 0)]
    none, few, many = divergences(Variant(), [batch([16, 16]), batch([16])], schedules)
    assert none == pytest.approx(0, abs=1e-9)
    assert 1e-8 < few < many
    assert divergences(Variant(), [batch([3, 5])], [(2, 0, 0)])[0] < 1e-9


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_whole_way(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stopped and gone on: layers that were tried are not tried again. The schedule is that of file, manifest and
    adapt.json, no dearer than the constant one; a further task keeps it."""
    pytest.importorskip("onnxscript")
    monkeypatch.setenv("ARLO_CACHE", str(tmp_path / "cache"))
    data, out = write_labelled_texts(tmp_path / "data.jsonl", texts=160, words=22), tmp_path / "out"
    words = ["adapt", str(tiny), "--merge", "3", "--schedules", "chosen", "--lengths", "16,24", "--out", str(out)]
    words += ["--data", f"first={data}", "--max-batch", "2", "--json"]
    tries = kept.divergences

    def watched(variant: Any, batches: Any, schedules: Any) -> Any:
        """Layers of the shorter length are tried by the run that is stopped before its schedule is chosen."""
        first, layer = batches[0]["input_ids"].shape[1] == 16, len(schedules) == 5
        if first and stopping != layer:
            if stopping:
                raise KeyboardInterrupt
            pytest.fail("tried again") if layer else None
        return tries(variant, batches, schedules)

    monkeypatch.setattr(kept, "divergences", watched)
    stopping = True
    assert main(words) == 130
    stopping = False
    capsys.readouterr()
    assert main(words) == 0
    lines = [line.split() for line in capsys.readouterr().err.splitlines() if "/" in line[:16]]
    assert [line[1] for line in lines] == [f"{i}/{len(lines)}" for i in range(1, len(lines) + 1)]
    assert [line[2] for line in lines[1:7]] == ["layer", "layer", "schedule"] * 2
    found = json.loads((out / "adapt.json").read_text())["variants"]
    assert [(each["name"], each["tokens"]) for each in found] == [("c3-16", -3), ("c3-24", -3)]
    for each in found:
        assert each["chosen"]
        assert each["multiplications"] == merged_multiplications(each["length"], each["schedule"], width=32)
        assert each["multiplications"] <= merged_multiplications(each["length"], [3, 3], width=32)
        assert each["verified"]["agreement"] == 1
    assert (adaptation := Manifest.load(out / "c3").adaptation) is not None
    assert list(adaptation.per_layer) in [each["schedule"] for each in found]
    assert [variant.tokens for variant in load_flow(out / "flow.toml").stages[0].variants] == [-3]
    other = tmp_path / "other.jsonl"
    texts = [json.loads(line) for line in data.read_text().splitlines()]
    other.write_text("".join(json.dumps(one | {"label": "xyz"[i % 3]}) + "\n" for i, one in enumerate(texts)))
    assert main(["adapt", "task", "add", "second", str(out), "--data", str(other), "--json"]) == 0
    after = json.loads((out / "adapt.json").read_text())["variants"]
    assert [each["schedule"] for each in after] == [each["schedule"] for each in found]


def write_pictures(folder: Path) -> tuple[Path, Path]:
    """A small DINOv2, and random pictures of two classes for it."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(1)
    config = transformers.Dinov2Config(
        hidden_size=32, num_hidden_layers=3, num_attention_heads=4, image_size=56, patch_size=14, layerscale_value=0.5
    )
    transformers.Dinov2Model(config).eval().save_pretrained(folder / "vit")
    draws = np.random.default_rng(2)
    rows, labels = draws.normal(size=(40, 3, 56, 56)).astype(np.float32), np.arange(40) % 2
    rows += labels[:, None, None, None]
    np.savez(folder / "pictures.npz", rows=rows, labels=labels)
    return folder / "vit", folder / "pictures.npz"


@pytest.mark.long
@pytest.mark.parametrize("kind", ["ForTokenClassification", "ForSequenceClassification", "pictures"])
def test_other_bodies(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Models with a head of their own set rows aside, on which nothing is measured; and pictures have rows anyway."""
    from tests.fakes.tiny_model import write_tiny

    pytest.importorskip("onnxscript")
    monkeypatch.setenv("ARLO_CACHE", str(tmp_path / "cache"))
    if kind == "pictures":
        source, data = write_pictures(tmp_path)
        more = []
    else:
        source = write_tiny(tmp_path / "source", head=kind, labels=2)
        data = write_labelled_texts(tmp_path / "data.jsonl", texts=160, words=22)
        config = json.loads((source / "config.json").read_text()) | {"id2label": {"0": "a", "1": "b"}}
        (source / "config.json").write_text(json.dumps(config))
        more = ["--lengths", "24"]
    out = tmp_path / "out"
    words = ["adapt", str(source), "--merge", "2", "--schedules", "chosen", "--out", str(out), "--data", str(data)]
    assert main([*words, *more, "--no-compile", "--json"]) == 0
    found = json.loads((out / "adapt.json").read_text())
    (chosen,) = found["variants"]
    assert chosen["name"][:2] == "c2"
    assert chosen["multiplications"] <= merged_multiplications(
        chosen["length"], [2] * len(chosen["schedule"]), width=32
    )
    assert min(found["rows"].values()) > 10
    assert sum(found["rows"].values()) < 160  # some are neither
    if kind == "pictures":
        return
    split, lines = read_data(data).splits(FIT_SHARES), data.read_text().splitlines(keepends=True)
    data.write_text("".join(line for line, part in zip(lines, split, strict=True) if part == 2))
    assert main([*words, *more, "--no-compile"]) != 0
    assert "of the texts that are not measured none has at most 24 tokens" in capsys.readouterr().err
