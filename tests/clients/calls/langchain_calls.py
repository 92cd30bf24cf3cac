"""LangChain: its embeddings of OpenAI. (Its class for TEI takes no addresses any more.)"""

import json
import sys

from langchain_openai import OpenAIEmbeddings

base, texts = sys.argv[1], json.loads(sys.argv[2])
client = OpenAIEmbeddings(base_url=f"{base}/v1", api_key="none", model="embedder", check_embedding_ctx_length=False)
print(json.dumps({"vectors": [*client.embed_documents(texts[1:]), client.embed_query(texts[0])]}))
