"""The serving mode of one `arlo serve`, as a type: one model, several, a cascade's stages, or a pipeline's variants.

`mode_of` makes it once, from the configuration and the manifest. Every difference between the modes is a method here;
nothing else in the control plane asks the configuration for the mode.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from arlo.cascade.manifest import Point
from arlo.catalog.bundle import shared_bundle
from arlo.catalog.flow_outcomes import records_of
from arlo.catalog.manifest import Manifest, Runtime
from arlo.config import Config
from arlo.config.flows import CascadeConfig, PipelineConfig
from arlo.config.stages import cascade_manifest, cascade_name, pipeline_name, served_flow
from arlo.control.events import emit
from arlo.control.http.status import CascadeStatus, EnergyStatus
from arlo.control.reconcile.cascade import fill_cascade, kept_point
from arlo.control.reconcile.choice import choose
from arlo.control.reconcile.pipeline import fill_pipeline, kept_plan, plan_message
from arlo.control.reconcile.placement import plan_from_config
from arlo.errors import GatewayError
from arlo.planning.flows.numbers import Numbers
from arlo.planning.lengths.advice import dynamic_runtime
from arlo.planning.models import Served
from arlo.planning.planner import Planner, PlannerSettings
from arlo.planning.serving import planner_for

if TYPE_CHECKING:  # watchers load slowly, and `arlo config check` needs none
    from arlo.control.reconcile.deployments import Deployments
    from arlo.control.reconcile.moves import Probe
    from arlo.control.watch.energy import EnergyWatch
    from arlo.control.watch.feed import Snapshot, Watcher
    from arlo.control.watch.tasks import TaskWatch
    from arlo.workers.pool import WorkerPool

log = logging.getLogger("arlo.control")


class ServingMode:
    """One model."""

    kind: ClassVar[str] = "model"  # the mode in words
    call: ClassVar[str] = "embed"  # the client's call for trying it out
    whole: str | None = None  # name of the cascade or pipeline that the models form
    dedicated = False  # True: each of several models has separate workers

    def __init__(self, config: Config, manifest: Manifest) -> None:
        """Raise ConfigError if the repository lacks a model to serve."""
        self.config = config
        self.choice = choose(config, manifest)
        self.manifest = self.choice.manifest  # lists the runtimes that workers may hold
        pairs = zip(config.models, manifest.models, strict=True)
        self.models = [model.name or one.model for model, one in pairs]  # models that the workers hold
        # Checked here, so that an error is reported before anything is started.
        self.first = self._first()

    def _first(self) -> dict[str, int] | None:
        """Instances of each runtime at the start; None: a plan for lengths that are not known decides."""
        return plan_from_config(self.config, self.manifest) if self.config.deployment.instances else None

    @property
    def name(self) -> str:
        """The name that clients use; with several models, the first."""
        return self.whole or self.models[0]

    @property
    def text(self) -> str:
        """One line for people."""
        if self.whole is not None:
            return f"{self.kind} {self.whole} is served, by {', '.join(self.models)}"
        several = len(self.models) > 1
        return f"{'models' if several else 'model'} {', '.join(self.models)} {'are' if several else 'is'} served"

    # --- plans ---

    @property
    def period_s(self) -> float:
        """Seconds between two plans."""
        return self.config.control.period_s

    @property
    def settings(self) -> PlannerSettings:
        """The configuration's settings for the planner."""
        control = self.config.control
        return PlannerSettings(
            slo_ms=float(self.config.model.slo_ms),
            policy=self.config.dispatch.policy,
            objective=control.objective,
            solver=control.solver,
            window_s=control.demand_window_s,
            min_gain=control.min_gain,
            early=control.early,
            reallocate=control.reallocate,
            dynamic=self.config.deployment.dynamic,
            period_s=self.period_s,
        )

    def planner(self) -> Planner:
        """A new planner."""
        serve = self.choice.serve
        return planner_for(
            self.settings, [each for each in self.manifest.runtimes if each.dynamic or serve != "dynamic"]
        )

    def longest(self, planned: Sequence[Runtime]) -> str:
        """The runtime for a worker when nothing better is known: it can serve every request."""
        if planned and self.config.deployment.dynamic == 0:
            return planned[-1].name
        dynamic = dynamic_runtime(self.manifest)
        assert dynamic is not None, "choose() has seen one"
        return dynamic.name

    def turned(self, planner: Planner, deployments: Deployments) -> bool:
        """Whether the operating point differs from the last plan's; if so, the planner is updated."""
        del planner, deployments
        return False

    async def tell(self, planner: Planner, deployments: Deployments) -> None:
        """Send the gateway the rest of a plan, beyond the placement."""

    # --- the gateway's deployment ---

    def fill(self, message: Any, deployments: Deployments) -> None:
        """Fill in the parts of an arlo.v1.Deployment other than models, runtimes and instances."""

    def listed(self, placed: set[str]) -> set[str]:
        """Runtimes that are levels of the gateway's queue: those that are placed."""
        return placed

    def take_over(self, deployment: Any, deployments: Deployments) -> None:
        """Continue with the settings that an earlier control plane applied to the gateway."""

    # --- statistics ---

    @property
    def slos_ms(self) -> list[int]:
        """The SLO of each model that clients see."""
        return [model.slo_ms for model in self.config.models]

    def of_clients(self, seen: Snapshot) -> Sequence[Any]:
        """An arlo.v1.Stats of each model that clients see; none before the first statistics."""
        return seen.models

    def watchers(self, deployments: Deployments, counters: Counter[str]) -> Mapping[str, Watcher]:
        """Watchers that only this mode has, by name."""
        del deployments, counters
        return {}

    def tasks(
        self, pool: WorkerPool, *, served: Callable[[], Manifest], change: Callable[[Manifest], None], probe: Probe
    ) -> TaskWatch | None:
        """The watcher that takes up added tasks; `served` returns the current manifest, `change` takes a new one."""
        del pool, served, change, probe
        return None

    def point(self, deployments: Deployments) -> CascadeStatus | None:
        """The operating point in force, for a cascade."""
        del deployments
        return None

    @property
    def energy(self) -> EnergyStatus | None:
        """The energy use of a cascade, as far as it is known."""
        return None


