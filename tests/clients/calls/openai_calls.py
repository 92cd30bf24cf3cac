"""openai: vectors in both encodings, ids, models, and what it makes of errors."""

import json
import sys

import openai

base, texts = sys.argv[1], json.loads(sys.argv[2])
client = openai.OpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0)
made = client.embeddings.create(model="embedder", input=texts)  # base64, which it asks for by itself
as_floats = client.embeddings.create(model="embedder", input=texts, encoding_format="float")
of_one = client.embeddings.create(model="embedder", input=texts[0], dimensions=8)
said = {}
for name, wrong in {
    "model": {"model": "nothing", "input": texts[0]},
    "empty": {"model": "embedder", "input": ""},
    "long": {"model": "embedder", "input": "word " * 400},
}.items():
    try:
        client.embeddings.create(**wrong)
    except openai.APIStatusError as error:
        said[name] = [type(error).__name__, error.status_code, error.body["message"], bool(error.request_id)]
print(
    json.dumps(
        {
            "vectors": [each.embedding for each in made.data],
            "floats": [each.embedding for each in as_floats.data],
            "short": of_one.data[0].embedding,
            "tokens": made.usage.total_tokens,
            "models": sorted(each.id for each in client.models.list()),
            "model": client.models.retrieve("embedder").id,
            "errors": said,
        }
    )
)
