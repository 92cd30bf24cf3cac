"""Rows to requests and responses to results, without a server."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2, service_pb2

from arlo.client import InvalidRequestError, ModelInfo, NotFoundError, ServerError, TensorInfo
from arlo.client.codec import Codec, datatype_of, from_raw, to_raw
from arlo.client.model import from_server, roles, to_server
from arlo.client.rows import PreparedRow, RowReader
from tests.fakes.kserve_server import MODEL, answer


def tensor(name: str, shape: tuple[int, ...] = (-1, -1), datatype: str = "INT64", optional: bool = False) -> TensorInfo:
    return TensorInfo(name=name, datatype=datatype, shape=shape, optional=optional)


def info(*inputs: TensorInfo, outputs: tuple[TensorInfo, ...] = (), **fields: Any) -> ModelInfo:
    return ModelInfo(name="m", inputs=inputs, outputs=outputs, **fields)


def row(*ids: int, **extra: list[int]) -> PreparedRow:
    return PreparedRow(np.array(ids), {name: np.array(values) for name, values in extra.items()})


def sent(request: Any) -> dict[str, Any]:
    assert len(request.inputs) == len(request.raw_input_contents)
    return {
        t.name: from_raw(t, raw).tolist() for t, raw in zip(request.inputs, request.raw_input_contents, strict=True)
    }


IDS, MASK = tensor("input_ids"), tensor("attention_mask")
TYPES = tensor("token_type_ids", optional=True)
PLAIN = info(IDS, MASK, outputs=(tensor("e", (-1, 4), "FP32"),))
TEXTS = info(tensor("text", (-1, 1), "BYTES"), tensor("text_pair", (-1, 1), "BYTES", optional=True))
TASK = tensor("task", (-1, 1), "INT32", optional=True)
PIXELS = info(tensor("pixels", (-1, 1, 2, 2), "FP32"), TASK)
PICTURE = np.arange(4.0).reshape(1, 2, 2)


# Requests ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "rows", "expected"),
    [
        (PLAIN, [row(101, 7, 102)], {"input_ids": [[101, 7, 102]], "attention_mask": [[1, 1, 1]]}),
        (PLAIN, [row(1), row(2, 3)], {"input_ids": [[1, 9], [2, 3]], "attention_mask": [[1, 0], [1, 1]]}),
        (
            info(tensor("input_ids", datatype="INT32"), tensor("attention_mask", datatype="INT32")),
            [row(1, 2)],
            {"input_ids": [[1, 2]], "attention_mask": [[1, 1]]},
        ),
        (info(IDS, MASK, TYPES), [row(1, 2)], {"input_ids": [[1, 2]], "attention_mask": [[1, 1]]}),
        (
            info(IDS, MASK, TYPES),  # which one row has
            [row(1), row(3, 4, token_type_ids=[0, 1])],
            {"input_ids": [[1, 9], [3, 4]], "attention_mask": [[1, 0], [1, 1]], "token_type_ids": [[0, 0], [0, 1]]},
        ),
        (
            info(IDS, MASK, tensor("token_type_ids")),
            [row(1, 2)],
            {"input_ids": [[1, 2]], "attention_mask": [[1, 1]], "token_type_ids": [[0, 0]]},
        ),
        (
            info(tensor("input_ids", (-1, 4)), tensor("attention_mask", (-1, 4))),
            [row(5, 6)],
            {"input_ids": [[5, 6, 9, 9]], "attention_mask": [[1, 1, 0, 0]]},
        ),
        (info(IDS), [row(1, 2), row(3, 4)], {"input_ids": [[1, 2], [3, 4]]}),
        (
            PLAIN,
            [row(1, 2, 3, attention_mask=[1, 0, 1])],
            {"input_ids": [[1, 2, 3]], "attention_mask": [[1, 0, 1]]},
        ),
        (  # of no max_length: 512 places of masks are kept
            PLAIN,
            [row(*range(1, 701))],
            {"input_ids": [list(range(1, 701))], "attention_mask": [[1] * 700]},
        ),
        (TEXTS, ["a", "naïve"], {"text": [[b"a"], ["naïve".encode()]]}),
        (TEXTS, [("a", "b")], {"text": [[b"a"]], "text_pair": [[b"b"]]}),
        (PIXELS, [PICTURE, PICTURE.astype(np.uint8)], {"pixels": [PICTURE.tolist()] * 2}),
        (PIXELS, [{"pixels": PICTURE, "task": [2]}], {"pixels": [PICTURE.tolist()], "task": [[2]]}),
        (
            info(IDS, MASK, TASK),
            [{"input_ids": [1, 2, 3], "task": [1]}, {"input_ids": [4], "task": [0]}],
            {"input_ids": [[1, 2, 3], [4, 9, 9]], "attention_mask": [[1, 1, 1], [1, 0, 0]], "task": [[1], [0]]},
        ),
        (info(IDS, MASK, TASK), [[1, 2]], {"input_ids": [[1, 2]], "attention_mask": [[1, 1]]}),
    ],
)
def test_what_is_sent(model: ModelInfo, rows: list[Any], expected: dict[str, Any]) -> None:
    """Ids are padded with 9 and masks with 0; datatypes are the model's."""
    codec = Codec(model, pad_id=9)
    read = rows if isinstance(rows[0], PreparedRow) else RowReader(codec).read(rows)
    request = codec.encode(read, request_id="x")
    assert (request.model_name, request.id, len(request.outputs)) == ("m", "x", 0)
    assert sent(request) == expected
    datatypes = {each.name: each.datatype for each in model.inputs}
    assert all(each.datatype == datatypes[each.name] for each in request.inputs)