class Models(ServingMode):
    """Several models, on the same workers or each on its own."""

    kind = "models"

    def __init__(self, config: Config, manifest: Manifest) -> None:
        self.dedicated = config.dedicated
        super().__init__(config, manifest)

    def _first(self) -> dict[str, int] | None:
        if not self.dedicated:
            return super()._first()
        pairs = zip(self.manifest.runtimes, self.config.models, strict=True)
        return {bundle.name: model.workers or 0 for bundle, model in pairs}

    @property
    def _served(self) -> list[Served]:
        manifest, bundles = self.manifest, self.manifest.runtimes
        if not self.dedicated:
            held = [[part for part in bundles[0].parts if manifest.of(part) is one] for one in manifest.models]
            pairs = zip(manifest.models, held, strict=True)
            bundles = tuple(shared_bundle(one.model, [parts]) for one, parts in pairs)
        return [
            Served(
                bundle=bundle,
                slo_ms=float(model.slo_ms),
                share=model.share,
                workers=model.workers if model.workers is not None else 1,
            )
            for bundle, model in zip(bundles, self.config.models, strict=True)
        ]

    def planner(self) -> Planner:
        if not self.config.more_models:  # a flow of one variant
            return super().planner()
        return planner_for(self.settings, models=self._served, divides=self.dedicated, **self._flow())

    def _flow(self) -> dict[str, Any]:
        """The flow's arguments for planner_for()."""
        return {}

    def longest(self, planned: Sequence[Runtime]) -> str:
        if self.dedicated:
            return max(planned, key=lambda runtime: runtime.max_length).name
        return super().longest(planned)


