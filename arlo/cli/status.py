"""`arlo status`: one screen of what a gateway serves, how loaded it is and how fast it answers."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from arlo.cli.text import print_json, print_json_line
from arlo.errors import ConfigError

EPILOG = """examples:
  arlo status                          the gateway on this machine, default admin port
  arlo status serve.toml               the gateway of a configuration
  arlo status --admin 10.0.0.5:8003    another one
  arlo status --model reranker         one of several models of a gateway
  arlo status --watch                  again every two seconds, until Ctrl-C
  arlo status --json | jq .health      for scripts; exit code 6 when no gateway answers

health:
  ready      every instance is in service
  degraded   some instance is not, but every level has one in service
  failing    a level has no instance in service: its requests go to a longer one, or wait
  empty      no deployment has been applied yet
"""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add `status`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "status",
        help="what a running gateway serves, how loaded it is, how fast it answers",
        description="Ask a running gateway what it serves, how loaded its instances are and how fast it answers.",
        epilog=EPILOG,
    )
    parser.add_argument("config", nargs="?", type=Path, metavar="CONFIG.toml", help="take the admin address from here")
    parser.add_argument("--admin", metavar="HOST:PORT", help="admin address (default: 127.0.0.1:8003)")
    parser.add_argument(
        "--control",
        metavar="HOST:PORT",
        help="HTTP address of the control plane, which knows the energy of a cascade (default: 127.0.0.1:8004, with "
        "--admin none)",
    )
    parser.add_argument(
        "--model", metavar="NAME", default="", help="one of the gateway's models (default: all of a deployment)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON; with --watch one document a line")
    parser.add_argument("--watch", action="store_true", help="again and again, until Ctrl-C")
    parser.add_argument("--interval", type=float, default=2.0, metavar="S", help="seconds between (default: 2)")
    return parser


def run(args: argparse.Namespace) -> int:
    """Print the status once, or again and again."""
    from arlo import config as configuration
    from arlo.cli.top.source import checked
    from arlo.config.keeping import ControlConfig

    if args.config is not None and args.admin is not None:
        raise ConfigError("give CONFIG.toml or --admin, not both")
    if not 0.1 <= args.interval <= 60:
        raise ConfigError(f"--interval must be from 0.1 to 60 seconds, not {args.interval:g}")
    address = args.admin or configuration.GatewayConfig().admin_address
    # What it takes to know the energy, of a control plane that is not on another machine.
    control = None if args.admin else ControlConfig().http_address
    if args.config is not None:
        loaded = configuration.load(args.config)
        address, control = loaded.gateway.admin_address, loaded.control.http_address
        if loaded.gateway.several_models:
            args.model = args.model or loaded.model.name or ""
    args.control = checked(args.control, "--control") if args.control else control
    return asyncio.run(_watch(address, args) if args.watch else _once(address, args))


async def _once(address: str, args: argparse.Namespace) -> int:
    from arlo.control.gateway.admin import AdminClient

    async with AdminClient(address, model=args.model) as admin:
        deployment = await admin.get_deployment()
        stats = await admin.stats()
        several = await _several(admin, deployment, args.model)
        energy = await _energy(args.control, deployment)
    if args.json:
        print_json(as_dict(deployment, stats, several, energy))
    else:
        from rich.console import Console

        Console().print(screen(deployment, stats, address, several, energy))
    return 0


async def _several(admin: Any, deployment: Any, model: str) -> list[Any]:
    """The arlo.v1.Stats of each of several models on the same workers; none where there is one, or one is named."""
    if model or not deployment.more_models:
        return []
    return list(await asyncio.gather(*(admin.stats(each.name) for each in _models(deployment))))


async def _energy(control: str | None, deployment: Any) -> dict[str, Any] | None:
    """What a cascade's answers cost, as its control plane knows (arlo.control.http.status.EnergyStatus); None: there is
    none, or it does not."""
    if control is None or not deployment.cascades:
        return None
    from arlo.cli.top.source import ControlUnreachableError, fetch_status

    try:
        status = await asyncio.to_thread(fetch_status, control)
    except ControlUnreachableError:
        return None
    same = status.deployment_version == deployment.version  # that of another gateway may be there
    return dataclasses.asdict(status.energy) if same and status.energy is not None else None


def _models(deployment: Any) -> list[Any]:
    """Cascades and pipelines, which clients see in place of their stages, and models."""
    return [*deployment.cascades, *deployment.pipelines, deployment.model, *deployment.more_models]


async def _watch(address: str, args: argparse.Namespace) -> int:
    from rich.live import Live

    from arlo.control.gateway.admin import AdminClient

    async with AdminClient(address, model=args.model) as admin:
        live = None if args.json else Live(auto_refresh=False, screen=False)
        try:
            if live is not None:
                live.start()
            async for stats in admin.watch_stats(interval_ms=round(args.interval * 1000)):
                deployment = await admin.get_deployment()
                several = await _several(admin, deployment, args.model)
                energy = await _energy(args.control, deployment)
                if live is None:
                    print_json_line(as_dict(deployment, stats, several, energy))
                else:
                    live.update(screen(deployment, stats, address, several, energy), refresh=True)
        finally:
            if live is not None:
                live.stop()
    return 0


def health(deployment: Any, stats: Any) -> str:
    """ready, degraded, failing or empty; see EPILOG."""
    from arlo.control.gateway.messages import to_dict

    if not deployment.version:
        return "empty"
    # A level whose runtimes have all moved elsewhere stays in the statistics; no instances of it are wanted.
    first = deployment.model.name
    name = stats.model or first
    mine = {runtime.name for runtime in deployment.runtimes if (runtime.model or first) == name}
    mine |= {bundle.name for bundle in deployment.bundles if mine & set(bundle.runtimes)}
    variants = {v.model for pipeline in deployment.pipelines for stage in pipeline.stages for v in stage.variants}
    if name in variants and not any(instance.runtime in mine for instance in deployment.instances):
        return "ready"  # the plan gives it no worker: others of its stage answer
    wanted = {runtime.max_length for runtime in deployment.runtimes if (runtime.model or first) == name}
    if any(level.instances == 0 for level in stats.levels if level.max_length in wanted):
        return "failing"
    states = [to_dict(instance)["state"] for instance in stats.instances]
    return "ready" if states and all(state == "active" for state in states) else "degraded"


def as_dict(
    deployment: Any, stats: Any, several: Sequence[Any] = (), energy: dict[str, Any] | None = None
) -> dict[str, Any]:
    """What --json prints: health, the deployment in force, the statistics, of `several` models each by its name, and
    what a cascade's answers cost."""
    from arlo.control.gateway.messages import to_dict

    document = {"health": health_of(deployment, stats, several), "deployment": to_dict(deployment)}
    models = {each.model: to_dict(each) for each in several}
    return {**document, "stats": to_dict(stats), "models": models, "energy": energy}


