"""Arlo beside other servers of embeddings: the real ones, on this machine, the same model, texts and arrivals."""
