"""The torch engine on the CPU: every family that it names and each kind of rows, against transformers in float64."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from arlo.compile import CompileOptions, compile_model
from arlo.compile.cache import Hasher
from arlo.compile.engines.interface import EngineSettings, get_engine
from arlo.compile.original import load_original
from arlo.compile.pooling import pool_numpy
from arlo.compile.steps.export_torch import FAMILIES, convert, export_torch
from arlo.compile.steps.resolve import SourceModel, resolve
from arlo.errors import CompileError, ConfigError
from arlo.templates.torch.encoder import Architecture, Prepacked, load, random_encoder
from arlo.templates.torch.foreign import Foreign
from arlo.templates.torch.session import (
    MaskedProgram,
    PackedProgram,
    PaddedProgram,
    Session,
    rows_to_record,
)
from tests.fakes.tiny_model import MAX_TOKENS, VOCABULARY, write_tiny

BOUND = 1e-5  # of float32, against float64
TASKS = {
    "embedding": "",
    "sequence-classification": "ForSequenceClassification",
    "reranker": "ForSequenceClassification",
    "token-classification": "ForTokenClassification",
    "question-answering": "ForQuestionAnswering",
}
WITHOUT = {("nomic_bert", "question-answering")}  # transformers has no such class
FOREIGN = {("nomic_bert", "sequence-classification"), ("nomic_bert", "reranker")}


def exported(folder: Path, family: str, task: str = "embedding", **changes: Any) -> tuple[SourceModel, Path]:
    """A tiny model and its folder for torch."""
    labels = {"reranker": 1, "question-answering": 2}.get(task, 3)
    source = write_tiny(folder / "source", family=family, head=TASKS[task], labels=labels)
    (folder / "model").mkdir()
    options = CompileOptions(source=source, out=folder / "x", task=task, lengths=(MAX_TOKENS,), engine="torch")  # type: ignore[arg-type]
    model = dataclasses.replace(resolve(options, Hasher()), **changes)
    export_torch(model, "fp32", folder / "model")
    return model, folder / "model"


def ragged(rows: int, *, seed: int = 0) -> list[NDArray[np.int64]]:
    """Ids of rows of 1 to MAX_TOKENS tokens, the first one full."""
    rng = np.random.default_rng(seed)
    lengths = [MAX_TOKENS, 1, *rng.integers(1, MAX_TOKENS + 1, rows)][:rows]
    return [rng.integers(5, VOCABULARY, length) for length in lengths]


def padded(model: SourceModel, rows: Sequence[NDArray[np.int64]]) -> dict[str, NDArray[np.int64]]:
    """Rows as inputs of a session, padded to the longest."""
    longest = max(map(len, rows))
    ids = np.full((len(rows), longest), model.inputs[0].pad_value)
    mask = np.zeros_like(ids)
    for index, row in enumerate(rows):
        ids[index, : len(row)], mask[index, : len(row)] = row, 1
    return {"input_ids": ids, "attention_mask": mask}


def exact(model: SourceModel, rows: Sequence[NDArray[np.int64]], types: bool = False) -> list[dict[str, NDArray[Any]]]:
    """What transformers answers to each row by itself, in float64."""
    original = load_original(model).double()
    answers = []
    for row in rows:
        ids = torch.from_numpy(row)[None]
        given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if types:
            given["token_type_ids"] = ids % 2
        with torch.inference_mode():
            answer = original(**given)
        if model.task == "embedding":
            hidden = answer.last_hidden_state[0].numpy()
            pooled = pool_numpy(hidden, model.pooling, normalize=model.normalize)
            answers.append({"sentence_embedding": pooled, "last_hidden_state": hidden})
        else:
            names = ("start_logits", "end_logits") if model.task == "question-answering" else ("logits",)
            answers.append({name: answer[name][0].numpy() for name in names})
    return answers


def check(
    session: Session,
    model: SourceModel,
    rows: Sequence[NDArray[np.int64]],
    *,
    types: bool = False,
    expected: Sequence[dict[str, NDArray[Any]]] | None = None,
) -> None:
    """Compare the session's answers with those of transformers (`expected`, where they are known), row by row."""
    tensors = padded(model, rows)
    if types:
        tensors["token_type_ids"] = tensors["input_ids"] % 2 * tensors["attention_mask"]
    found = session.run(session.outputs, tensors)
    for index, wanted in enumerate(expected or exact(model, rows, types)):
        for name, answers in zip(session.outputs, found, strict=True):
            answer = answers[index][: len(rows[index])] if session.arch.by_token(name) else answers[index]
            np.testing.assert_allclose(answer, wanted[name], rtol=0, atol=BOUND * max(1, np.abs(wanted[name]).max()))


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_answers_as_transformers_does(tmp_path: Path, family: str, task: str) -> None:
    if (family, task) in WITHOUT:
        pytest.skip("transformers has no such model")
    model, folder = exported(tmp_path, family, task)
    foreign = (family, task) in FOREIGN
    assert (Architecture.read(folder).family == "transformers") is foreign
    rows = ragged(7)
    expected = exact(model, rows)
    for kind in ("static", "dynamic") if foreign else ("static", "dynamic", "packed"):
        session = Session(folder, kinds=(kind,), lengths=(16, MAX_TOKENS), max_rows=8)
        check(session, model, rows, expected=expected)
        assert session.kind == kind


