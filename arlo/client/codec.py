"""Rows to a ModelInferRequest and a ModelInferResponse to a Result; pure, shared by the sync and the async client.

Tensors go as `raw_input_contents` (little endian, one entry per input in order). Rows are padded to the longest of
their request; the attention mask gives the length of each, and the gateway splits and pads them again.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2
from tritonclient.utils import deserialize_bytes_tensor, triton_to_np_dtype

from arlo.client.errors import InvalidRequestError, ServerError
from arlo.client.model import IDS_DATATYPES, TEXT, ModelInfo, Role, roles, sized_inputs, takes_only_text
from arlo.client.result import Result, Timing
from arlo.client.rows import PreparedRow

_NAMES = ["BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64", "FP16", "FP32", "FP64"]
_DTYPES: dict[str, np.dtype[Any]] = {name: np.dtype(triton_to_np_dtype(name)) for name in _NAMES}
_DATATYPES = {dtype: name for name, dtype in _DTYPES.items()}
Parameters = Mapping[str, bool | int | float | str]  # of a request
_PARAMETER_KINDS: tuple[tuple[type, str], ...] = (
    (bool, "bool_param"),
    (int, "int64_param"),
    (float, "double_param"),
    (str, "string_param"),
)
_TIMES = {field.name for field in dataclasses.fields(Timing)} - {"elapsed_us"}


@dataclasses.dataclass(frozen=True, slots=True)
class _Slot:
    name: str
    datatype: str
    role: Role
    optional: bool
    width: int  # fixed width of a row, 0: as long as the longest row
    ones: bytes  # of a mask over the longest row, to slice from
    dtype: np.dtype[Any]


class Codec:
    """Encodes and decodes for one model. Never changed after it is made."""

    def __init__(self, info: ModelInfo, *, pad_id: int = 0, bulk: bool = False) -> None:
        """InvalidRequestError if the model's inputs are not those of a text encoder."""
        self.info = info
        self._pad_id = pad_id
        self._bulk = bulk
        self._output_names = frozenset(t.name for t in info.outputs)
        self.only_text = takes_only_text(info.inputs)  # the server tokenises
        self._token_level = frozenset(t.name for t in info.outputs if info.is_token_level(t))
        self._owners = _owners(self._output_names)
        tensors = () if self.only_text else info.inputs
        self.sized = {t.name: (t, _DTYPES[t.datatype]) for t in sized_inputs(tensors)}
        of_tokens = tuple(t for t in tensors if t.name not in self.sized)
        self.of_tensors = bool(self.sized) and not any(t.datatype != "BYTES" for t in of_tokens)
        role = roles(of_tokens, info.name) if of_tokens and not self.of_tensors else {}
        slots = []
        for tensor in of_tokens:
            if tensor.datatype not in IDS_DATATYPES or len(tensor.shape) != 2:
                if tensor.optional:
                    continue
                raise InvalidRequestError(
                    f"input {tensor.name} of model {info.name} is {tensor.datatype} {list(tensor.shape)}; this client "
                    "fills only INT64 and INT32 inputs of shape [rows, tokens]"
                )
            dtype = _DTYPES[tensor.datatype]
            ones = np.ones(info.max_length or 512, dtype).tobytes() if role[tensor.name] == "mask" else b""
            width = max(tensor.shape[1], 0)
            slots.append(_Slot(tensor.name, tensor.datatype, role[tensor.name], tensor.optional, width, ones, dtype))
        self._slots = tuple(slots)
        self._width = max((s.width for s in slots), default=0)
        self.ids_name = next((s.name for s in slots if s.role == "ids"), "")  # empty for a model of tensors or of text
        others = [s.name for s in slots if s.role == "other"]
        self.type_ids_name = next((n for n in others if "type" in n), None)
        self._extra_names = {*(s.name for s in slots if s.role != "ids"), *self.sized}
        self.mask_name = next((s.name for s in slots if s.role == "mask"), None)

    def encode(
        self,
        rows: Sequence[PreparedRow],
        *,
        request_id: str,
        outputs: Sequence[str] | None = None,
        timeout_us: int | None = None,
        parameters: Parameters | None = None,
    ) -> Any:
        """A ModelInferRequest of the rows. `outputs` None asks for all; the parameter `timeout` is `timeout_us`."""
        request = service_pb2.ModelInferRequest(model_name=self.info.name, id=request_id)
        if self.only_text:
            _add_texts(request, rows)
        longest = max(row.ids.size for row in rows)
        if self._slots and self.mask_name is None and any(row.ids.size != (self._width or longest) for row in rows):
            raise InvalidRequestError(
                f"model {self.info.name} has no attention mask, so its rows cannot be padded to "
                f"{self._width or longest} tokens: send rows of one length"
            )
        for row in rows:
            if row.extra and not row.extra.keys() <= self._extra_names:
                unknown = ", ".join(sorted(row.extra.keys() - self._extra_names))
                known = ", ".join([*(s.name for s in self._slots), *self.sized])
                raise InvalidRequestError(f"model {self.info.name} has no input {unknown}; it has {known}")
        for slot in self._slots:
            if slot.role == "other" and slot.optional and not any(slot.name in row.extra for row in rows):
                continue
            width = slot.width or self._width or longest
            request.inputs.add(name=slot.name, datatype=slot.datatype, shape=(len(rows), width))
            request.raw_input_contents.append(self._tensor(slot, rows, width))
        for name, (tensor, dtype) in self.sized.items():
            given = [row.extra.get(name) for row in rows]
            if all(values is None for values in given) and tensor.optional:
                continue
            if any(values is None for values in given):
                raise InvalidRequestError(f"a row lacks {name!r}, which model {self.info.name} needs")
            request.inputs.add(name=name, datatype=tensor.datatype, shape=(len(rows), *tensor.shape[1:]))
            request.raw_input_contents.append(np.stack(given).astype(dtype, copy=False).tobytes())  # type: ignore[arg-type]
        if outputs is not None:
            self.check_outputs(outputs)
            for name in dict.fromkeys([*outputs, *(self._owners[o] for o in outputs if o in self._owners)]):
                request.outputs.add(name=name)
        if timeout_us is not None:
            request.parameters["timeout"].int64_param = timeout_us
        if self._bulk:
            request.parameters["arlo_class"].string_param = "bulk"
        set_parameters(request, parameters or {})
        return request

    def check_outputs(self, outputs: Sequence[str]) -> None:
        """InvalidRequestError for an empty list or an output that the model does not have."""
        unknown = [name for name in outputs if name not in self._output_names]
        if unknown or not outputs or isinstance(outputs, str):
            known = ", ".join(sorted(self._output_names))
            asked = repr(outputs) if not unknown or isinstance(outputs, str) else ", ".join(unknown)
            raise InvalidRequestError(f"outputs must be a list of {self.info.name}'s outputs ({known}), not {asked}")

    def _tensor(self, slot: _Slot, rows: Sequence[PreparedRow], width: int) -> bytes:
        if len(rows) == 1:
            row = rows[0]
            values = row.ids if slot.role == "ids" else row.extra.get(slot.name)
            if values is not None and values.size == width:
                return _cast(values, slot).tobytes()
            if values is None and slot.role == "mask" and row.ids.size == width:
                size = width * slot.dtype.itemsize
                return slot.ones[:size] if size <= len(slot.ones) else np.ones(width, slot.dtype).tobytes()
        block = np.full((len(rows), width), self._pad_id if slot.role == "ids" else 0, slot.dtype)
        for target, row in zip(block, rows, strict=True):
            values = row.ids if slot.role == "ids" else row.extra.get(slot.name)
            if values is not None:
                target[: values.size] = _cast(values, slot)
            elif slot.role == "mask":
                target[: row.ids.size] = 1
        return block.tobytes()

    def decode(
        self, response: Any, lengths: tuple[int, ...], *, batched: bool, attempts: int, elapsed_us: int
    ) -> Result:
        """The Result of a ModelInferResponse. ServerError when it does not fit the request or itself."""
        raw = response.raw_output_contents
        if len(raw) != len(response.outputs):
            raise ServerError(f"the answer names {len(response.outputs)} outputs but carries {len(raw)} of them")
        arrays: dict[str, NDArray[Any]] = {}
        token_level = set()
        longest = max(lengths)  # 0: the server tokenises, and does not report how many
        read = {tensor.name: from_raw(tensor, data) for tensor, data in zip(response.outputs, raw, strict=True)}
        owners = self._owners_of(read, len(lengths))
        for tensor in response.outputs:
            array = read[tensor.name]
            if tensor.name in owners:
                arrays[tensor.name] = array
                continue
            if array.shape[:1] != (len(lengths),):
                raise ServerError(
                    f"output {tensor.name} has shape {list(array.shape)}, the request has {len(lengths)} rows"
                )
            if tensor.name in self._token_level and array.ndim >= 2 and 0 < longest <= array.shape[1]:
                token_level.add(tensor.name)
                array = array[:, :longest]
            arrays[tensor.name] = array if batched else array[0]
        return Result(
            id=response.id,
            model=response.model_name or self.info.name,
            outputs=arrays,
            lengths=lengths,
            timing=_timing(response.parameters, elapsed_us),
            attempts=attempts,
            batched=batched,
            token_level=frozenset(token_level),
            owners=owners,
            final=is_final(response),
        )

    def _owners_of(self, arrays: Mapping[str, NDArray[Any]], rows: int) -> dict[str, NDArray[Any]]:
        """The row of each answer [answers], for each output that does not have one answer per row."""
        found = {}
        for name, array in arrays.items():
            of = self._owners.get(name, name if name in self._owners.values() else "")
            owner = arrays.get(of)
            if owner is None or np.array_equal(owner, np.arange(rows)):
                continue
            if owner.shape != array.shape[:1] or not np.all((owner >= 0) & (owner < rows)):
                raise ServerError(f"output {name} has shape {list(array.shape)}, and {of} does not say whose they are")
            found[name] = owner
        return found


