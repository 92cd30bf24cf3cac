"""Triton model code: a flow as one model that calls the others (business logic scripting), written by
`arlo export-ensemble` for comparison. `rows.py` and `tensors.py` lie beside this file.

Rows of all requests of a call go through a stage together, the shortest runtime that fits for each, and in batches of
its max_batch. Deadlines, queues of the stages and variants are out of its sight: these are the gateway's.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

from .rows import Answers, Visit, children, padded, read_flow, rows_of
from .tensors import from_triton, to_triton


class TritonPythonModel:
    """One instance; Triton gives it one call at a time."""

    def initialize(self, args: dict[str, str]) -> None:
        """Take the flow from config.pbtxt."""
        self._flow = read_flow(json.loads(args["model_config"]))

    async def execute(self, requests: list[Any]) -> list[Any]:
        """Answer every request, in order; one that is wrong gets an error of its own, one of a stage is of all."""
        responses: list[Any] = [None] * len(requests)
        visits: list[Visit] = []
        spans: list[range] = []
        for number, request in enumerate(requests):
            try:
                rows = rows_of(*(_array(request, name) for name in (self._flow["ids"], self._flow["mask"])))
            except ValueError as error:
                responses[number] = _failed(str(error), pb_utils.TritonError.INVALID_ARG)
                rows = []
            spans.append(range(len(visits), len(visits) + len(rows)))
            visits += [Visit(len(visits) + i, row) for i, row in enumerate(rows)]
        try:
            answers = await self._answered(visits)
        except (ValueError, RuntimeError) as error:
            ours = isinstance(error, RuntimeError)
            code = pb_utils.TritonError.INTERNAL if ours else pb_utils.TritonError.INVALID_ARG
            return [response or _failed(str(error), code) for response in responses]
        for number, request in enumerate(requests):
            if responses[number] is None:
                wanted = request.requested_output_names()
                tensors = answers.tensors(spans[number])
                responses[number] = pb_utils.InferenceResponse(
                    [to_triton(name, array) for name, array in tensors.items() if name in wanted]
                )
        return responses

    async def _answered(self, visits: list[Visit]) -> Answers:
        answers = Answers(self._flow)
        waiting: list[list[Visit]] = [visits, *([] for _ in self._flow["stages"][1:])]
        for number, stage in enumerate(self._flow["stages"]):  # parents first
            said = await _asked(stage, waiting[number])
            for visit, answer in zip(waiting[number], said, strict=True):
                made = children(visit, stage, answer.get(stage["logits"]))
                for to, child in made:
                    waiting[to].append(child)
                if not made:
                    answers.add(number, visit, answer)
        return answers


async def _asked(stage: dict[str, Any], visits: list[Visit]) -> list[dict[str, NDArray[Any]]]:
    """What a stage's model says of each visit."""
    by_runtime: dict[int, list[int]] = {}
    for i, visit in enumerate(visits):
        fits = next((r for r, one in enumerate(stage["runtimes"]) if len(visit.ids) <= one["max_length"]), None)
        if fits is None:
            raise ValueError(f"a row of stage {stage['name']} has {len(visit.ids)} tokens, which no runtime takes")
        by_runtime.setdefault(fits, []).append(i)
    batches = [
        (stage["runtimes"][r], members[first : first + stage["runtimes"][r]["max_batch"]])
        for r, members in by_runtime.items()
        for first in range(0, len(members), stage["runtimes"][r]["max_batch"])
    ]
    responses = await asyncio.gather(
        *(_request(stage, runtime, [visits[i] for i in part]).async_exec() for runtime, part in batches)
    )
    found: list[dict[str, NDArray[Any]]] = [{}] * len(visits)
    for (runtime, part), response in zip(batches, responses, strict=True):
        if response.has_error():
            raise RuntimeError(f"{runtime['name']}: {response.error().message()}")
        arrays = {name: from_triton(pb_utils.get_output_tensor_by_name(response, name)) for name in stage["asked"]}
        for place, i in enumerate(part):
            found[i] = {name: array[place] for name, array in arrays.items()}
    return found


def _request(stage: dict[str, Any], runtime: dict[str, Any], visits: list[Visit]) -> Any:
    length = 0 if runtime["dynamic"] else runtime["max_length"]
    ids, mask = padded([visit.ids for visit in visits], length, stage["pad"])
    zeros = np.zeros_like(ids)
    given = {"ids": ids, "mask": mask}
    return pb_utils.InferenceRequest(
        model_name=runtime["name"],
        requested_output_names=stage["asked"],
        inputs=[
            to_triton(each["name"], given.get(each["role"], zeros).astype(each["numpy"])) for each in stage["inputs"]
        ],
    )


def _array(request: Any, name: str) -> NDArray[Any]:
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    if tensor is None:
        raise ValueError(f"input {name} is missing")
    return from_triton(tensor)


def _failed(message: str, code: Any) -> Any:
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(message, code))
