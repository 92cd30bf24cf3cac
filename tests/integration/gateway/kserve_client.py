"""Asks a gateway through the `kserve` package: rows of ids as JSON in, health and outputs as JSON out. A program."""

from __future__ import annotations

import asyncio
import json
import sys

import grpc
import numpy as np
from kserve import InferenceGRPCClient, InferInput, InferRequest


async def main(address: str) -> None:
    rows = json.load(sys.stdin)
    ids = np.zeros((len(rows), max(map(len, rows))), np.int64)
    mask = np.zeros_like(ids)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = row
        mask[index, : len(row)] = 1
    inputs = []
    for name, array in (("input_ids", ids), ("attention_mask", mask)):
        tensor = InferInput(name, list(array.shape), "INT64")
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    async with InferenceGRPCClient(address) as client:
        answer = {
            "live": await client.is_server_live(),
            "ready": await client.is_server_ready(),
            "model_ready": await client.is_model_ready("emu"),
        }
        response = await client.infer(InferRequest(model_name="emu", infer_inputs=inputs))
        for output in response.outputs:
            answer[output.name] = output.as_numpy().tolist()
        try:
            await client.infer(InferRequest(model_name="other", infer_inputs=inputs))
        except grpc.RpcError as error:
            answer["error"] = error.code().name
    print(json.dumps(answer))


asyncio.run(main(sys.argv[1]))