@pytest.mark.parametrize("family", ["bert", "electra", "nomic_bert", "albert"])
@pytest.mark.parametrize("kind", ["dynamic", "packed"])
def test_token_types_count(tmp_path: Path, family: str, kind: str) -> None:
    model, folder = exported(tmp_path, family)
    if family == "albert" and kind == "packed":
        with pytest.raises(ValueError, match="not packed here"):
            Session(folder, kinds=(kind,))
        return
    check(Session(folder, kinds=(kind,), max_rows=8), model, ragged(5), types=True)


def test_the_padding_id_within_a_row_has_no_position_of_its_own(tmp_path: Path) -> None:
    model, folder = exported(tmp_path, "roberta")
    row = ragged(1)[0]
    row[3] = row[9] = model.inputs[0].pad_value
    for kind in ("dynamic", "packed"):
        check(Session(folder, kinds=(kind,), max_rows=8), model, [row, ragged(2)[1]])


def test_ids_under_the_mask_and_masks_with_holes(tmp_path: Path) -> None:
    _, folder = exported(tmp_path, "bert")
    session = Session(folder, kinds=("packed",), max_rows=4)
    rng = np.random.default_rng(3)
    ids, mask = rng.integers(5, VOCABULARY, (2, 12)), np.ones((2, 12), np.int64)
    mask[0, 7:] = 0
    (first,) = session.run(("sentence_embedding",), {"input_ids": ids, "attention_mask": mask})
    assert session.kind == "packed"
    other = np.where(mask, ids, rng.integers(5, VOCABULARY, (2, 12)))
    (second,) = session.run(("sentence_embedding",), {"input_ids": other, "attention_mask": mask})
    np.testing.assert_array_equal(first, second)
    mask[1, 3] = 0  # positions count masked tokens too, so that such a row cannot be packed
    (third,) = session.run(("sentence_embedding",), {"input_ids": ids, "attention_mask": mask})
    assert session.kind == "dynamic"
    np.testing.assert_allclose(first[0], third[0], atol=1e-6)
    model = load(folder)
    with torch.inference_mode():
        given = torch.from_numpy(ids[1:]), torch.from_numpy(mask[1:])
        alone = model.answers_padded(model.padded(*given), given[1])["sentence_embedding"]
    np.testing.assert_allclose(third[1], alone[0].numpy(), atol=1e-6)


def test_packed_rows_given_as_such_and_longer_than_the_budget(tmp_path: Path) -> None:
    model, folder = exported(tmp_path, "bert")
    rows = ragged(40, seed=8)
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    whole = Session(folder, kinds=("packed",)).run_packed(model_outputs(), np.concatenate(rows), offsets)
    small = Session(folder, kinds=("packed",), budget=100).run_packed(model_outputs(), np.concatenate(rows), offsets)
    assert whole[0].shape == (40, 32)
    assert whole[1].shape == (offsets[-1], 32)
    for answers, wanted in zip(whole, small, strict=True):
        np.testing.assert_allclose(answers, wanted, atol=1e-6)
    for index, wanted_row in enumerate(exact(model, rows)):
        np.testing.assert_allclose(whole[0][index], wanted_row["sentence_embedding"], atol=BOUND)


def model_outputs() -> tuple[str, str]:
    return ("sentence_embedding", "last_hidden_state")


