"""What a repository holds, read from its manifest, its folders and Triton's own configurations. Changes nothing.

found = inspect_repository(Path("minilm"))
found.runtimes[0].disagreements        # where Triton's configuration and the manifest differ
check_files(Path("minilm"), found.manifest)
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal

from arlo.catalog.bundle import memory_mb
from arlo.catalog.manifest import FILE_NAME, Manifest, OutputTensor, Runtime
from arlo.compile.cache import Hasher
from arlo.compile.verify.answers import FILE_NAME as REFERENCE
from arlo.errors import ConfigError
from arlo.planning.lengths.advice import missing

_ENGINE_FILES = {"python": "model.py", "tensorrt": "model.plan", "onnxruntime": "model.onnx"}  # Triton's own defaults
_PLATFORMS = {"tensorrt_plan": "tensorrt", "onnxruntime_onnx": "onnxruntime"}  # older name -> backend


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TritonSide:
    """A summary of config.pbtxt."""

    backend: str
    max_batch_size: int
    instances: int
    kind: str  # CPU, GPU, MODEL, AUTO
    batching: bool  # Triton joins requests into batches
    warmups: int  # requests that Triton runs itself before the model is ready


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeFound:
    """A runtime of the manifest and what lies in its folder."""

    runtime: Runtime
    bytes: int  # of the runtime's own files
    shared_bytes: int  # of files that other runtimes hold too: hard links, on the disk once
    triton: TritonSide | None  # None: no configuration, or not one of Triton's
    disagreements: tuple[str, ...]  # Triton's configuration or the folder against the manifest


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FileProblem:
    """A file that differs from the manifest. An extra file is no damage."""

    path: str
    problem: Literal["missing", "damaged", "extra"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """A repository."""

    repository: Path
    manifest: Manifest
    runtimes: tuple[RuntimeFound, ...]
    lost: tuple[str, ...]  # files of no runtime that are missing: the tokenizer
    bytes: int  # of all files, hard links counted once
    files: int
    next_steps: tuple[str, ...]

    @property
    def disagreements(self) -> tuple[str, ...]:
        """Disagreements of all runtimes and of their shared files."""
        shared = (f"{path} is missing" for path in self.lost)
        return (*(text for found in self.runtimes for text in found.disagreements), *shared)


def inspect_repository(path: Path) -> Inspection:
    """Read the repository at `path` (or the one whose arlo.json it is). ConfigError where there is none."""
    repository = path.parent if path.name == FILE_NAME else path
    if not repository.exists():
        raise ConfigError(f"{repository} does not exist: name a repository that `arlo compile` wrote")
    if not repository.is_dir():
        raise ConfigError(f"{repository} is a file: name the folder of a repository that `arlo compile` wrote")
    manifest = Manifest.load(repository)
    files = [file for file in repository.rglob("*") if file.is_file()]
    sizes = {file: file.stat() for file in files}
    holders: dict[tuple[int, int], set[str]] = {}
    for file, stat in sizes.items():
        holders.setdefault((stat.st_dev, stat.st_ino), set()).add(file.relative_to(repository).parts[0])
    found = []
    for runtime in manifest.runtimes:
        own = {(s.st_dev, s.st_ino): s.st_size for f, s in sizes.items() if f.is_relative_to(repository / runtime.name)}
        shared = sum(size for identity, size in own.items() if len(holders[identity]) > 1)
        config, problem = _config(repository / runtime.name / "config.pbtxt")
        disagreements = [problem] if config is None else _compare(config, runtime, manifest)
        gone = [file for file in runtime.files if not (repository / file).is_file()]
        disagreements += [f"{file} is missing" for file in gone if config is not None or not file.endswith(".pbtxt")]
        if config is not None:
            disagreements += _engine_file(config, repository / runtime.name, gone)
        found.append(
            RuntimeFound(
                runtime=runtime,
                bytes=sum(own.values()) - shared,
                shared_bytes=shared,
                triton=_triton_side(config) if config is not None else None,
                disagreements=tuple(f"{runtime.name}: {text}" for text in disagreements),
            )
        )
    tokenizer = [manifest.tokenizer] if manifest.tokenizer is not None else []
    lost = tuple(path for path in tokenizer if not (repository / path).is_file())
    broken = bool(lost) or any(each.disagreements for each in found)
    unique = {(stat.st_dev, stat.st_ino): stat.st_size for stat in sizes.values()}
    return Inspection(
        repository=repository,
        manifest=manifest,
        runtimes=tuple(found),
        lost=lost,
        bytes=sum(unique.values()),
        files=len(files),
        next_steps=tuple(_next_steps(repository, manifest, broken)),
    )


def bundle_memory_mb(manifest: Manifest) -> int | None:
    """Memory of a worker that holds all static runtimes; None if one of them is unknown, or there are none."""
    static = [runtime for runtime in manifest.runtimes if not runtime.dynamic]
    return memory_mb(static) if static else None


def check_files(repository: Path, manifest: Manifest) -> list[FileProblem]:
    """Hash every file that the manifest lists; missing and damaged ones first, then those that it does not list.

    The manifest itself, the tokenizer and the reference answers have no hash in it: they are only looked for.
    """
    hasher = Hasher()
    listed = {path: sha256 for runtime in manifest.runtimes for path, sha256 in runtime.files.items()}
    problems = []
    for path, sha256 in sorted(listed.items()):
        if not (repository / path).is_file():
            problems.append(FileProblem(path=path, problem="missing"))
        elif hasher.file(repository / path) != sha256:
            problems.append(FileProblem(path=path, problem="damaged"))
    known = {*listed, FILE_NAME, *([manifest.tokenizer] if manifest.tokenizer else [])}
    references = {REFERENCE}  # there where the build verified
    files = {file.relative_to(repository) for file in repository.rglob("*") if file.is_file()}
    there = {str(file) for file in files if file.parts[0] != manifest.model}  # the logical model is no runtime
    problems += [FileProblem(path=path, problem="missing") for path in sorted(known - set(listed) - there)]
    return problems + [FileProblem(path=path, problem="extra") for path in sorted(there - known - references)]


def _config(path: Path) -> tuple[Any, str]:
    """Triton's ModelConfig of a file; or None and the problem with it."""
    from google.protobuf import text_format
    from tritonclient.grpc import model_config_pb2 as messages

    try:
        return text_format.Parse(path.read_text(), messages.ModelConfig()), ""
    except OSError:
        return None, "config.pbtxt is missing"
    except (text_format.ParseError, UnicodeDecodeError) as error:
        return None, f"config.pbtxt is not a Triton model configuration ({error})"


