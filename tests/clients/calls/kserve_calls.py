"""kserve: its REST client of the v2 protocol."""

import asyncio
import json
import sys

import numpy as np
from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig

base, texts = sys.argv[1], json.loads(sys.argv[2])


async def main() -> None:
    client = InferenceRESTClient(RESTConfig(protocol="v2", timeout=30))
    given = InferInput("text", [len(texts), 1], "BYTES")
    given.set_data_from_numpy(np.array([[text.encode()] for text in texts], dtype=np.object_), binary_data=False)
    answer = await client.infer(base, InferRequest(model_name="embedder", infer_inputs=[given]), model_name="embedder")
    found = next(each for each in answer.outputs if each.name == "sentence_embedding")
    print(
        json.dumps(
            {
                "vectors": found.as_numpy().reshape(len(texts), -1).tolist(),
                "live": await client.is_server_live(base) and await client.is_model_ready(base, "embedder"),
            }
        )
    )
    await client.close()


asyncio.run(main())