@pytest.mark.parametrize("kind", ["static", "packed"])
@pytest.mark.parametrize("ids", [[7, VOCABULARY], [-1, 7]])
def test_ids_outside_the_vocabulary_are_refused(tmp_path: Path, kind: str, ids: list[int]) -> None:
    _, folder = exported(tmp_path, "bert")
    session = Session(folder, kinds=(kind,))
    with pytest.raises(ValueError, match="input_ids has an id outside"):
        session.run(("sentence_embedding",), {"input_ids": np.array([ids])})
    with pytest.raises(ValueError, match="token_type_ids has a type outside 0 to 1"):
        session.run(("sentence_embedding",), {"input_ids": np.array([[7, 8]]), "token_type_ids": np.array([[0, 2]])})


@pytest.mark.parametrize("kind", ["static", "dynamic", "packed"])
def test_batches_without_tokens_and_rows_that_are_too_long_are_refused(tmp_path: Path, kind: str) -> None:
    _, folder = exported(tmp_path, "bert")
    session = Session(folder, kinds=(kind,), max_rows=4)
    for shape in ((0, 8), (2, 0), (1, MAX_TOKENS + 1)):
        with pytest.raises(ValueError, match=f"rows have 1 to {MAX_TOKENS} tokens"):
            session.run(("sentence_embedding",), {"input_ids": np.full(shape, 7)})
    ids, mask = np.full((2, 8), 7), np.ones((2, 8), np.int64)
    mask[1] = 0  # a row without tokens beside one that has some
    (found,) = session.run(("sentence_embedding",), {"input_ids": ids, "attention_mask": mask})
    (alone,) = session.run(("sentence_embedding",), {"input_ids": ids[:1]})
    np.testing.assert_allclose(found[0], alone[0], atol=1e-6)


@pytest.mark.parametrize("offsets", [[0], [0, 3], [0, 3, 3, 5], [1, 5], [0, 4, 2, 5], [0, 6]])
def test_offsets_that_do_not_cut_the_tokens_into_rows_are_refused(tmp_path: Path, offsets: list[int]) -> None:
    _, folder = exported(tmp_path, "bert")
    with pytest.raises(ValueError, match="offsets must ascend from 0 to the 5 tokens"):
        Session(folder, kinds=("packed",)).run_packed(("sentence_embedding",), np.full(5, 7), np.array(offsets))


def test_both_kinds_take_turns_by_the_size_of_a_batch(tmp_path: Path) -> None:
    model, folder = exported(tmp_path, "bert")
    session = Session(folder, kinds=("static", "packed"), lengths=(16, MAX_TOKENS), max_rows=8, packed_from=100)
    for rows, kind in ((1, "static"), (8, "packed"), (12, "packed")):
        check(session, model, ragged(rows))
        assert session.kind == kind


def test_spans_of_a_family_that_keeps_its_code_are_cut_to_the_rows(tmp_path: Path) -> None:
    model, folder = exported(tmp_path, "albert", "question-answering")
    check(Session(folder, kinds=("static",), max_rows=8), model, ragged(3))
    foreign = Foreign(folder, device="cpu")
    with torch.inference_mode():
        program = MaskedProgram(foreign, 4, MAX_TOKENS)  # type: ignore[arg-type]
        answer = program.of_rows(np.full((2, 20), 7), None, np.array([20, 5]))
        assert answer("start_logits").shape == (2, 20)


def test_weights_can_be_read_by_other_users(tmp_path: Path) -> None:
    _, folder = exported(tmp_path, "bert")
    assert (folder / "weights.safetensors").stat().st_mode == (folder / "model.json").stat().st_mode


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("modernbert", {"local_attention": 1}),
        ("mpnet", {"relative_attention_num_buckets": 64}),
        ("bert", {"hidden_act": "quick_gelu"}),
        ("bert", {"hidden_act": "mish"}),
        ("bert", {"is_decoder": True}),
    ],
)
def test_settings_of_a_family_that_are_not_ours_keep_the_code_of_transformers(
    tmp_path: Path, family: str, changes: dict[str, Any]
) -> None:
    model, _ = exported(tmp_path, family)
    original = load_original(model)
    assert convert(model, original, "fp32")[0].family == family
    original.config.update(changes)
    assert convert(model, original, "fp32")[0].family == "transformers"


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_half_precision_is_near(tmp_path: Path, precision: Any) -> None:
    model, _ = exported(tmp_path, "bert")
    (tmp_path / "half").mkdir()
    export_torch(model, precision, tmp_path / "half")
    rows = ragged(6)
    wanted = np.stack([answer["sentence_embedding"] for answer in exact(model, rows)])
    for kind in ("dynamic", "packed"):
        (found,) = Session(tmp_path / "half", kinds=(kind,)).run(("sentence_embedding",), padded(model, rows))
        assert np.linalg.norm(found - wanted) / np.linalg.norm(wanted) < {"fp16": 2e-3, "bf16": 1.5e-2}[precision]


