"""The latency profile as a value and as a JSON file, versioned."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from pathlib import Path
from typing import Any

from arlo.catalog.manifest import LatencyPoint, Runtime
from arlo.catalog.toml_text import read, write_whole
from arlo.errors import ConfigError
from arlo.profiler.staircase import Staircase, staircase

FORMAT = 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Measured latency of one request of `batch` rows of `length` tokens, sent to an otherwise idle worker."""

    length: int  # tokens
    batch: int  # rows
    mean_us: float  # from sending the request to its answer, at the client: with the network and Triton's own part
    p50_us: float
    p98_us: float
    samples: int
    half_width_us: float  # of the confidence interval of the mean
    compute_us: float | None = None  # mean time in the backend, by Triton's statistics
    queue_us: float | None = None  # mean time in Triton's queue
    other_load: float | None = None  # share of the machine's CPU time that others took meanwhile; None: not seen

    def __post_init__(self) -> None:
        """ConfigError for values that no measurement gives."""
        if self.length < 1 or self.batch < 1 or self.samples < 1:
            raise ConfigError("length, batch and samples must be at least 1")
        times = {"mean_us": self.mean_us, "p50_us": self.p50_us, "p98_us": self.p98_us}
        for name, value in times.items():
            if not math.isfinite(value) or value <= 0:
                raise ConfigError(f"{name} must be above 0, not {value}")
        if not math.isfinite(self.half_width_us) or self.half_width_us < 0:
            raise ConfigError(f"half_width_us must be at least 0, not {self.half_width_us}")

    def within(self, precision: float) -> bool:
        """Whether the interval, relative to the mean, is at most this wide."""
        return self.half_width_us <= precision * self.mean_us


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeProfile:
    """One runtime's points."""

    name: str
    hash: str  # of the measured runtime, see runtime_hash()
    max_length: int
    max_batch: int
    dynamic: bool
    points: tuple[Point, ...] = ()  # by length, then batch
    shorter: Point | None = None  # static: a row of fewer real tokens, padded to max_length; should take as long
    load_ms: int | None = None  # until the worker had loaded it; None: it was loaded already

    def __post_init__(self) -> None:
        """ConfigError for values that no measurement gives."""
        if self.load_ms is not None and not 0 <= self.load_ms < 1 << 31:
            raise ConfigError(f"load_ms must be at least 0, not {self.load_ms}")
        if len({(point.length, point.batch) for point in self.points}) < len(self.points):
            raise ConfigError("it has two points for one length and batch")

    @property
    def staircase(self) -> Staircase | None:
        """The steps of latency over length at batch 1; None for a static runtime, which has one length."""
        if not self.dynamic:
            return None
        return staircase((point.length, point.mean_us) for point in self.points if point.batch == 1)

    @property
    def latency(self) -> tuple[LatencyPoint, ...]:
        """The measured means, as a manifest has them."""
        return tuple(
            LatencyPoint(length=point.length, batch=point.batch, latency_us=max(1, round(point.mean_us)))
            for point in self.points
        )

    def point(self, length: int, batch: int) -> Point | None:
        """The point measured there."""
        return next((p for p in self.points if (p.length, p.batch) == (length, batch)), None)

    def with_point(self, point: Point) -> RuntimeProfile:
        """This runtime with the point added, or replaced."""
        others = [p for p in self.points if (p.length, p.batch) != (point.length, point.batch)]
        return dataclasses.replace(self, points=tuple(sorted([*others, point], key=lambda p: (p.length, p.batch))))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """How a profile was measured."""

    confidence: float  # of the intervals, such as 0.95
    precision: float  # half width over mean that was asked for
    max_seconds: float  # longest time spent on one point
    threads: int | None  # of the worker; None: a worker that was not started here
    outputs: tuple[str, ...]  # that were asked for
    method: str = "one request at a time over gRPC, directly to the worker"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LatencyProfile:
    """The latency profile that `arlo compile profile` writes."""

    model: str
    device: str
    versions: dict[str, str]  # arlo, triton, the engine
    date: str  # ISO 8601, UTC; of the last point
    provenance: str  # "measured through Triton ...", or a note that it is an estimate
    how: How
    runtimes: tuple[RuntimeProfile, ...]  # in the manifest's order
    format: int = FORMAT

    @property
    def staircase(self) -> Staircase:
        """The steps over the maximum lengths of the static runtimes, at batch 1."""
        return staircase(
            (runtime.max_length, point.mean_us)
            for runtime in self.runtimes
            if not runtime.dynamic and (point := runtime.point(runtime.max_length, 1)) is not None
        )

    def runtime(self, name: str) -> RuntimeProfile | None:
        """The runtime of that name."""
        return next((runtime for runtime in self.runtimes if runtime.name == name), None)

    def with_runtime(self, runtime: RuntimeProfile) -> LatencyProfile:
        """This profile with the runtime of the same name replaced."""
        return dataclasses.replace(
            self, runtimes=tuple(runtime if r.name == runtime.name else r for r in self.runtimes)
        )

    def as_dict(self) -> dict[str, Any]:
        """The content of the file: the fields, and the staircases, which are for people and not read back."""
        raw = dataclasses.asdict(self)
        for runtime, entry in zip(self.runtimes, raw["runtimes"], strict=True):
            steps = runtime.staircase
            entry["staircase"] = dataclasses.asdict(steps) if steps else None
        raw["staircase"] = dataclasses.asdict(self.staircase)
        return raw

    def save(self, path: Path) -> None:
        """Write atomically: readers see the old file or the new one, whole."""
        write_whole(path, json.dumps(self.as_dict(), indent=2) + "\n")

    @classmethod
    def load(cls, path: Path) -> LatencyProfile:
        """Read and check a file; ConfigError names its fault."""
        try:
            raw = json.loads(path.read_text())
        except FileNotFoundError:
            raise ConfigError(f"latency profile {path} does not exist: write it with `arlo compile profile`") from None
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"latency profile {path} cannot be read ({error})") from None
        except json.JSONDecodeError as error:
            raise ConfigError(f"latency profile {path} is not JSON ({error}): measure again") from None
        try:
            return _profile(raw)
        except ConfigError as error:
            raise ConfigError(
                f"{path} is not a latency profile of this version of Arlo: {error}. Measure again with "
                "`arlo compile profile`"
            ) from None


def runtime_hash(runtime: Runtime) -> str:
    """Identity of a runtime for its latency: its shape, precision and files, but not its latency points."""
    identity = {
        "name": runtime.name,
        "max_length": runtime.max_length,
        "max_batch": runtime.max_batch,
        "dynamic": runtime.dynamic,
        "engine": runtime.engine,
        "precision": runtime.precision,
        "files": runtime.files,
    }
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def _profile(raw: Any) -> LatencyProfile:
    if not isinstance(raw, dict) or not isinstance(raw.get("runtimes"), list):
        raise ConfigError("it has no list `runtimes`")
    if raw.get("format") != FORMAT:
        raise ConfigError(f"its format is {raw.get('format')!r}, not {FORMAT}")
    for each in (raw, *raw["runtimes"]):
        if isinstance(each, dict):
            each.pop("staircase", None)  # which is for people
    profile: LatencyProfile = read(LatencyProfile, raw, "")
    names = [runtime.name for runtime in profile.runtimes]
    if len(set(names)) != len(names):
        raise ConfigError(f"a runtime is listed twice: {', '.join(names)}")
    return profile
