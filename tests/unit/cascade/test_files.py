"""cascade.json and records: what is written is read again, what is wrong is refused by name."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arlo.cascade.manifest import CascadeManifest, Guarantee, Point, Stage, repository_hash
from arlo.cascade.prune import Vocabulary
from arlo.cascade.records import Data, Example, Recorded, Records, engine_hash, ms_by_row, read_data
from arlo.cascade.spec import NEVER, Calibrator, Ensemble, Rule, hard
from arlo.catalog.manifest import Manifest
from arlo.errors import ConfigError
from arlo.workers.emulated.repository import write_emulated_repository


@pytest.fixture
def made(tmp_path: Path) -> CascadeManifest:
    stages = []
    for name in ("small", "large"):
        write_emulated_repository(tmp_path / name, model=name, max_lengths=(64,), latency_ms=(1,))
        stages.append(Stage(name=name, repository=name, manifest_sha256=repository_hash(tmp_path / name)))
    point = Point(
        name="ap",
        search="exact",
        objective="mean",
        accuracy=(0.7, 0.6, 0.8),
        agreement=0.9,
        reach=(1.0, 0.4),
        mean_ms=1.5,
        rules=((Rule(t=((64, 0.8), (512, NEVER))),), (hard(0.2),)),
        ensemble=Ensemble(kind="raw", weights=(0.4, 0.6)),
        guarantee=Guarantee(risk="harm", epsilon=0.05, delta=0.1, rows=700),
    )
    cascade = CascadeManifest(
        name="c",
        task="sequence-classification",
        labels=("a", "b"),
        stages=(dataclasses.replace(stages[0], calibrator=Calibrator(t=1.3, ece15=(0.1, 0.02))), stages[1]),
        vocabularies=(Vocabulary.of([True, False, True], (0,)),),
        points=(point,),
        default_point="ap",
    )
    cascade.save(tmp_path / "cascade.json")
    return cascade


def test_written_and_read(made: CascadeManifest, tmp_path: Path) -> None:
    assert CascadeManifest.load(tmp_path) == made
    assert made.vocabularies[0].bits.tolist() == [0b101]
    with pytest.raises(ConfigError, match="it has: ap"):
        made.point("eo")


def change(path: Path, *keys: Any, value: Any) -> None:
    raw = json.loads(path.read_text())
    at = raw
    for key in keys[:-1]:
        at = at[key]
    at[keys[-1]] = value
    path.write_text(json.dumps(raw))


@pytest.mark.parametrize(
    ("keys", "value", "says"),
    [
        (("format",), 2, "format 1"),
        (("lables",), [], "unknown field 'lables': is it 'labels'"),
        (("stages", 0, "calibrator", "t"), 0, r"stages\[0\].calibrator: .*above 0"),
        (("stages", 0, "score"), "best", "one of max, margin"),
        (("stages", 0, "name"), 3, r"stages\[0\].name must be a text"),
        (("stages", 0, "label_order"), [0, 0], r"label_order must name"),
        (("stages", 1, "name"), "small", "named twice"),
        (("points", 0, "rules", 0, 0, "t"), [[64, 1.1]], r"points\[0\].rules\[0\]\[0\]: rule.t"),
        (("points", 0, "rules", 1, 0, "t"), [[64, 0.99]], "must not escalate more"),
        (("points", 0, "reach"), 3, "must be a list"),
        (("points", 0, "accuracy"), [0.5], "list of 3"),
        (("points", 0, "mean_ms"), True, "must be a number"),
        (("default_point",), "eo", "'eo'"),
        (("stages", 0, "manifest_sha256"), "0", "has changed since"),
    ],
)
def test_what_is_wrong_is_refused(
    made: CascadeManifest, tmp_path: Path, keys: tuple[Any, ...], value: Any, says: str
) -> None:
    path = tmp_path / "cascade.json"
    change(path, *keys, value=value)
    with pytest.raises(ConfigError, match=says):
        CascadeManifest.load(path)


def test_a_missing_field_and_a_missing_file(made: CascadeManifest, tmp_path: Path) -> None:
    raw = json.loads((tmp_path / "cascade.json").read_text())
    del raw["task"]
    (tmp_path / "cascade.json").write_text(json.dumps(raw))
    with pytest.raises(ConfigError, match="lacks the field 'task'"):
        CascadeManifest.load(tmp_path)
    with pytest.raises(ConfigError, match="arlo fit"):
        CascadeManifest.load(tmp_path / "other.json")
    (tmp_path / "cascade.json").write_text('{"format": NaN}')
    with pytest.raises(ConfigError, match="no number"):
        CascadeManifest.load(tmp_path)


def written(path: Path, *lines: Any) -> Path:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def test_data(tmp_path: Path) -> None:
    data = read_data(
        written(tmp_path / "d", {"text": "One 1!", "label": "b"}, "", {"text": "one  2", "label": 0, "text_pair": None})
    )
    assert data.labelled
    assert data.labels(("a", "b")).tolist() == [1, 0]
    assert len(set(data.groups().tolist())) == 1  # near-duplicates
    assert not read_data(written(tmp_path / "e", {"text": "x"})).labelled
    with pytest.raises(ConfigError, match="line 1: the label 'b'"):
        data.labels(("a", "c"))


@pytest.mark.parametrize(
    ("line", "says"),
    [("{", "d:1 is not JSON"), ({"txt": "x"}, 'string "text"'), ({"text": "x", "lable": 1}, "unknown field 'lable'")],
)
def test_bad_data(tmp_path: Path, line: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read_data(written(tmp_path / "d", line))


def test_splits_never_part_a_group() -> None:
    data = Data(tuple(Example(f"text {chr(97 + i % 26)} {i}", None, None, f"g{i // 3}") for i in range(3000)), "x")
    split = data.splits((0.4, 0.3, 0.3), seed=1)
    assert (split.reshape(-1, 3) == split.reshape(-1, 3)[:, :1]).all()
    assert np.bincount(split) / len(split) == pytest.approx([0.4, 0.3, 0.3], abs=0.05)
    assert (split != data.splits(seed=2)).any()


def part(rows: list[int], importance: bool = True) -> Recorded:
    tokens = np.array([r % 3 + 1 for r in rows], np.int32)
    values = np.concatenate([np.full(t, r, np.float32) for r, t in zip(rows, tokens, strict=True)])
    return Recorded(
        np.array(rows),
        np.array([[r, -r] for r in rows], np.float32),
        tokens,
        np.ones(len(rows), np.float32),
        values if importance else None,
        np.full(len(rows), 2, np.float32) if importance else None,
    )


def test_records_grow_and_go_on(tmp_path: Path) -> None:
    data = Data(tuple(Example(str(i), None, None, None) for i in range(5)), "sha")
    records = Records(tmp_path / "r", data)
    key = records.key("small", "engine")
    assert records.load(key) is None
    assert len(records.rows(key)) == 0
    records.append(key, part([3, 0]))
    records.append(key, part([1, 3]))
    again = Records(tmp_path / "r", data)
    assert again.rows(key).tolist() == [0, 1, 3]
    found = again.load(key)
    assert found is not None
    assert found.logits[:, 0].tolist() == [0, 1, 3]
    assert found.importance_of(2).tolist() == [3]
    assert found.importance_of(1).tolist() == [1, 1]
    assert ms_by_row(found).tolist() == [1, 1, 1]
    assert ms_by_row(found, importance=True).tolist() == [2, 2, 2]
    assert found.take(np.array([3, 1])).tokens.tolist() == [1, 2]
    with pytest.raises(ConfigError, match="not recorded yet"):
        found.take(np.array([2]))
    assert records.key("small", "other") != key
    assert records.key("small", "engine", "alpha=0.5") != key
    with pytest.raises(ConfigError, match="other data"):
        Records(tmp_path / "r", Data(data.examples, "another"))
    bare = records.key("bare", "engine")
    records.append(bare, part([0], importance=False))
    loaded = records.load(bare)
    assert loaded is not None
    with pytest.raises(ConfigError, match="no importance"):
        loaded.importance_of(0)


def damaged(path: Path, **changes: Any) -> None:
    """A part with other arrays, None leaves one out."""
    arrays = {**np.load(path), **changes}
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:400]), "part-000000.npz is damaged .*: delete it"),
        (lambda path: path.write_bytes(b""), "is damaged"),
        (lambda path: path.write_bytes(b"garbage"), "is damaged"),
        (lambda path: damaged(path, tokens=None), "is damaged"),
        (lambda path: damaged(path, ms=np.ones(9, np.float32)), "is damaged .its arrays do not go together"),
        (lambda path: damaged(path, importance=np.ones(2, np.float32)), "is damaged .its arrays do not go together"),
        (lambda path: damaged(path, logits=np.ones((2, 3), np.float32)), "several numbers of labels: delete it"),
    ],
)
def test_damaged_records_say_what_to_do(tmp_path: Path, damage: Callable[[Path], object], says: str) -> None:
    data = Data(tuple(Example(str(i), None, None, None) for i in range(5)), "sha")
    records = Records(tmp_path / "r", data)
    for rows in ([0, 1], [2, 3]):
        records.append("s", part(rows))
    damage(tmp_path / "r" / "s" / "part-000000.npz")
    with pytest.raises(ConfigError, match=says):
        records.load("s")


def test_a_folder_that_cannot_hold_records(tmp_path: Path) -> None:
    data = Data((Example("x", None, None, None),), "sha")
    records = Records(tmp_path / "r", data)
    (tmp_path / "r" / "s").write_text("in the way")
    with pytest.raises(ConfigError, match=r"part-000000.npz cannot be written .*--records"):
        records.append("s", part([0]))
    (tmp_path / "r" / "pruned.json").write_text("[[1]]")
    with pytest.raises(ConfigError, match=r"pruned.json is damaged: delete it"):
        records.variants()
    (tmp_path / "r" / "data.json").write_text("{")
    with pytest.raises(ConfigError, match=r"data.json is damaged: delete"):
        Records(tmp_path / "r", data)
    with pytest.raises(ConfigError, match=r"cannot be used .*: choose a folder with --records"):
        Records(tmp_path / "r" / "s" / "below", data)


def test_the_key_is_of_the_engine_not_of_its_latency(made: CascadeManifest, tmp_path: Path) -> None:
    manifest = Manifest.load(tmp_path / "small")
    slower = dataclasses.replace(manifest, runtimes=(dataclasses.replace(manifest.runtimes[0], latency=()),))
    assert engine_hash(slower) == engine_hash(manifest)
    other = dataclasses.replace(manifest, runtimes=(dataclasses.replace(manifest.runtimes[0], files={"a": "b"}),))
    assert engine_hash(other) != engine_hash(manifest)


def test_times_are_smoothed_over_lengths() -> None:
    recorded = Recorded(
        np.arange(4),
        np.zeros((4, 2), np.float32),
        np.array([10, 10, 10, 40], np.int32),
        np.array([1.0, 9.0, 1.2, 0.5], np.float32),
    )
    assert ms_by_row(recorded) == pytest.approx([1.2, 1.2, 1.2, 1.2])