@given(st.lists(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=40), min_size=1, max_size=8))
@settings(deadline=None)
def test_what_is_sent_is_what_was_given(rows: list[list[int]]) -> None:
    arrays = sent(Codec(PLAIN).encode([row(*ids) for ids in rows], request_id=""))
    longest = max(map(len, rows))
    for given_ids, ids, mask in zip(rows, arrays["input_ids"], arrays["attention_mask"], strict=True):
        assert len(ids) == longest
        assert ids[: sum(mask)] == given_ids
        assert mask == sorted(mask, reverse=True)


@pytest.mark.parametrize(
    ("model", "rows", "message"),
    [
        (info(tensor("input_ids", datatype="INT32")), [row(2**40)], "input_ids has values that do not fit INT32"),
        (info(IDS), [row(1), row(2, 3)], "no attention mask"),
        (PLAIN, [row(1, segment_ids=[0])], "no input segment_ids; it has input_ids, attention_mask"),
        (info(IDS, MASK, TASK), [{"input_ids": [1], "task": [1]}, [5]], "a row lacks 'task'"),
        (TEXTS, ["a", ("b", "c")], "pairs of texts go in requests of their own"),
        (TEXTS, [[1, 2]], "takes texts, not token ids"),
        (TEXTS, [row(1, 2)], "takes texts, not token ids"),
        (PIXELS, [{"task": [1]}], "a row lacks 'pixels', which model m needs"),
        (PIXELS, [], "no rows"),
        (PIXELS, ["a text"], r"pixels must be of shape \[1, 2, 2\], not \[\]"),
        (PIXELS, [PICTURE[0]], r"pixels must be of shape \[1, 2, 2\], not \[2, 2\]"),
        (PIXELS, [np.stack([PICTURE, PICTURE])], "use infer_batch for several rows"),
        (PIXELS, [[[1, 2], [3]]], "pixels must be of shape"),
        (PIXELS, [PICTURE.astype(complex)], "pixels is FP32, and complex128 is none"),
        (PIXELS, [{"pixels": PICTURE, "task": [1.5]}], "task is INT32, and float64 is none"),
        (PIXELS, [{"pixels": PICTURE, "task": [1 << 40]}], "task has values that do not fit INT32"),
        (PIXELS, [{"pixels": PICTURE, "other": PICTURE}], "there is no input other; there are pixels, task"),
    ],
)
def test_rows_that_cannot_be_sent(model: ModelInfo, rows: list[Any], message: str) -> None:
    codec = Codec(model)
    with pytest.raises(InvalidRequestError, match=message):
        codec.encode(rows if rows and isinstance(rows[0], PreparedRow) else RowReader(codec).read(rows), request_id="x")


