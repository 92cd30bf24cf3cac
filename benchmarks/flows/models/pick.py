"""Triton model code: the last step of an ensemble, which says where each row ended; written by `arlo export-ensemble`.
`rows.py` and `tensors.py` lie beside this file.

In, of each stage: what its model said of all rows [visits, ...], and `parent` [visits], the visit of the stage before.
"""

from __future__ import annotations

import json
from typing import Any

import triton_python_backend_utils as pb_utils

from .rows import Answers, Visit, read_flow, taken
from .tensors import from_triton, to_triton


class TritonPythonModel:
    """One instance."""

    def initialize(self, args: dict[str, str]) -> None:
        """Take the flow from config.pbtxt."""
        self._flow = read_flow(json.loads(args["model_config"]))

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer every request, in order."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        stages, answers = self._flow["stages"], Answers(self._flow)
        said = [
            {name: _array(request, f"{s}_{name}") for name in [*stage["asked"], "parent"]}
            for s, stage in enumerate(stages)
        ]
        rows = len(said[0]["parent"])
        none = said[0]["parent"][:0]  # what a visit was is not of interest any more
        live = [(0, i, Visit(i, none)) for i in range(rows)]
        while live:
            number, at, visit = live.pop()
            stage, mine = stages[number], said[number]
            logits = mine[stage["logits"]][at] if stage["logits"] in mine else None
            edges = taken(stage, logits)
            for edge in edges:
                to = stage["edges"][edge]["to"]
                places = (said[to]["parent"] == at).nonzero()[0].tolist()
                live += [(to, p, Visit(visit.row, none, (*visit.way, (edge, i)))) for i, p in enumerate(places)]
            if not edges:
                answers.add(number, visit, {name: mine[name][at] for name in stage["asked"]})
        wanted = request.requested_output_names()
        return pb_utils.InferenceResponse(
            [to_triton(name, array) for name, array in answers.tensors(range(rows)).items() if name in wanted]
        )


def _array(request: Any, name: str) -> Any:
    return from_triton(pb_utils.get_input_tensor_by_name(request, name))