def health_of(deployment: Any, stats: Any, several: Sequence[Any]) -> str:
    """Of the model whose health is the worst."""
    found = [health(deployment, each) for each in several or [stats]]
    return max(found, key=("ready", "degraded", "failing", "empty").index)


def screen(
    deployment: Any,
    stats: Any,
    address: str,
    several: Sequence[Any] = (),
    energy: dict[str, Any] | None = None,
) -> Any:
    """The status as a rich renderable: of one model, or of `several`, of which `stats` is the first."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from arlo.control.gateway.messages import to_dict

    state = health_of(deployment, stats, several)
    models = [model for model in _models(deployment) if model.name == stats.model]
    model = models[0] if models else deployment.model
    colour = {"ready": "green", "degraded": "yellow"}.get(state, "red")
    uptime_s = max(0.0, (stats.at_ms - stats.started_at_ms) / 1000)
    whose = f"{len(several)} models" if several else f"model {model.name or '-'}"
    slo = "" if several else f"slo {model.slo_ms} ms  "
    head = Text.assemble(
        (state, f"bold {colour}"),
        f"  {whose}  deployment {deployment.version}  policy {stats.policy}\n{slo}up {uptime_s:.0f} s  admin {address}",
    )
    outcomes = stats.outcomes
    counts = Text(
        f"on_time {outcomes.on_time}  late {outcomes.late}  rejected {outcomes.rejected}  expired {outcomes.expired}  "
        f"cancelled {outcomes.cancelled}  failed {outcomes.failed}\nwaiting {stats.queued} (parked {stats.parked})  "
        f"in flight {stats.in_flight}  retries {stats.retries}  ejections {stats.ejections}"
    )
    padding = 1 - stats.tokens / stats.computed_tokens if stats.computed_tokens else 0.0
    latency = Table(
        box=None, title=f"latency, ms (last {stats.total.window_s} s)", title_justify="left", pad_edge=False
    )
    for column in ("", "rows", "mean", "p50", "p90", "p98", "p99", "max"):
        latency.add_column(column, justify="right" if column else "left")
    for name in ("total", "queue", "execute"):
        part = getattr(stats, name)
        values = (part.mean_us, part.p50_us, part.p90_us, part.p98_us, part.p99_us, part.max_us)
        latency.add_row(name, str(part.count), *(f"{value / 1000:.1f}" for value in values))
    levels = Table(
        box=None,
        title=f"levels (padding so far {padding:.1%} of computed tokens)",
        title_justify="left",
        pad_edge=False,
    )
    for column in ("max_length", "instances", "ideal", "dispatched", "demoted"):
        levels.add_column(column, justify="right")
    for level in stats.levels:
        levels.add_row(
            *(str(n) for n in (level.max_length, level.instances, level.ideal, level.dispatched, level.demoted))
        )
    instances = Table(box=None, title="instances", title_justify="left", pad_edge=False)
    for column in ("worker", "runtime", "state", "in flight", "queued", "started", "failed", "busy"):
        instances.add_column(column, justify="left" if column in ("worker", "runtime", "state") else "right")
    for item in stats.instances:
        word = to_dict(item)["state"]
        busy = item.busy_us / 1e6 / uptime_s if uptime_s else 0.0
        instances.add_row(
            item.worker,
            item.runtime,
            Text(word, style="green" if word == "active" else "yellow" if word != "ejected" else "red"),
            *(str(n) for n in (item.in_flight, item.queued, item.started, item.failed)),
            f"{min(busy, 1.0):.0%}",
        )
    stages = [part for each in several or [stats] if each.stages for part in (_stages(each), "")]
    stages += [part for each in several or [stats] if each.pipeline for part in (_pipeline(each, deployment), "")]
    if stages and energy is not None and energy["joules_per_request"] is not None:
        stages[-1:] = [
            f"energy: {energy['joules_per_request']:.3g} J a row ({energy['source']}, idle time included)",
            "",
        ]
    if several:
        return Group(head, "", _by_model(deployment, several), "", *stages, _levels_by_model(several), "", instances)
    return Group(head, counts, "", latency, "", *(stages or (levels, "")), instances)


def _stages(stats: Any) -> Any:
    """Of a cascade: how many rows each stage answered, and what became of them."""
    from rich.console import Group
    from rich.table import Table

    from arlo.cascade.decide import DEADLINE, REASONS

    title = f"stages of {stats.model}, point {stats.point}, price {stats.price} (degraded: from deadline on)"
    table = Table(box=None, title=title, title_justify="left", pad_edge=False)
    for column in ("stage", "reach", "answers", "rows that ended with it"):
        table.add_column(column, justify="right" if column in ("reach", "answers") else "left")
    first = max(1, stats.stages[0].visits)
    for stage in stats.stages:
        ends = [
            f"[red]{count} {reason}[/red]" if number >= DEADLINE else f"{count} {reason}"
            for number, (count, reason) in enumerate(zip(stage.exits, REASONS, strict=True))
            if count
        ]
        table.add_row(stage.model, f"{stage.visits / first:.0%}", str(stage.visits), ", ".join(ends) or "-")
    return Group(table, _shadows(stats.shadows)) if stats.HasField("shadows") else table


def _pipeline(stats: Any, deployment: Any) -> Any:
    """Of a pipeline: its plan, and its stages as a tree: rows that came, who answered them, what was given up there."""
    from rich.console import Group
    from rich.table import Table

    reasons = ("budget", "deadline", "overload", "fanout", "failed", "evicted")  # src/flow/pipeline/pipeline.h
    table = Table(box=None, title=f"stages of {stats.model}", title_justify="left", pad_edge=False)
    for column in ("stage", "rows", "answered", "ended there", "rerouted", "answered by", "dropped", "price"):
        numeric = column in ("rows", "answered", "ended there", "rerouted")
        table.add_column(column, justify="right" if numeric else "left")
    known = next((each for each in deployment.pipelines if each.name == stats.model), None)
    parent = (
        {edge.to: getattr(edge, "from") for edge in reversed(known.edges) if edge.to >= 0} if known is not None else {}
    )
    for number, stage in enumerate(stats.pipeline):
        depth, at = 0, number
        while at in parent:
            depth, at = depth + 1, parent[at]
        variants = known.stages[number].variants if known is not None and number < len(known.stages) else ()
        by = [
            f"{variant.model.rpartition('.')[2]} {one.answered / stage.answered:.0%} (accuracy {variant.accuracy:.1%})"
            for variant, one in zip(variants, stage.variants, strict=False)
            if one.answered
        ]
        dropped = [f"{count} {reason}" for count, reason in zip(stage.dropped, reasons, strict=False) if count]
        numbers = (stage.visits, stage.answered, stage.ends, stage.rerouted)
        prices = " ".join(f"{price:.3g}" for price in stage.price)
        name = f"{'  ' * depth}{stage.stage}"
        table.add_row(name, *map(str, numbers), ", ".join(by) or "-", ", ".join(dropped) or "-", prices)
    plans = [_plan(each, deployment) for each in deployment.pipelines if each.name == stats.model and each.plan.planner]
    return Group(*plans, table, *worths(stats), *_shadowed(stats, deployment), *audited(stats))


def worths(stats: Any) -> list[Any]:
    """The four outcomes of OTAS, and utility, of each class, task and tenant. What is right is expected."""
    found = []
    kinds = {"": stats.worth, "task ": stats.by_task, "tenant ": stats.by_tenant}
    busy_s = sum(worth.busy_s for worth in stats.by_tenant)
    for kind, worth in [(kind, each) for kind, of_kind in kinds.items() for each in of_kind]:
        if not (worth.in_time or worth.late or worth.evicted or worth.failed):
            continue
        share = worth.earned / worth.offered if worth.offered else 0.0
        taken = ""
        if worth.busy_s:
            taken = f"; {worth.busy_s / busy_s:.0%} of the worker time, at {worth.price:.3g} times the price"
        found.append(
            f"{kind}{worth.of or '(none)'}: {worth.right:.0f} right in time, {worth.in_time - worth.right:.0f} wrong,"
            f" {worth.late} late, {worth.evicted} evicted, {worth.failed} failed;"
            f" utility {worth.earned:.6g} of {worth.offered:.6g} ({share:.1%}){taken}"
        )
    return found


def audited(stats: Any) -> list[str]:
    """How often the most accurate variants say the same, and whether that is as often as accuracies promise."""
    audit = stats.audit
    if not audit.rows:
        return []
    differ = audit.rows - audit.agreed
    verdict = "more often than their accuracies allow" if audit.alarm else f"at most {audit.may_differ:.1f} may"
    return [
        f"audit: {audit.agreed} of {audit.rows} rows, expected accuracy {audit.accuracy / audit.rows:.1%}, are "
        f"answered alike by the most accurate variants; {differ} differ: {verdict}"
    ]


def _shadowed(stats: Any, deployment: Any) -> list[Any]:
    """How often rows with fewer tokens get the label of all tokens."""
    pipelines = [each for each in deployment.pipelines if each.name == stats.model]
    return [
        f"{told.model}: {one.shadow_agreed} of {one.shadow_rows} shadow rows agree with all tokens"
        f" ({one.shadow_agreed / one.shadow_rows:.1%})"
        for pipeline in pipelines
        for stage, seen in zip(pipeline.stages, stats.pipeline, strict=False)
        for told, one in zip(stage.variants, seen.variants, strict=False)
        if one.shadow_rows
    ]


def _plan(pipeline: Any, deployment: Any) -> str:
    """What the planner of a flow wants: its figures, and each variant's share of the roots and workers that serve."""
    plan = pipeline.plan
    first = deployment.model.name
    of = {runtime.name: runtime.model or first for runtime in deployment.runtimes}
    of |= {bundle.name: of[name] for bundle in deployment.bundles for name in bundle.runtimes[:1]}
    lines = [
        f"plan of {plan.planner} ({plan.step} scaling): {plan.demand:.4g} rows/s on {plan.workers} workers, served "
        f"{plan.served:.1%}, accuracy {plan.accuracy:.2%}, price {plan.price:.3g}"
        + (f", utilisation {plan.utilisation:.3g}" if plan.utilisation else "")
        + "".join(f"\n  {text}" for text in (plan.note, plan.reason) if text)
    ]
    parent = {edge.to: getattr(edge, "from") for edge in reversed(pipeline.edges) if edge.to >= 0}
    shares, at, prefixes = list(plan.share), 0, list[int]()
    for number, stage in enumerate(pipeline.stages):
        count = len(stage.variants)
        prefixes.append((prefixes[parent[number]] if number in parent else 1) * count)
        mine = shares[at : at + prefixes[-1]]
        at += prefixes[-1]
        said = []
        for v, variant in enumerate(stage.variants):
            name = variant.model.removeprefix(f"{pipeline.name}.{stage.name}.")
            workers = sum(of.get(instance.runtime) == variant.model for instance in deployment.instances)
            said.append(f"{name} {sum(mine[v::count]):.0%} (workers {workers})")
        lines.append(f"  {stage.name}: {', '.join(said)}")
    return "\n".join(lines)


