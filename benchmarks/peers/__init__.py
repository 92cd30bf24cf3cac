"""Arlo compared with other embedding servers: the real ones, on this machine, the same model, texts and arrivals."""
