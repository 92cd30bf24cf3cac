"""tritonclient.http: text as BYTES, binary and as JSON, compressed; what it asks of a server and a model."""

import json
import sys

import numpy as np
import tritonclient.http as triton

base, texts = sys.argv[1], json.loads(sys.argv[2])
client = triton.InferenceServerClient(base.removeprefix("http://"))
vectors = []
for binary in (True, False):
    given = triton.InferInput("text", [len(texts), 1], "BYTES")
    given.set_data_from_numpy(np.array([[text.encode()] for text in texts], dtype=np.object_), binary_data=binary)
    wanted = triton.InferRequestedOutput("sentence_embedding", binary_data=binary)
    answer = client.infer(
        "embedder", [given], outputs=[wanted], request_compression_algorithm="gzip" if binary else None
    )
    vectors.append(answer.as_numpy("sentence_embedding").tolist())
metadata = client.get_model_metadata("embedder")
print(
    json.dumps(
        {
            "vectors": vectors,
            "live": client.is_server_live() and client.is_server_ready() and client.is_model_ready("embedder"),
            "inputs": sorted(each["name"] for each in metadata["inputs"]),
            "index": sorted(each["name"] for each in client.get_model_repository_index()),
        }
    )
)