def _shadows(shadows: Any) -> str:
    """What the rows of a cascade that ran on the last stage as well have shown."""
    said = f"shadow rows: {shadows.rows}, of which the last stage answers {shadows.disagreed} otherwise"
    if shadows.rows:
        said += f" ({shadows.disagreed / shadows.rows:.1%}"
        said += f", {shadows.epsilon:.1%} allowed)" if shadows.epsilon else ")"
    if shadows.skipped or shadows.failed:
        said += f"; {shadows.skipped} left out while it was busy, {shadows.failed} failed"
    return f"[red]DRIFT: {said}[/red]" if shadows.alarm else said


def _by_model(deployment: Any, several: Sequence[Any]) -> Any:
    """Of each model: what became of its rows, what waits and runs, how long answers take."""
    from rich.console import Group
    from rich.table import Table

    slo_ms = {model.name: model.slo_ms for model in _models(deployment)}
    now = Table(
        box=None, title=f"models (ms: last {several[0].total.window_s} s)", title_justify="left", pad_edge=False
    )
    ended = Table(box=None, title="outcomes", title_justify="left", pad_edge=False)
    for table, columns in (
        (now, ("slo", "waiting", "in flight", "mean", "p98", "padding")),
        (ended, ("on_time", "late", "rejected", "expired", "cancelled", "failed")),
    ):
        for column in ("model", *columns):
            table.add_column(column, justify="left" if column == "model" else "right")
    for stats in several:
        padding = 1 - stats.tokens / stats.computed_tokens if stats.computed_tokens else 0.0
        now.add_row(
            stats.model,
            *(str(n) for n in (slo_ms.get(stats.model, "-"), stats.queued, stats.in_flight)),
            *(f"{us / 1000:.1f}" if stats.total.count else "-" for us in (stats.total.mean_us, stats.total.p98_us)),
            f"{padding:.1%}",
        )
        of = stats.outcomes
        counts = (of.on_time, of.late, of.rejected, of.expired, of.cancelled, of.failed)
        ended.add_row(stats.model, *map(str, counts))
    return Group(now, "", ended)


def _levels_by_model(several: Sequence[Any]) -> Any:
    from rich.table import Table

    table = Table(box=None, title="levels", title_justify="left", pad_edge=False)
    for column in ("model", "max_length", "instances", "ideal", "dispatched", "demoted"):
        table.add_column(column, justify="left" if column == "model" else "right")
    for stats in several:
        for level in stats.levels:
            numbers = (level.max_length, level.instances, level.ideal, level.dispatched, level.demoted)
            table.add_row(stats.model, *map(str, numbers))
    return table
