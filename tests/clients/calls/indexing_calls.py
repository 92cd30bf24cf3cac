"""Packages that index, each at its default batch size: how many vectors each gets, several at once."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor

import cohere
import openai
from haystack import Document
from haystack.components.embedders import OpenAIDocumentEmbedder
from haystack.utils import Secret
from langchain_openai import OpenAIEmbeddings
from llama_index.embeddings.openai_like import OpenAILikeEmbedding

base, model = sys.argv[1:3]
texts = [f"row {number}: a ferry leaves the harbour every morning" for number in range(1500)]


def by_openai():
    client = openai.OpenAI(base_url=f"{base}/v1", api_key="none")
    return len(client.embeddings.create(model=model, input=(texts + texts)[:2048]).data)


def by_langchain():
    client = OpenAIEmbeddings(base_url=f"{base}/v1", api_key="none", model=model, check_embedding_ctx_length=False)
    return len(client.embed_documents(texts))


def by_llama_index():
    client = OpenAILikeEmbedding(api_base=f"{base}/v1", api_key="none", model_name=model)
    return len(client.get_text_embedding_batch(texts))


def by_haystack():
    client = OpenAIDocumentEmbedder(
        api_base_url=f"{base}/v1", api_key=Secret.from_token("none"), model=model, progress_bar=False
    )
    documents = client.run([Document(content=text) for text in texts])["documents"]
    return sum(each.embedding is not None for each in documents)


def by_cohere():
    client = cohere.ClientV2(api_key="none", base_url=base)
    wanted = {"input_type": "search_document", "embedding_types": ["float"]}
    return len(client.embed(model=model, texts=texts[:1000], **wanted).embeddings.float_)


ways = {"openai": by_openai, "langchain": by_langchain, "llama_index": by_llama_index}
ways |= {"haystack": by_haystack, "cohere": by_cohere}
with ThreadPoolExecutor(len(ways)) as pool:
    running = {name: pool.submit(way) for name, way in ways.items()}
    print(json.dumps({name: each.result() for name, each in running.items()}))
