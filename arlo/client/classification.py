"""A classifier's answer to a text; for a cascade, also the stage that gave it and its confidence."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arlo.client.errors import ClientError, InvalidRequestError, ServerError
from arlo.client.model import TASK, ModelInfo
from arlo.client.result import Result

LOGITS, PROBABILITIES = "logits", "probabilities"
OF_CASCADES = (PROBABILITIES, "cascade_stage", "cascade_confidence", "cascade_reason")
REASONS = ("confident", "final", "client_limit", "deadline", "load", "stage_absent", "stage_failed")
DEGRADED = frozenset(REASONS[3:])


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Classification:
    """The likeliest label. `stage`, `confidence` and `reason` are None unless the model is a cascade."""

    label: str  # its name, or its number if the server does not name labels
    probability: float
    stage: int | None = None  # that answered; 0 is the cheapest
    confidence: float | None = None  # of that stage, after calibration
    reason: str | None = None  # why it ended there; also None if not final
    final: bool = True  # False: the text goes on to a later stage, and the answer follows

    @property
    def degraded(self) -> bool:
        """Whether an earlier stage answered than the rules wanted."""
        return self.reason in DEGRADED


def outputs_of(info: ModelInfo) -> list[str]:
    """The outputs to ask for. InvalidRequestError if the model does not classify."""
    names = {tensor.name for tensor in info.outputs if not info.is_token_level(tensor)}
    if names.issuperset(OF_CASCADES):
        return list(OF_CASCADES)
    if LOGITS in names:
        return [LOGITS]
    known = ", ".join(tensor.name for tensor in info.outputs) or "none"
    raise InvalidRequestError(f"model {info.name} does not classify: it has no output {LOGITS} of a row, but {known}")


def names_of(info: ModelInfo, request: Any, rows: int) -> list[tuple[str, ...]]:
    """The labels of each row of a ModelInferRequest: of its task, if the model has several."""
    if not info.tasks:
        return [info.labels] * rows
    if TASK in request.parameters:
        return [info.tasks.get(request.parameters[TASK].string_param, ())] * rows
    at = next((i for i, tensor in enumerate(request.inputs) if tensor.name == TASK), None)
    if at is None:
        return [()] * rows
    known = list(info.tasks.values())
    return [known[number] for number in np.frombuffer(request.raw_input_contents[at], "<i8").tolist()]


def probabilities_of(logits: NDArray[Any], activation: str) -> NDArray[Any]:
    """The model's activation applied to logits [rows, labels]. ClientError: it is not known here."""
    z = np.asarray(logits, np.float64)
    match activation or ("sigmoid" if z.shape[1] == 1 else "softmax"):
        case "softmax":
            e = np.exp(z - z.max(axis=1, keepdims=True))
            return np.asarray(e / e.sum(axis=1, keepdims=True))
        case "sigmoid":
            return np.asarray(0.5 * (1 + np.tanh(z / 2)))
        case "tanh":
            return np.tanh(z)
        case "identity":
            return z
    raise ClientError(f"the server's activation {activation!r} is not known to this client: install a newer one")


def classifications(
    outputs: Mapping[str, NDArray[Any]], names: Sequence[tuple[str, ...]], activation: str = ""
) -> list[Classification]:
    """The classifications of a batch's outputs, rows first; names: from names_of. ServerError: NaN or infinity."""
    given = outputs[PROBABILITIES if PROBABILITIES in outputs else LOGITS]
    if not np.isfinite(given).all():
        rows = np.flatnonzero(~np.isfinite(given).all(axis=1)).tolist()
        raise ServerError(f"the model's output is NaN or infinite for row {', '.join(map(str, rows))} of the request")
    said = given if PROBABILITIES in outputs else probabilities_of(given, activation)
    found = []
    for row, probabilities in enumerate(said):
        best = int(np.argmax(probabilities))
        label = names[row][best] if best < len(names[row]) else str(best)
        of_cascade: dict[str, Any] = {}
        if PROBABILITIES in outputs:
            reason = int(outputs["cascade_reason"][row])
            of_cascade = {
                "stage": int(outputs["cascade_stage"][row]),
                "confidence": float(outputs["cascade_confidence"][row]),
                "reason": REASONS[reason] if reason >= 0 else None,
                "final": reason >= 0,
            }
        found.append(Classification(label=label, probability=float(probabilities[best]), **of_cascade))
    return found


def wishes_of(info: ModelInfo, *, partial: bool) -> dict[str, bool] | None:
    """The parameters that a request on a stream needs."""
    return {"cascade_partial": True} if partial and outputs_of(info) == list(OF_CASCADES) else None


def classified(info: ModelInfo, item: Result | ClientError) -> tuple[int, Classification | ClientError]:
    """The position and the classification in an item of a stream of single texts."""
    if isinstance(item, ClientError):
        return int(item.request_id or -1), item
    outputs = {name: array[None] for name, array in item.outputs.items()}
    try:
        return int(item.id), classifications(outputs, [info.labels], info.label_activation)[0]
    except ClientError as error:
        return int(item.id), error
