"""Cascades as Tabi, HybridServe and INFaaS choose them, simulated on the records of a fitted cascade.

python -m benchmarks.papers.schemes cascade.json --texts texts.jsonl --scheme tabi
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any, Literal, get_args

from arlo.cascade.search.find import SELECT
from arlo.cascade.study import Study
from arlo.errors import ConfigError
from arlo.simulator.cascade.build import scenario_from
from arlo.simulator.cascade.rows import Chosen, alone, whole
from arlo.simulator.run import run
from arlo.simulator.scenario.build import workload_of
from arlo.simulator.scenario.config import load
from arlo.simulator.scenario.file import ScenarioConfig
from benchmarks.papers.hybridserve import search as hybridserve
from benchmarks.papers.tabi import search as tabi

SchemeName = Literal["tabi", "hybridserve-ap", "hybridserve-eo", "infaas-model"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """A scheme and its parameters."""

    name: SchemeName
    accuracy: float | None = None  # to reach; None: that of the last stage less the tolerance
    tolerance: float = 0.01
    k: float = 10.0  # of Eq. 4, which the paper does not give

    def choose(self, study: Study, _: str | None) -> Chosen:
        """The scheme's choice, searched on the select split."""
        select = study.of(SELECT)
        last = float((select.said[-1].answer == select.truth).mean())
        target = last - self.tolerance if self.accuracy is None else self.accuracy
        if self.name == "infaas-model":
            stage = tabi.infaas(tabi.by_stage(select), select.truth, accuracy=target)
            if stage is None:
                raise ConfigError(f"{self.name}: no stage is {target:.2%} right")
            return alone(stage)
        if self.name == "tabi":
            return whole(range(study.stages), tabi.point(study, accuracy=target, k=self.k, seed=0))
        name: hybridserve.PointName = "ap" if self.name == "hybridserve-ap" else "eo"
        return whole(range(study.stages), hybridserve.point(study, name, tolerance=self.tolerance, seed=0))


def simulated(config: ScenarioConfig, scheme: Scheme) -> dict[str, Any]:
    """Outcomes of the rows of a scenario with a cascade, as this scheme runs it."""
    assert config.cluster.serves is not None
    requests = dataclasses.replace(config.workload, length="fixed:1", drift="none")
    workload = workload_of(requests, config.run.seed)
    result = run(scenario_from(config, config.cluster.serves, workload, scheme.choose))
    known = {name: result.figures.more[name] for name in ("exits", "agreement")}
    known |= {"accuracy": result.figures.accuracy, "joules": result.joules}
    return known | {"mean_ms": result.mean_ms, "on_time": result.slo_attainment}


def main() -> int:
    """Print the rows' outcomes as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("scenario", type=Path, help="a cascade.json, or a scenario file that names one")
    add("--texts", type=Path, help="that the cascade was fitted on")
    add("--scheme", choices=get_args(SchemeName), required=True)
    add("--accuracy", type=float, metavar="A", help="to reach (default: the last stage's less 0.01)")
    add("--k", type=float, default=10.0, help="k of Eq. 4 (default: 10)")
    args = parser.parse_args()
    config = load(args.scenario)
    config = dataclasses.replace(
        config, cluster=dataclasses.replace(config.cluster, texts=args.texts or config.cluster.texts)
    )
    print(json.dumps(simulated(config, Scheme(name=args.scheme, accuracy=args.accuracy, k=args.k)), indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