def _triton_side(config: Any) -> TritonSide:
    groups = list(config.instance_group)
    kind = type(groups[0]).Kind.Name(groups[0].kind).removeprefix("KIND_") if groups else "AUTO"
    return TritonSide(
        backend=_backend(config),
        max_batch_size=config.max_batch_size,
        instances=sum(group.count or 1 for group in groups) or 1,
        kind=kind,
        batching=config.HasField("dynamic_batching"),
        warmups=len(config.model_warmup),
    )


def _backend(config: Any) -> str:
    return str(config.backend or _PLATFORMS.get(config.platform, config.platform))


def _compare(config: Any, runtime: Runtime, manifest: Manifest) -> list[str]:
    """Where config.pbtxt and the manifest differ."""
    texts = []

    def same(what: str, triton: object, ours: object) -> None:
        if triton != ours:
            texts.append(f"Triton's configuration has {what} {triton}, the manifest {ours}")

    same("the name", config.name or runtime.name, runtime.name)
    if runtime.engine != "emulated":  # its backend is a tool of ours, and not named in the manifest
        same("the backend", _backend(config), runtime.backend)
    same("max_batch_size", config.max_batch_size, runtime.max_batch)
    tokens = -1 if runtime.dynamic else runtime.max_length
    ours = {tensor.name: (tensor.datatype, [tokens]) for tensor in manifest.inputs}
    texts += _tensors("input", config.input, ours)
    outputs = {tensor.name: (tensor.datatype, _dims(tensor, tokens)) for tensor in manifest.outputs}
    return texts + _tensors("output", config.output, outputs)


def _dims(output: OutputTensor, tokens: int) -> list[int]:
    return [*([tokens] if output.token_level else []), *output.dims]


def _tensors(kind: str, theirs: Any, ours: dict[str, tuple[str, list[int]]]) -> list[str]:
    from tritonclient.grpc import model_config_pb2 as messages

    found = {
        tensor.name: (messages.DataType.Name(tensor.data_type).removeprefix("TYPE_"), list(tensor.dims))
        for tensor in theirs
    }
    texts = [f"{kind} {name} is not in Triton's configuration" for name in ours.keys() - found.keys()]
    texts += [f"{kind} {name} of Triton's configuration is not in the manifest" for name in found.keys() - ours.keys()]
    for name in sorted(ours.keys() & found.keys()):
        # Triton calls bytes STRING; the KServe protocol calls them BYTES.
        datatype, dims = found[name][0].replace("STRING", "BYTES"), found[name][1]
        if (datatype, dims) != ours[name]:
            texts.append(
                f"{kind} {name} is {datatype} {dims} in Triton's configuration, {ours[name][0]} {ours[name][1]} in the "
                "manifest"
            )
    return sorted(texts)


def _engine_file(config: Any, folder: Path, gone: list[str]) -> list[str]:
    """The disagreement if the file that Triton's backend opens is known and missing, and not yet in `gone`."""
    name = config.default_model_filename or _ENGINE_FILES.get(_backend(config))
    versions = [version for version in folder.iterdir() if version.is_dir() and version.name.isdigit()]
    if not versions:
        return ["there is no version folder (1/)"]
    newest = max(versions, key=lambda version: int(version.name))
    path = newest / name if name else None
    if path is None or path.exists() or f"{folder.name}/{newest.name}/{name}" in gone:
        return []
    return [f"{newest.name}/{name}, which Triton's {_backend(config)} backend opens, is missing"]


def _next_steps(repository: Path, manifest: Manifest, broken: bool) -> list[str]:
    """Next steps for the repository, most pressing first."""
    if broken:
        return ["build the repository again with `arlo compile`: it is not what its manifest says"]
    steps = []
    emulated = all(runtime.engine == "emulated" for runtime in manifest.runtimes)
    stood_in = [r for r in manifest.runtimes if r.verification is not None and not r.verification.engine_ran]
    if stood_in:
        steps.append(
            f"arlo compile verify {repository}: on a machine that runs the engines, as only their graphs were verified"
        )
    if any(not runtime.latency for runtime in manifest.runtimes):
        steps.append(f"arlo compile profile {repository} --update: measure the latency on the device that will serve")
    elif manifest.recommendation is None and not emulated and not missing(manifest):
        steps.append(f"arlo compile profile {repository} --update: compare static runtimes with the dynamic one")
    steps.append(f'arlo serve serve.toml: with repository = "{repository}" in [model]')
    return steps
