"""`arlo cascade record --through` a gateway: what each stage says of whole texts, whatever the rules do with them."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from arlo.cascade.manifest import CascadeManifest, repository_hash
from arlo.cascade.records import Records, read_data
from arlo.cascade.spec import Prune
from arlo.cascade.study import stage_key
from arlo.catalog.manifest import Manifest
from arlo.cli import main
from tests.fakes.triton_workers import Workers
from tests.integration.gateway.replayed import CLS, STAGES, Plan, cascade_deployment, recorded, write_cascade

pytestmark = pytest.mark.integration

EVERYWHERE = {"small": (0, 1), "middle": (2,), "large": (3,)}
TEXTS = 60  # the number of each is that of its record


def written(folder: Path, **point: Any) -> Path:
    """cascade.json with tokenizers, and texts: a word that names the record, and some more."""
    manifest = write_cascade(folder)
    vocabulary = {"[CLS]": CLS, "more": 2000, "[UNK]": 3000} | {f"r{i}": i for i in range(TEXTS)}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.post_processor = processors.TemplateProcessing(single="[CLS] $A", special_tokens=[("[CLS]", CLS)])
    stages = []
    for stage in manifest.stages:
        repository = folder / stage.repository
        made.save(str(repository / "tokenizer.json"))
        dataclasses.replace(Manifest.load(repository), tokenizer="tokenizer.json").save(repository)
        stages.append(dataclasses.replace(stage, manifest_sha256=repository_hash(repository)))
    points = tuple(dataclasses.replace(each, **point) for each in manifest.points)
    dataclasses.replace(manifest, stages=tuple(stages), points=points).save(folder)
    lines = [{"text": " ".join([f"r{i}", *["more"] * (3 + i % 40)])} for i in range(TEXTS)]
    (folder / "texts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder / "cascade.json"


def deployed(workers: Workers, placement: dict[str, tuple[int, ...]] | None = None) -> Any:
    deployment = cascade_deployment(workers, placement or EVERYWHERE, {"usual": Plan(((0.3, 0.3),)), "safe": Plan()})
    del deployment.cascades[0].words[:]
    return deployment


async def record(path: Path, target: str, *more: str) -> int:
    data = str(path.parent / "texts.jsonl")
    return await asyncio.to_thread(main, ["cascade", "record", str(path), "--data", data, "--through", target, *more])


async def test_every_stage_is_recorded_whole(
    workers: Workers, start: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Though the rules in force let few rows past the first stage."""
    path = written(tmp_path)
    async with start(deployed(workers)) as gateway:
        assert await record(path, gateway.grpc, "--json") == 0
        assert json.loads(capsys.readouterr().out)["recorded"] == dict.fromkeys(STAGES, TEXTS)
        visits = [stage.visits for stage in (await gateway.stats("kinds")).stages]
        assert await record(path, gateway.grpc) == 0
        assert "60 texts recorded of small, middle, large" in capsys.readouterr().out
        again = [stage.visits for stage in (await gateway.stats("kinds")).stages]
        assert again == visits, "nothing is asked for twice"
    data = read_data(tmp_path / "texts.jsonl")
    records, cascade = Records(tmp_path / "records", data), CascadeManifest.load(path)
    for number, stage in enumerate(STAGES):
        found = records.load(stage_key(cascade, tmp_path, records, number))
        assert found is not None
        np.testing.assert_array_equal(found.logits, recorded(stage)[0][:TEXTS])
        assert found.tokens.tolist() == [5 + i % 40 for i in range(TEXTS)]
        assert (found.ms > 0).all()
        assert found.importance is None


async def test_texts_that_a_stage_does_not_answer_are_left(
    workers: Workers, start: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path)
    async with start(deployed(workers, {"small": (0,), "middle": (), "large": (3,)})) as gateway:
        assert await record(path, gateway.grpc) == 1
        said = capsys.readouterr()
        assert "60 texts were not answered by stage middle" in said.err
        assert "60 of 60 texts of small, 0 of 60 texts of middle, 60 of 60 texts of large" in said.out
    async with start(deployed(workers, {"small": (0,), "middle": (2,), "large": ()})) as gateway:
        assert await record(path, gateway.grpc) == 0, "what is there is not asked for"
        (tmp_path / "texts.jsonl").write_text('{"text": "r7 more"}\n')
        assert await record(path, gateway.grpc, "--records", str(tmp_path / "other"), "--stages", "large") != 0
        assert "no healthy instance" in capsys.readouterr().err


async def test_what_a_gateway_cannot_tell_is_refused(
    workers: Workers, start: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, prune=Prune(alpha=0.8))
    async with start(deployed(workers)) as gateway:
        for more, says in (
            (("--alphas", "0.8"), "leave out --alphas"),
            (("--threads", "2"), "--threads"),
            (("--model", "other"), "other"),
            ((), "stage 'middle' is between others"),
        ):
            assert await record(path, gateway.grpc, *more) != 0
            assert says in capsys.readouterr().err
        assert await record(path, gateway.grpc, "--stages", "small,large") == 0
