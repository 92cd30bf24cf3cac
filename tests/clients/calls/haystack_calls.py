"""Haystack: its components for a TEI server, and OpenAI's embedder."""

import json
import sys

from haystack import Document
from haystack.components.embedders import OpenAITextEmbedder
from haystack.utils import Secret
from haystack_integrations.components.embedders.huggingface_api import (
    HuggingFaceAPIDocumentEmbedder,
    HuggingFaceAPITextEmbedder,
)
from haystack_integrations.components.rankers.huggingface_api import HuggingFaceTEIRanker

base, models, texts = sys.argv[1], json.loads(sys.argv[3]), json.loads(sys.argv[2])
tei = {"api_type": "text_embeddings_inference", "api_params": {"url": models["embedder"]}}
text_embedder = HuggingFaceAPITextEmbedder(**tei, token=None)
documents = [Document(content=text) for text in texts[1:]]
embedded = HuggingFaceAPIDocumentEmbedder(**tei, token=None, progress_bar=False).run(documents)["documents"]
openai = OpenAITextEmbedder(api_base_url=f"{base}/v1", api_key=Secret.from_token("none"), model="embedder")
ranker = HuggingFaceTEIRanker(url=models["reranker"], token=None, top_k=2)
print(
    json.dumps(
        {
            "tei": [*(each.embedding for each in embedded), text_embedder.run(texts[0])["embedding"]],
            "openai": openai.run(texts[0])["embedding"],
            "best": [
                [each.content, each.score] for each in ranker.run(query=texts[0], documents=documents)["documents"]
            ],
        }
    )
)
