"""The recommendation of a manifest, renewed when its latencies changed."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from arlo.errors import ConfigError

if TYPE_CHECKING:
    from arlo.catalog.manifest import Manifest
    from arlo.config import Config

DEFAULT_HISTOGRAM = "tweets"


def recommended(manifest: Manifest) -> Manifest:
    """The manifest with the recommendation that its latencies give, over the lengths that it was built for.

    These are options.histogram of the build; if that file is gone, or no lengths were given, lengths of tweets.
    """
    from arlo.planning.lengths.advice import advise
    from arlo.traces.traffic import traffic

    asked = manifest.options.get("histogram")
    longest = max(runtime.max_length for runtime in manifest.runtimes)
    try:
        lengths = traffic(asked if isinstance(asked, str) else DEFAULT_HISTOGRAM, longest)
    except ConfigError:  # the file existed when the model was built
        lengths = traffic(DEFAULT_HISTOGRAM, longest)
    return dataclasses.replace(manifest, recommendation=advise(manifest, lengths.by_length, lengths=lengths.text))


def load_manifest(config: Config) -> Manifest:
    """The repository's manifest; with model.latency_profile, its latencies and the recommendation that they give.
    Several models are joined."""
    from arlo.catalog.joined import joined
    from arlo.control.serve import load_manifest as load

    if config.more_models:
        return joined([load_manifest(config.of(model)) for model in config.models])
    manifest = load(config)
    return manifest if config.model.latency_profile is None else recommended(manifest)


def advice_line(manifest: Manifest) -> str:
    """The recommendation in one line for people, or the reason why there is none."""
    from arlo.planning.lengths.advice import missing

    advice = manifest.recommendation
    if advice is None:
        return f"no recommendation: {missing(manifest) or 'no request of the traffic fits a runtime'}"
    kind = "a static runtime per length" if advice.serve == "static" else "the dynamic runtime"
    return f"recommended here: {kind}; {advice.why}"
