"""huggingface_hub: what InferenceClient asks of a TEI server, one for each model."""

import json
import sys

from huggingface_hub import InferenceClient

# A gateway of several models needs the name, which TEI's requests have no room for: a path of its own, or ?model=.
models, texts = json.loads(sys.argv[1]), json.loads(sys.argv[2])
embedder = InferenceClient(base_url=models["embedder"])
classifier = InferenceClient(base_url=models["classifier"])
label = classifier.text_classification(texts[0])
print(
    json.dumps(
        {
            "vectors": [embedder.feature_extraction(text)[0].tolist() for text in texts],
            "cut": embedder.feature_extraction("word " * 400, truncate=True, truncation_direction="Right")[0].tolist(),
            "alike": embedder.sentence_similarity(texts[0], texts[1:]),
            # Of a server of TEI's form it gives the first label alone.
            "label": [label.label, label.score],
        }
    )
)