def test_outputs_that_are_asked_for() -> None:
    request = Codec(PLAIN).encode([row(1)], request_id="x", outputs=["e"])
    assert [o.name for o in request.outputs] == ["e"]
    for outputs in (["nope"], [], "e"):
        with pytest.raises(InvalidRequestError, match=r"outputs must be a list of m's outputs \(e\)"):
            Codec(PLAIN).encode([row(1)], request_id="", outputs=outputs)


def test_parameters() -> None:
    assert not Codec(PLAIN).encode([row(1)], request_id="").parameters
    request = Codec(PLAIN, bulk=True).encode([row(1)], request_id="", timeout_us=1500)
    assert request.parameters["timeout"].WhichOneof("parameter_choice") == "int64_param"
    assert request.parameters["timeout"].int64_param == 1500
    assert request.parameters["arlo_class"].string_param == "bulk"
    cut = Codec(TEXTS)
    request = cut.encode(RowReader(cut, max_length=8, truncate=True).read(["a"]), request_id="")
    assert request.parameters["truncate"].bool_param


@pytest.mark.parametrize("bad", [tensor("pixels", (-1, 3, -1, -1), "FP32"), tensor("x", (-1, -1), "FP32")])
def test_a_model_that_is_no_text_encoder_is_refused(bad: TensorInfo) -> None:
    with pytest.raises(InvalidRequestError, match="this client fills only INT64 and INT32"):
        Codec(info(bad))


# Responses -----------------------------------------------------------------------------------------------------------


def response_for(rows: list[PreparedRow]) -> Any:
    return answer(Codec(MODEL).encode(rows, request_id="q"))


def test_outputs_by_token_are_whole_where_the_server_makes_the_tokens() -> None:
    codec = Codec(dataclasses.replace(TEXTS, outputs=(tensor("tags", (-1, -1), "INT32"),)))
    response = service_pb2.ModelInferResponse(model_name="m", id="x")
    response.outputs.add(name="tags", datatype="INT32", shape=(1, 3))
    response.raw_output_contents.append(np.arange(3, dtype="<i4").tobytes())
    result = codec.decode(response, (0,), batched=False, attempts=1, elapsed_us=0)
    assert result["tags"].tolist() == result.rows("tags")[0].tolist() == [0, 1, 2]


def test_one_row_comes_back_without_a_row_dimension() -> None:
    result = Codec(MODEL).decode(response_for([row(4, 5, 6)]), (3,), batched=False, attempts=2, elapsed_us=900)
    assert (result.id, result.model, result.attempts) == ("q", "minilm", 2)
    assert result["sentence_embedding"].tolist() == [15.0, 3.0]
    assert result["last_hidden_state"].shape == (3, 2)
    assert [r.shape for r in result.rows("last_hidden_state")] == [(3, 2)]
    timing = result.timing
    assert (timing.level, timing.demoted, timing.queue_us, timing.execute_us) == (1, 0, 20, 300)
    assert timing.batch_rows == 8
    assert (timing.total_us, timing.computed_tokens, timing.elapsed_us) == (350, 64, 900)
    assert result.padded_tokens == 61


def test_a_batch_keeps_rows_first_and_rows_cuts_each_to_its_length() -> None:
    result = Codec(MODEL).decode(response_for([row(4), row(5, 6)]), (1, 2), batched=True, attempts=1, elapsed_us=0)
    assert result["sentence_embedding"].tolist() == [[4.0, 1.0], [11.0, 2.0]]
    assert result["last_hidden_state"].shape == (2, 2, 2)
    assert [r.tolist() for r in result.rows("last_hidden_state")] == [[[4.0, 4.0]], [[5.0, 5.0], [6.0, 6.0]]]
    assert [r.tolist() for r in result.rows("sentence_embedding")] == [[4.0, 1.0], [11.0, 2.0]]


