"""LangChain: embeddings as of OpenAI and of TEI."""

import json
import sys

from langchain_huggingface import HuggingFaceEndpointEmbeddings
from langchain_openai import OpenAIEmbeddings

base, models, texts = sys.argv[1], json.loads(sys.argv[3]), json.loads(sys.argv[2])
of_openai = OpenAIEmbeddings(base_url=f"{base}/v1", api_key="none", model="embedder", check_embedding_ctx_length=False)
of_tei = HuggingFaceEndpointEmbeddings(model=models["embedder"])
print(
    json.dumps(
        {
            "openai": [*of_openai.embed_documents(texts[1:]), of_openai.embed_query(texts[0])],
            "tei": [*of_tei.embed_documents(texts[1:]), of_tei.embed_query(texts[0])],
        }
    )
)
