"""cohere: rerank and embed by both of its clients."""

import json
import sys

import cohere

base, texts = sys.argv[1], json.loads(sys.argv[2])
query, documents = texts[0], texts[1:]
second = cohere.ClientV2(api_key="none", base_url=base).rerank(model="reranker", query=query, documents=documents)
first = cohere.Client(api_key="none", base_url=base).rerank(
    model="reranker", query=query, documents=documents, top_n=2, return_documents=True
)
made = cohere.ClientV2(api_key="none", base_url=base).embed(
    model="embedder", texts=texts, input_type="search_query", embedding_types=["float", "ubinary"], output_dimension=8
)
old = cohere.Client(api_key="none", base_url=base).embed(model="embedder", texts=texts, input_type="search_query")
print(
    json.dumps(
        {
            "scores": [[each.index, each.relevance_score] for each in second.results],
            "vectors": made.embeddings.float_,
            "signs": made.embeddings.ubinary,
            "tokens": made.meta.billed_units.input_tokens,
            "old": old.embeddings,
            "best": [[each.index, each.document.text] for each in first.results],
        }
    )
)