def test_outputs_are_views_and_read_only_and_an_unknown_one_names_those_there_are() -> None:
    result = Codec(MODEL).decode(response_for([row(4)]), (1,), batched=False, attempts=1, elapsed_us=0)
    with pytest.raises(ValueError, match="read-only"):
        result["sentence_embedding"][0] = 1
    with pytest.raises(NotFoundError, match="no output 'x'; it has last_hidden_state, sentence_embedding"):
        result["x"]


def test_a_static_server_answers_wider_than_the_row() -> None:
    request = Codec(MODEL).encode([row(4, 5), row(6, 7, 8, 9)], request_id="")
    result = Codec(MODEL).decode(answer(request), (2, 3), batched=True, attempts=1, elapsed_us=0)
    assert result["last_hidden_state"].shape == (2, 3, 2)


def reply(shape: tuple[int, ...], datatype: str, raw: bytes | None = None, **contents: Any) -> Any:
    response = service_pb2.ModelInferResponse(model_name="m")
    added = response.outputs.add(name="e", datatype=datatype, shape=shape)
    for field, values in contents.items():
        getattr(added.contents, field).extend(values)
    if raw is not None:
        response.raw_output_contents.append(raw)
    return response


def decoded(response: Any, rows: int = 1) -> Any:
    return Codec(PLAIN).decode(response, (1,) * rows, batched=True, attempts=1, elapsed_us=0)["e"]


ARRAYS = [
    np.arange(6).reshape(2, 3).astype(d)
    for d in ("<f2", "<f4", "<f8", "<i1", "<i2", "<i4", "<i8", "<u1", "<u2", "<u4", "<u8", "?")
]


@pytest.mark.parametrize("array", [*ARRAYS, np.array([["a", "bcd"], ["", "é"]], dtype=object)], ids=lambda a: a.dtype)
def test_every_datatype_survives_the_wire(array: Any) -> None:
    back = decoded(reply(array.shape, datatype_of(array), to_raw(array)), rows=2)
    expected = [[v.encode() for v in r] for r in array.tolist()] if array.dtype == object else array.tolist()
    assert back.tolist() == expected


def test_bf16_becomes_float32() -> None:
    assert decoded(reply((1, 2), "BF16", bytes.fromhex("803f20c0"))).tolist() == [[1.0, -2.5]]


@pytest.mark.parametrize(
    ("response", "match"),
    [
        (reply((1, 4), "FP32", b"\0" * 12), r"has 3 values, its shape is \[1, 4\]"),
        (reply((1, 3), "FP32", b"\0" * 13), "no whole number of values"),
        (reply((2, 2), "FP32", b"\0" * 16), "the request has 1 rows"),
        (reply((), "FP32", b"\0" * 4), "the request has 1 rows"),
        (reply((1, 1), "FP99", b"\0"), "unknown datatype"),
        (reply((1, 2), "FP32", fp32_contents=[1.5, 2.5]), "carries 0"),
        (reply((1, 1), "BYTES", b"\5\0\0\0ab"), "cut off"),
    ],
)
def test_answers_that_make_no_sense_are_server_errors(response: Any, match: str) -> None:
    with pytest.raises(ServerError, match=match):
        decoded(response)


def test_a_missing_raw_entry_is_a_server_error() -> None:
    response = response_for([row(1)])
    del response.raw_output_contents[1:]
    with pytest.raises(ServerError, match="names 2 outputs but carries 1"):
        Codec(MODEL).decode(response, (1,), batched=False, attempts=1, elapsed_us=0)


# The model -----------------------------------------------------------------------------------------------------------


def test_model_info_survives_the_protocol() -> None:
    fields, config = to_server(MODEL)
    back = from_server(service_pb2.ModelMetadataResponse(**fields), service_pb2.ModelConfigResponse(config=config))
    assert back == MODEL


