"""Which thresholds, stages, skips and weights: found on records, never on rows that were fitted or are tested on."""