def _owners(names: frozenset[str]) -> dict[str, str]:
    """The output that names the row of each answer, for each output of a pipeline's stage: `row` or `STAGE.row`
    (docs/flows.md)."""
    rows = [name for name in names if name == "row" or name.endswith(".row")]
    of_rows = {"row", "children", "accuracy_expected", "reason", "dropped_rows", "rerouted", "tokens", "route", *rows}
    return {
        name: row
        for row in rows
        for name in names - of_rows
        if row == "row" or name.startswith(row.removesuffix("row"))
    }


def set_parameters(message: Any, parameters: Parameters) -> None:
    """Adds them to a request or a response. InvalidRequestError for a value that the protocol cannot carry."""
    for name, value in parameters.items():
        kind = next((kind for kinds, kind in _PARAMETER_KINDS if isinstance(value, kinds)), None)
        if kind is None:
            raise InvalidRequestError(f"parameter {name} must be a bool, int, float or str, not {value!r}")
        setattr(message.parameters[name], kind, value)


def _add_texts(request: Any, rows: Sequence[PreparedRow]) -> None:
    """Adds texts or pairs, all of one kind."""
    if any(row.text is None for row in rows):
        raise InvalidRequestError("this model takes texts, not token ids: its stages have different vocabularies")
    pairs = [row.text if isinstance(row.text, tuple) else (row.text,) for row in rows]
    if len({len(pair) for pair in pairs}) > 1:
        raise InvalidRequestError("texts and pairs of texts go in requests of their own")
    for name, column in zip((TEXT, "text_pair"), zip(*pairs, strict=True), strict=False):
        request.inputs.add(name=name, datatype="BYTES", shape=(len(rows), 1))
        request.raw_input_contents.append(to_raw(np.array(column, np.object_)))
    if any(row.cut for row in rows):
        request.parameters["truncate"].bool_param = True