@pytest.mark.parametrize(("parameter", "expected"), [("512", 512), ("", 128), ("0", 128), ("many", 128)])
def test_the_longest_row_comes_from_the_parameter_else_from_a_fixed_shape(parameter: str, expected: int) -> None:
    metadata = service_pb2.ModelMetadataResponse(name="m")
    metadata.inputs.add(name="input_ids", datatype="INT64", shape=(-1, 128))
    config = model_config_pb2.ModelConfig()
    config.parameters["max_length"].string_value = parameter
    assert from_server(metadata, service_pb2.ModelConfigResponse(config=config)).max_length == expected
    assert from_server(metadata, None).max_length == 128


@pytest.mark.parametrize(
    ("names", "ids", "mask"),
    [
        (["input_ids", "attention_mask", "token_type_ids"], "input_ids", "attention_mask"),
        (["token_type_ids", "position_ids", "input_ids"], "input_ids", None),
        (["tokens", "input_mask"], "tokens", "input_mask"),
        (["segment_type_ids", "word_ids", "mask"], "word_ids", "mask"),
    ],
)
def test_roles_come_from_the_names(names: list[str], ids: str, mask: str | None) -> None:
    found = roles(tuple(tensor(n) for n in names), "m")
    assert [n for n, r in found.items() if r == "ids"] == [ids]
    assert [n for n, r in found.items() if r == "mask"] == ([mask] if mask else [])


@pytest.mark.parametrize("names", [[], ["a", "b"], ["input_ids", "mask_1", "mask_2"]])
def test_unclear_roles_are_refused(names: list[str]) -> None:
    with pytest.raises(InvalidRequestError, match="does not look like a text encoder"):
        roles(tuple(tensor(n) for n in names), "m")


def outputs_of(*outputs: tuple[str, tuple[int, ...]], token_level: frozenset[str] | None = None) -> ModelInfo:
    return info(outputs=tuple(tensor(n, s, "FP32") for n, s in outputs), token_level=token_level)


def test_the_sentence_output_is_the_one_with_a_vector_per_row() -> None:
    assert outputs_of(("h", (-1, -1, 8)), ("v", (-1, 8))).sentence_output() == "v"
    assert outputs_of(("logits", (-1, 2)), ("sentence_embedding", (-1, 8))).sentence_output() == "sentence_embedding"
    assert outputs_of(("tags", (-1, -1)), ("v", (-1, 8))).sentence_output() == "v"
    told = outputs_of(("a", (-1, -1)), ("b", (-1, -1)), token_level=frozenset({"a"}))
    assert told.sentence_output() == "b"


def test_no_sentence_output_or_a_choice_is_an_error() -> None:
    with pytest.raises(InvalidRequestError, match="no such output: pass output=, one of h"):
        outputs_of(("h", (-1, -1, 8))).sentence_output()
    with pytest.raises(InvalidRequestError, match=r"several outputs .*\(a, b\)"):
        outputs_of(("a", (-1, 8)), ("b", (-1, 8))).sentence_output()


# Rows ----------------------------------------------------------------------------------------------------------------


def reader(*, limit: int | None = 4, truncate: bool = False) -> RowReader:
    return RowReader(Codec(dataclasses.replace(PLAIN, max_length=limit)), truncate=truncate)


def one(reader: RowReader, row: Any) -> PreparedRow:
    (prepared,) = reader.read([row])
    return prepared


def test_cutting_token_ids_keeps_the_last_one() -> None:
    assert one(reader(truncate=True), [101, 1, 2, 3, 4, 102]).ids.tolist() == [101, 1, 2, 102]
    cut = one(reader(truncate=True), {"input_ids": [101, 1, 2, 3, 102], "type": [0, 0, 1, 1, 2]})
    assert (cut.ids.tolist(), cut.extra["type"].tolist()) == ([101, 1, 2, 102], [0, 0, 1, 2])


