"""`arlo cascade record --through`: what every stage says of every text, asked of a gateway that serves the cascade.

The first stage is asked with the parameter `cascade` = first, the last one with last, which whole rows enter. One in
between is reached through those before it: no later one (`cascade_max_stage`), sure enough for none before
(`cascade_min_confidence` = 1), at an operating point that neither prunes nor mixes nor skips. Importance stays in the
gateway, so nothing can be recorded of texts that are pruned.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from arlo.catalog.manifest import Manifest
from arlo.cli.cascade.record import PART, WARM, Job, Jobs, Tokenize, Tokens, outputs_of, token_request
from arlo.errors import ConfigError, WorkerError

if TYPE_CHECKING:
    from arlo.cascade.manifest import CascadeManifest
    from arlo.cascade.records import Recorded
    from arlo.profiler.wire import WorkerClient

TIMEOUT_S = 120.0


def check(cascade: CascadeManifest, stages: list[int], *, target: str, model: str) -> None:
    """ConfigError where a gateway cannot tell, or serves another cascade. ClientError where it cannot be asked."""
    from arlo.client import Client

    if len({stage.tokenizer_group for stage in cascade.stages}) > 1:
        raise ConfigError(
            "stages of different vocabularies are asked by text, and a gateway does not say how many tokens each made "
            "of it: record on workers, without --through"
        )
    for stage in stages:
        wishes(cascade, stage)
    with Client(target, model=model) as client:
        info = client.model_info()
    if info.labels != cascade.labels:
        raise ConfigError(f"{target} serves another cascade under the name {model!r}: it has other labels")
    if "cascade_stage" not in {output.name for output in info.outputs}:
        raise ConfigError(f"{model!r} at {target} is no cascade: its answers do not say which stage they are of")


def wishes(cascade: CascadeManifest, stage: int) -> dict[str, str | int | float]:
    """Parameters that a row needs to be answered by this stage, whole. ConfigError where there are none."""
    if stage == 0:
        return {"cascade": "first"}
    if stage == len(cascade.stages) - 1:
        return {"cascade": "last"}
    plain = [p.name for p in cascade.points if not p.prune.alpha and p.ensemble.kind == "none" and not any(p.skip)]
    if not plain:
        raise ConfigError(
            f"stage {cascade.stages[stage].name!r} is between others, and a gateway sends whole rows there only at an "
            "operating point without pruning, ensemble and skips: search one with `--plain` and "
            "serve it, or record on workers, without --through"
        )
    return {"cascade": plain[0], "cascade_max_stage": stage, "cascade_min_confidence": 1.0}


def record(jobs: Jobs, stage: int, *, target: str, model: str) -> int:
    """Record what is missing of a stage's whole texts, one at a time; returns how many it did not answer itself.

    Those are not recorded: its workers were away, or an earlier stage was sure of them beyond doubt. WorkerError where
    the gateway refuses.
    """
    from rich.console import Console

    from arlo.profiler.wire import WorkerClient
    from arlo.report.progress import LiveBar

    job = jobs.whole(stage)
    if not job.rows:
        return 0
    repository = jobs.folder / jobs.cascade.stages[stage].repository
    client = WorkerClient(target, timeout_s=TIMEOUT_S)
    asker = _Asker(client, model, Manifest.load(repository), stage, wishes(jobs.cascade, stage))
    tokenize, count = Tokenize(repository), len(jobs.data.examples)
    try:
        with LiveBar(Console(stderr=True), f"{job.what}: asking {target}") as bar:
            return _all(
                jobs, job, asker, tokenize, lambda done: bar.show(done, count, f"{job.what}: {done} of {count}")
            )
    except WorkerError as error:
        raise WorkerError(str(error).replace(f"worker {target}", f"the gateway at {target}", 1)) from None
    finally:
        client.close()


def _all(jobs: Jobs, job: Job, asker: _Asker, tokenize: Tokenize, show: Any) -> int:
    others, done = 0, len(jobs.data.examples) - len(job.rows)
    for row in job.rows[:WARM]:
        asker.ask(tokenize(jobs.data, row))
    for first in range(0, len(job.rows), PART):
        part: list[Any] = []
        try:
            for row in job.rows[first : first + PART]:
                tokens = tokenize(jobs.data, row)
                said = asker.ask(tokens)
                if said is None:
                    others += 1
                else:
                    part.append((row, len(tokens[0]), *said))
                done += 1
        finally:  # after Ctrl-C, too
            if part:
                jobs.records.append(job.key, _joined(part))
        show(done)
    return others


def _joined(part: list[Any]) -> Recorded:
    from arlo.cascade.records import Recorded

    rows, tokens, logits, ms = zip(*part, strict=True)
    return Recorded(np.array(rows, np.int64), np.stack(logits), np.array(tokens, np.int32), np.array(ms, np.float32))


class _Asker:
    """One stage of a cascade that a gateway serves."""

    def __init__(
        self, client: WorkerClient, model: str, manifest: Manifest, stage: int, wished: Mapping[str, str | int | float]
    ) -> None:
        self._client, self._model, self._manifest, self._stage, self._wished = client, model, manifest, stage, wished
        self._logits = manifest.outputs[0].name

    def ask(self, tokens: Tokens) -> tuple[NDArray[np.float32], float] | None:
        """Logits [labels], and ms from the stage's worker; None where another stage has answered."""
        from tritonclient.grpc import service_pb2

        request: Any = token_request(
            self._manifest, self._model, len(tokens[0]), tokens, (self._logits, "cascade_stage")
        )
        kinds = {str: "string_param", int: "int64_param", float: "double_param"}
        for name, value in self._wished.items():
            setattr(request.parameters[name], kinds[type(value)], value)
        raw = self._client.infer(self._model, bytes(request.SerializeToString()))
        outputs = outputs_of(raw)
        if int(outputs["cascade_stage"].reshape(-1)[0]) != self._stage:
            return None
        said: Any = service_pb2.ModelInferResponse.FromString(raw)
        ms = said.parameters[f"stage_{self._stage}_execute_us"].int64_param / 1000
        return outputs[self._logits].reshape(-1), ms