def is_final(response: Any) -> bool:
    """Whether this ModelInferResponse is the last one to its request (docs/flows.md)."""
    return "cascade_final" not in response.parameters or bool(response.parameters["cascade_final"].bool_param)


def _cast(values: NDArray[np.integer[Any]], slot: _Slot) -> NDArray[np.integer[Any]]:
    if values.dtype == slot.dtype:
        return values
    cast = values.astype(slot.dtype)
    if values.dtype.itemsize >= cast.dtype.itemsize and not np.array_equal(cast, values):
        raise InvalidRequestError(f"{slot.name} has values that do not fit {slot.datatype}")
    return cast


def from_raw(tensor: Any, data: bytes) -> NDArray[Any]:
    """The array of one input or output tensor (name, datatype, shape) and its raw bytes."""
    if tensor.datatype == "BYTES":
        try:
            array = deserialize_bytes_tensor(data)
        except struct.error:
            raise ServerError(f"output {tensor.name} is cut off") from None
    elif tensor.datatype == "BF16":
        array = (np.frombuffer(data, "<u2", len(data) // 2).astype("<u4") << 16).view("<f4")
    else:
        dtype = _DTYPES.get(tensor.datatype)
        if dtype is None:
            raise ServerError(f"output {tensor.name} is of the unknown datatype {tensor.datatype!r}")
        array = np.frombuffer(data, dtype, len(data) // dtype.itemsize)
        if array.nbytes != len(data):
            raise ServerError(f"output {tensor.name} has {len(data)} bytes, which is no whole number of values")
    return _reshape(tensor, array)


def _reshape(tensor: Any, array: NDArray[Any]) -> NDArray[Any]:
    try:
        return array.reshape(tuple(tensor.shape))
    except ValueError:
        raise ServerError(f"output {tensor.name} has {array.size} values, its shape is {list(tensor.shape)}") from None


def _timing(parameters: Mapping[str, Any], elapsed_us: int) -> Timing:
    found: dict[str, int] = {}
    for name, parameter in parameters.items():
        value = getattr(parameter, parameter.WhichOneof("parameter_choice") or "", None)
        if name in _TIMES and isinstance(value, int | float):
            found[name] = int(value)
    return Timing(elapsed_us=elapsed_us, **found)


def datatype_of(array: NDArray[Any]) -> str:
    """KServe v2 name of a NumPy array's dtype; InvalidRequestError when it has none."""
    if array.dtype.kind in "SOU":
        return "BYTES"
    try:
        return _DATATYPES[array.dtype.newbyteorder("=")]
    except KeyError:
        raise InvalidRequestError(f"{array.dtype} has no KServe v2 datatype") from None


def to_raw(array: NDArray[Any]) -> bytes:
    """The bytes of an array as `raw_input_contents` and `raw_output_contents` carry them."""
    if array.dtype.kind in "SOU":
        items = [v.encode() if isinstance(v, str) else bytes(v) for v in array.ravel().tolist()]
        return b"".join(len(v).to_bytes(4, "little") + v for v in items)
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