def test_padding_at_the_end_of_a_mapping_is_taken_off() -> None:
    got = one(reader(), {"input_ids": [1, 2, 3, 0, 0, 0], "attention_mask": [1, 0, 1, 0, 0, 0]})
    assert got.ids.tolist() == [1, 2, 3]
    assert got.extra["attention_mask"].tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("bad", "match"),
    [
        ([], "no tokens"),
        ({"input_ids": [1], "attention_mask": [0]}, "no tokens"),
        ([1.5], "must be integers"),
        ([[1, 2], [3, 4]], "use infer_batch"),
        ([[1, 2], [3]], "use infer_batch"),
        (["a", "b"], "use infer_batch"),
        (7, r"integers of shape \[tokens\]"),
        ("text", "text needs a tokenizer"),
        ({"ids": [1]}, "lacks 'input_ids'; it has 'ids'"),
        ({"input_ids": [1, 2], "type": [0]}, "type has 1 values, input_ids has 2"),
    ],
)
def test_bad_rows_say_what_is_wrong(bad: Any, match: str) -> None:
    with pytest.raises(InvalidRequestError, match=match):
        one(reader(), bad)


def test_a_batch_is_a_list_of_rows() -> None:
    assert [r.ids.tolist() for r in reader().read([[1], np.array([2, 3], np.int32)])] == [[1], [2, 3]]
    for bad in ("text", {"input_ids": [1]}):
        with pytest.raises(InvalidRequestError, match="infer_batch takes a list"):
            reader().read(bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="give at least one"):
        reader().read([])


def test_truncating_needs_a_known_length() -> None:
    with pytest.raises(InvalidRequestError, match="pass max_length="):
        reader(limit=None, truncate=True)


# Pipelines -----------------------------------------------------------------------------------------------------------

FLOW = info(
    tensor("input_ids"),
    tensor("attention_mask"),
    outputs=(
        tensor("topic.logits", (-1, 2), "FP32"),
        tensor("topic.row", (-1,), "INT32"),
        tensor("tags.logits", (-1, 3), "FP32"),
        tensor("tags.row", (-1,), "INT32"),
        tensor("children", (-1,), "INT32"),
    ),
)


def of_flow(topic: list[int], tags: list[int]) -> Any:
    response = service_pb2.ModelInferResponse(model_name="m", id="x")
    arrays = {
        "topic.logits": np.arange(2 * len(topic), dtype="<f4").reshape(-1, 2),
        "topic.row": np.array(topic, "<i4"),
        "tags.logits": np.arange(3 * len(tags), dtype="<f4").reshape(-1, 3),
        "tags.row": np.array(tags, "<i4"),
    }
    for name, array in arrays.items():
        response.outputs.add(name=name, datatype=datatype_of(array), shape=array.shape)
        response.raw_output_contents.append(to_raw(array))
    return response


def test_whose_an_answer_is_is_asked_for() -> None:
    request = Codec(FLOW).encode([row(1)], request_id="x", outputs=["tags.logits", "children"])
    assert [output.name for output in request.outputs] == ["tags.logits", "children", "tags.row"]


def test_answers_are_parted_by_row() -> None:
    """Of one stage each row has an answer, of the other it has two or none."""
    result = Codec(FLOW).decode(of_flow([0, 1], [1, 1]), (1, 1), batched=True, attempts=1, elapsed_us=0)
    assert [part.tolist() for part in result.rows("topic.logits")] == [[0, 1], [2, 3]]
    assert [part.tolist() for part in result.answers("topic.logits")] == [[[0, 1]], [[2, 3]]]
    assert [part.tolist() for part in result.answers("tags.logits")] == [[], [[0, 1, 2], [3, 4, 5]]]
    with pytest.raises(ValueError, match=r"2 answers of 2 rows: use answers\(\)"):
        result.rows("tags.logits")


@pytest.mark.parametrize("owners", [[0, 2, 0], [-1, 0, 0], [0, 0]])
def test_answers_of_nobody_are_an_error(owners: list[int]) -> None:
    response = of_flow([0, 1], [0, 0, 0])
    response.outputs[3].shape[0] = len(owners)
    response.raw_output_contents[3] = np.array(owners, "<i4").tobytes()
    with pytest.raises(ServerError, match="does not say whose they are"):
        Codec(FLOW).decode(response, (1, 1), batched=True, attempts=1, elapsed_us=0)