@pytest.mark.parametrize("family", ["bert", "roberta", "mpnet", "modernbert", "deberta-v2"])
def test_positions_that_config_json_leaves_to_the_class(tmp_path: Path, family: str) -> None:
    model, _ = exported(tmp_path, family)
    (tmp_path / "other").mkdir()
    export_torch(dataclasses.replace(model, max_tokens=None), "fp32", tmp_path / "other")
    check(Session(tmp_path / "other", kinds=("dynamic",), max_rows=8), model, ragged(3))


def test_weights_that_do_not_fit_are_named(tmp_path: Path) -> None:
    _, folder = exported(tmp_path, "bert")
    described = (folder / "model.json").read_text()
    (folder / "model.json").write_text(described.replace('"layers": 2', '"layers": 3'))
    with pytest.raises(ValueError, match=r"layers\.2\.qkv\.weight"):
        load(folder)
    (folder / "model.json").write_text(described.replace('"format": 1', '"format": 9'))
    with pytest.raises(ValueError, match="build the repository again"):
        load(folder)


def test_a_model_with_a_seed_needs_no_weights(tmp_path: Path) -> None:
    arch = Architecture(
        family="bert",
        pooling=("mean",),
        layers=1,
        width=32,
        heads=2,
        intermediate=64,
        vocabulary=VOCABULARY,
        positions=MAX_TOKENS,
        seed=3,
    )
    arch.write(tmp_path)
    drawn, wanted = load(tmp_path), random_encoder(arch, seed=3)
    assert not drawn.training
    torch.testing.assert_close(drawn.state_dict(), wanted.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("types", [False, True])
def test_programs_of_a_gpu_lay_rows_out_as_the_cpu_does(types: bool, tmp_path: Path) -> None:
    arch = Architecture(
        family="bert",
        pooling=("mean",),
        layers=2,
        width=32,
        heads=2,
        intermediate=64,
        vocabulary=VOCABULARY,
        positions=MAX_TOKENS,
        types=2,
        seed=3,
    )
    arch.write(tmp_path)
    model = load(tmp_path)  # drawn
    rows = ragged(5, seed=6)
    lengths = np.array([len(row) for row in rows])
    ids, mask = np.zeros((5, MAX_TOKENS), np.int64), (np.arange(MAX_TOKENS) < lengths[:, None]).astype(np.int64)
    ids[mask.astype(bool)] = np.concatenate(rows)
    kinds = ids % 2 if types else None
    given = torch.from_numpy(mask)
    with torch.inference_mode():
        hidden = model.padded(torch.from_numpy(ids), given, None if kinds is None else torch.from_numpy(kinds))
        wanted = {name: answer.numpy() for name, answer in model.answers_padded(hidden, given).items()}
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        flat = None if kinds is None else kinds[mask.astype(bool)]
        ways = {
            "padded": PaddedProgram(model, 8, MAX_TOKENS).of_rows(ids, kinds, lengths),
            "masked": MaskedProgram(model, 8, MAX_TOKENS).of_rows(ids, kinds, lengths),
            "packed": PackedProgram(model, 9, 256, MAX_TOKENS).of_tokens(np.concatenate(rows), flat, offsets),
        }
        for way, answer in ways.items():
            np.testing.assert_allclose(answer("sentence_embedding"), wanted["sentence_embedding"], atol=1e-6)
            tokens = answer("last_hidden_state").numpy()
            tokens = tokens if way == "packed" else tokens[mask.astype(bool)]
            np.testing.assert_allclose(tokens, wanted["last_hidden_state"][mask.astype(bool)], atol=1e-5)


def test_prepacked_layers_meet_few_numbers_of_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN keeps memory for each: hundreds of batches of other sizes took gigabytes."""
    linear, met = torch.nn.Linear(24, 40), set()
    run = Prepacked._run

    def counted(self: Prepacked, x: torch.Tensor) -> torch.Tensor:
        met.add(len(x))
        return run(self, x)

    monkeypatch.setattr(Prepacked, "_run", counted)
    with torch.inference_mode():
        for tokens in (1, 7, 8, 9, 250, 256, 257, 700, 1024, 1031):
            x = torch.randn(tokens, 24)
            np.testing.assert_allclose(Prepacked(linear)(x), linear(x), atol=1e-5)
        x = torch.randn(3, 100, 24)
        np.testing.assert_allclose(Prepacked(linear, "gelu")(x), torch.nn.functional.gelu(linear(x)), atol=1e-5)
    assert all(tokens <= Prepacked.CHUNK and tokens % Prepacked.STEP == 0 for tokens in met)


def test_rows_that_are_recorded() -> None:
    assert rows_to_record(1) == (1,)
    assert rows_to_record(20) == (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 20)
    assert (
        max(after / before for before, after in zip(rows_to_record(64)[8:], rows_to_record(64)[9:], strict=False))
        < 1.51
    )


def test_a_repository_of_one_runtime(tmp_path: Path) -> None:
    source = write_tiny(tmp_path / "tiny", pooling={"pooling_mode_mean_tokens": True})
    options = CompileOptions(
        source=source, out=tmp_path / "out", lengths=(16, 32), engine="torch", max_batch=4, cache=tmp_path / "cache"
    )
    manifest = compile_model(options)
    (runtime,) = manifest.runtimes
    assert (runtime.name, runtime.dynamic, runtime.profiles, runtime.kinds) == (
        "tiny_torch", True, (16, 32), ("static", "packed"),
    )  # fmt: skip
    assert runtime.verification is not None
    assert runtime.verification.max_abs_diff < BOUND
    assert {point.length for point in runtime.latency} >= {8, 16, 32}


def test_other_kinds_are_verified_and_measured_by_themselves(tmp_path: Path) -> None:
    """The files are the same, so that a cache by files alone would take one kind's verification for the other's."""
    options = CompileOptions(
        source=write_tiny(tmp_path / "tiny", pooling={"pooling_mode_mean_tokens": True}),
        out=tmp_path / "out",
        lengths=(16,),
        engine="torch",
        kinds=("static",),
        cache=tmp_path / "cache",
    )
    compile_model(options)
    for kinds, again in ((("packed",), True), (("static",), False)):
        steps: dict[str, bool] = {}
        compile_model(
            dataclasses.replace(options, kinds=kinds),  # type: ignore[arg-type]
            lambda event, steps=steps: steps.update({event.step: event.cached} if event.done else {}),
        )
        assert steps["export"]
        assert (not steps["verify"], not steps["latency"]) == (again, again)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"kinds": ("static", "sparse")}, "compile.kinds must be"),
        ({"kinds": ("packed",), "engine": "onnxruntime"}, "kinds is for torch"),
        ({"importance": "all"}, "importance and confidence are outputs of ONNX graphs"),
        ({"profiles": True}, "profiles is not for torch"),
        ({"backend": "native"}, "torch is served by our model code"),
    ],
)
def test_options_that_do_not_go_together(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    def ask() -> None:
        options = CompileOptions(source=tmp_path, out=tmp_path / "x", **{"engine": "torch", **changes})
        get_engine(options.engine, options.engine_settings)

    with pytest.raises(ConfigError, match=problem):
        ask()


def test_a_family_that_is_not_packed_is_refused_by_name(tmp_path: Path) -> None:
    source = write_tiny(tmp_path / "tiny", family="albert", pooling={"pooling_mode_mean_tokens": True})
    options = CompileOptions(
        source=source, out=tmp_path / "out", lengths=(16,), engine="torch", kinds=("packed",), cache=tmp_path / "cache"
    )
    with pytest.raises(ConfigError, match="models of the type albert are not packed here, only bert, roberta"):
        compile_model(options)
    (runtime,) = compile_model(dataclasses.replace(options, kinds=())).runtimes
    assert runtime.kinds == ("static", "dynamic")


def test_what_torch_does_not_compute_in_half_precision_is_said(tmp_path: Path) -> None:
    source = write_tiny(tmp_path / "tiny", family="deberta", pooling={"pooling_mode_mean_tokens": True})
    options = CompileOptions(
        source=source, out=tmp_path / "out", lengths=(16,), engine="torch", precision="fp16", cache=tmp_path / "cache"
    )
    with pytest.raises(CompileError, match="torch does not compute this model in fp16"):
        compile_model(options)


def test_a_gpu_that_is_not_here() -> None:
    engine = get_engine("torch", EngineSettings(device="cuda", kinds=("packed",)))
    if not torch.cuda.is_available():
        assert engine.cannot_run()
