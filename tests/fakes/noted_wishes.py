"""What a runtime scheduler is tested with: its configuration, and a reconciler that notes what is wanted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from arlo import config as configuration
from arlo.config import Config
from arlo.planning.view import WorkerView

CONFIG = """\
[model]
repository = "repository"
slo_ms = 150
[workers]
count = {workers}
run_dir = "run"
[deployment]
{deployment}
[control]
period_s = 60
{control}
"""


def configured(folder: Path, *, workers: int = 4, deployment: str = "", control: str = "") -> Config:
    (folder / "run").mkdir(exist_ok=True)
    return configuration.parse(CONFIG.format(workers=workers, deployment=deployment, control=control), base=folder)


class Notes:
    """A reconciler that does at once what it is told, and workers that come and go as the test says."""

    def __init__(self, workers: int) -> None:
        self.up = [f"w{i}" for i in range(workers)]
        self.desired: dict[str, str] = {}
        self.wanted: list[dict[str, str]] = []
        self.urgent = False

    def views(self, *, grace_s: float = 0.0, busy: Mapping[str, float] | None = None) -> list[WorkerView]:
        return [WorkerView(id=worker, serving=self.desired.get(worker)) for worker in self.up]

    def want(self, placement: Mapping[str, str], demand: Sequence[float] = (), *, urgent: bool = False) -> None:
        self.desired = dict(placement)
        self.wanted.append(self.desired)
        self.urgent = urgent

    @property
    def counts(self) -> dict[str, int]:
        return dict(Counter(self.desired.values()))