class Cascade(Models):
    """A cascade: the models are its stages."""

    kind, call = "cascade", "classify"

    def __init__(self, config: Config, cascade: CascadeConfig, manifest: Manifest) -> None:
        self._cascade = cascade
        self.whole = cascade_name(cascade)
        self._energy: EnergyWatch | None = None
        super().__init__(config, manifest)

    def in_force(self, deployments: Deployments) -> Point:
        """The operating point of the configuration, or one chosen or raised since."""
        return cascade_manifest(self._cascade.manifest).point(deployments.point or self._cascade.point)

    def _flow(self) -> dict[str, Any]:
        known = cascade_manifest(self._cascade.manifest)
        lengths = known.data.lengths if known.data is not None else ()
        return {"reach": known.point(self._cascade.point).reach, "lengths": lengths}

    def turned(self, planner: Planner, deployments: Deployments) -> bool:
        return planner.subject.turn(self.in_force(deployments).reach) and planner.plans

    def fill(self, message: Any, deployments: Deployments) -> None:
        fill_cascade(message.cascades.add(), self._cascade, self.manifest.models, point_name=deployments.point)

    def take_over(self, deployment: Any, deployments: Deployments) -> None:
        deployments.point = kept_point(self._cascade, deployment)

    @property
    def slos_ms(self) -> list[int]:
        return [self._cascade.slo_ms]

    def of_clients(self, seen: Snapshot) -> Sequence[Any]:
        return [] if seen.whole is None else [seen.whole]  # counts rows where they end, whichever stages they ran on

    def watchers(self, deployments: Deployments, counters: Counter[str]) -> Mapping[str, Watcher]:
        from arlo.control.watch.drift import DriftWatch
        from arlo.control.watch.energy import EnergyWatch
        from arlo.control.watch.point import PointWatch

        self._energy = EnergyWatch(self.config.workers)
        found: dict[str, Watcher] = {
            "point": PointWatch(self._cascade, self.config.workers.run_dir, deployments).on_stats,
            "energy": self._energy.on_stats,
        }
        if self._cascade.shadow_share > 0:
            found["drift"] = DriftWatch(self._cascade, deployments, counters).on_stats
        return found

    def point(self, deployments: Deployments) -> CascadeStatus | None:
        point = self.in_force(deployments)
        return CascadeStatus(name=self.name, point=point.name, reach=list(point.reach), agreement=point.agreement)

    @property
    def energy(self) -> EnergyStatus | None:
        return self._energy.status if self._energy is not None else None


class Pipeline(Models):
    """A flow: the models are its variants."""

    kind, call = "pipeline", "infer"

    def __init__(self, config: Config, pipeline: PipelineConfig, manifest: Manifest) -> None:
        self._pipeline = pipeline
        self.whole = pipeline_name(pipeline)
        super().__init__(config, manifest)

    @property
    def period_s(self) -> float:
        return served_flow(self._pipeline).plan_period_s

    def _flow(self) -> dict[str, Any]:
        flow = served_flow(self._pipeline)
        most = self.config.worker_limits[1] if self.config.scaling.policy == "plan" else 0
        return {"flow": flow, "outcomes": records_of(flow), "most": most}

    async def tell(self, planner: Planner, deployments: Deployments) -> None:
        """Apply the plan in force; if this fails, a later ensure() applies it."""
        plan = planner.subject.in_force
        if plan is None:
            return
        deployments.flow_plan = plan_message(Numbers(plan.flow), plan, shared=not self.dedicated)
        emit(
            log,
            "flow_plan",
            planner=plan.planner,
            step=plan.step,
            demand=round(plan.demand, 2),
            workers=plan.workers,
            served=round(plan.served, 4),
            accuracy=round(plan.accuracy, 4),
            price=round(plan.price, 6),
            utilisation=round(plan.utilisation, 3),
            note=plan.note,
            reason=plan.reason,
        )
        with contextlib.suppress(GatewayError):
            await deployments.ensure()

    def fill(self, message: Any, deployments: Deployments) -> None:
        dispatch = self.config.dispatch
        late = dispatch.policy == "late" and dispatch.batching in ("fill", "deadline")
        fill_pipeline(message.pipelines.add(), self._pipeline, self.manifest.models, deployments.flow_plan, late=late)

    def listed(self, placed: set[str]) -> set[str]:
        """All runtimes: a variant may have no worker for a while."""
        return {runtime.name for runtime in self.manifest.runtimes}

    def take_over(self, deployment: Any, deployments: Deployments) -> None:
        deployments.flow_plan = kept_plan(self._pipeline, deployment)

    def watchers(self, deployments: Deployments, counters: Counter[str]) -> Mapping[str, Watcher]:
        from arlo.control.watch.audit import audit_watch

        return {"audit": audit_watch(counters)} if self._pipeline.audit > 0 else {}

    def tasks(
        self, pool: WorkerPool, *, served: Callable[[], Manifest], change: Callable[[Manifest], None], probe: Probe
    ) -> TaskWatch | None:
        if not any(one.tasks for one in self.manifest.models):
            return None
        from arlo.control.watch.tasks import TaskWatch

        return TaskWatch(self.config, self._pipeline, pool, served=served, change=change, probe=probe)


def mode_of(config: Config, manifest: Manifest) -> ServingMode:
    """The serving mode. ConfigError if the manifest lacks a part of it."""
    if config.cascade is not None:
        return Cascade(config, config.cascade, manifest)
    if config.pipeline is not None:
        return Pipeline(config, config.pipeline, manifest)
    return Models(config, manifest) if config.more_models else ServingMode(config, manifest)
