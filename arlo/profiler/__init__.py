"""The latency profile: measure every runtime on a real worker, through Triton, and say what was seen.

measure() the points -> LatencyProfile (format.py) -> with_profile(manifest, profile), which planning and gateway read.
"""

from arlo.profiler.apply import with_profile
from arlo.profiler.colocation import colocate
from arlo.profiler.format import FORMAT, Colocation, How, LatencyProfile, Point, RuntimeProfile, runtime_hash
from arlo.profiler.job import ProfileOptions, Progress, profile_runtimes
from arlo.profiler.staircase import Staircase, staircase

__all__ = [
    "FORMAT",
    "Colocation",
    "How",
    "LatencyProfile",
    "Point",
    "ProfileOptions",
    "Progress",
    "RuntimeProfile",
    "Staircase",
    "colocate",
    "profile_runtimes",
    "runtime_hash",
    "staircase",
    "with_profile",
]
