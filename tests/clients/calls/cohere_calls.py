"""cohere: rerank by both of its clients."""

import json
import sys

import cohere

base, texts = sys.argv[1], json.loads(sys.argv[2])
query, documents = texts[0], texts[1:]
second = cohere.ClientV2(api_key="none", base_url=base).rerank(model="reranker", query=query, documents=documents)
first = cohere.Client(api_key="none", base_url=base).rerank(
    model="reranker", query=query, documents=documents, top_n=2, return_documents=True
)
print(
    json.dumps(
        {
            "scores": [[each.index, each.relevance_score] for each in second.results],
            "best": [[each.index, each.document.text] for each in first.results],
        }
    )
)
