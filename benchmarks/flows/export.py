"""A flow as models of a plain Triton, to set beside the gateway's own way through it:

    python -m benchmarks.flows.export flow.toml --out exported [--variant topic=minilm2] [--instances 8]
    arlo triton exported

Two forms of the same flow, one variant of each stage, in one repository: `NAME_bls`, a model of the Python back-end
that calls the others, and `NAME_ensemble`, a Triton ensemble. Their code is benchmarks/flows/models.

Clients send the ids and the mask of rows, padded to one length, and get the outputs of the flow
(docs/pipeline-journeys.md): answers, and `row`, the row that each of them is of. Both can do less than the gateway: one
variant of each stage, no deadlines, no queue that is anybody's but Triton's. An ensemble has no conditions: every row
goes through every stage, at the one length that fits all, and what a request becomes at a stage is one batch, which
must not be above its max_batch.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from arlo.catalog.manifest import Manifest, OutputTensor, Runtime
from arlo.errors import ConfigError

MODELS = Path(__file__).with_name("models")
Tensor = tuple[str, str, list[int]]  # name, type, dimensions without the first
NUMPY = {"FP16": "float16", "FP32": "float32", "FP64": "float64", "INT32": "int32", "INT64": "int64", "BOOL": "bool"}


def export(path: Path, out: Path, chosen: Mapping[str, str] | None = None, *, instances: int = 4) -> dict[str, Any]:
    """Write both forms of a flow file into a new folder; names of the models, and the variants that were taken.
    ConfigError where the flow cannot be served, or not so."""
    if out.exists():
        raise ConfigError(f"{out} is there already: name a folder that is not")
    name, stages = _stages(path, dict(chosen or {}))
    entry = stages[0]["inputs"]
    first = {each["role"]: each for each in reversed(entry)}
    flow = {"ids": first["ids"]["name"], "mask": first["mask"]["name"], "stages": stages}
    outputs: list[Tensor] = [
        (stage["prefix"] + each["name"], each["type"], each["dims"])
        for stage in stages
        if stage["ends"]
        for each in [*stage["answers"], {"name": "row", "type": "INT32", "dims": []}]
    ]
    inputs: list[Tensor] = [(flow["ids"], first["ids"]["type"], [-1]), (flow["mask"], first["mask"]["type"], [-1])]
    out.mkdir(parents=True)
    for folder in {str(each["from"]): None for stage in stages for each in stage["runtimes"]}:
        source = Path(folder)
        shutil.copytree(source, out / source.name, copy_function=_linked)
    for stage in stages:
        stage["runtimes"] = [{k: v for k, v in each.items() if k != "from"} for each in stage["runtimes"]]
    bls, whole = f"{name}_bls", f"{name}_ensemble"
    repository = _Repository(out, flow, inputs, outputs, instances)
    repository.bls(bls)
    repository.ensemble(whole)
    return {"bls": bls, "ensemble": whole, "variants": {stage["name"]: stage["variant"] for stage in stages}}


def _stages(path: Path, chosen: dict[str, str]) -> tuple[str, list[dict[str, Any]]]:
    """Name of the flow, and its stages as the templates read them; from what the gateway would be told."""
    from arlo import proto
    from arlo.config.flow_variants import served_flow, variant_models
    from arlo.config.pipeline import PipelineConfig
    from arlo.control.reconcile.pipeline import fill_pipeline

    config = PipelineConfig(flow=path)
    flow = served_flow(config)
    models = variant_models(config)
    manifests = [Manifest.load(model.repository) for model in models]
    message = proto.message("Pipeline")()
    fill_pipeline(message, config, tuple(manifests))
    for edge in flow.edges:
        if edge.join:
            raise ConfigError(f"edge {edge.name}: joins are not exported")
        if edge.head is not None and edge.expand.kind not in ("same", "chunks"):
            raise ConfigError(f"edge {edge.name}: expand.kind = {edge.expand.kind!r} is not exported: same, chunks")
    unknown = set(chosen) - {stage.name for stage in flow.stages}
    if unknown:
        raise ConfigError(f"the flow has no stage {min(unknown)!r}: {', '.join(stage.name for stage in flow.stages)}")
    stages: list[dict[str, Any]] = []
    start = 0
    for place, item in zip(flow.order, message.stages, strict=True):
        spec = flow.stages[place]
        names = [variant.name for variant in spec.variants]
        best = max(range(len(names)), key=lambda k, spec=spec: spec.accuracy(k))  # type: ignore[misc]
        wanted = chosen.get(spec.name, names[best])
        if wanted not in names:
            raise ConfigError(f"stage {spec.name!r} has no variant {wanted!r}: {', '.join(names)}")
        k = names.index(wanted)
        stages.append(_stage(item, wanted, item.variants[k], models[start + k].repository, manifests[start + k]))
        start += len(names)
    for edge in message.edges:
        tail = stages[getattr(edge, "from")]
        judges = edge.at_least > 0 or edge.below > 0 or bool(edge.labels)
        tail["edges"].append(
            {
                "to": edge.to,
                "judges": judges,
                "at_least": edge.at_least,
                "below": edge.below,
                "labels": list(edge.labels),
                "window": edge.chunks.window,
                "stride": edge.chunks.stride,
            }
        )
    ending = 0
    for stage in stages:
        edges = stage["edges"]
        stage["ends"] = any(edge["to"] < 0 for edge in edges) or all(edge["judges"] for edge in edges)
        judged = [stage["logits"]] if any(edge["judges"] for edge in edges) else []
        if not judged:
            stage["logits"] = ""
        said = [each["name"] for each in stage["answers"]] if stage["ends"] else []
        # Something has to be asked for, if only to know that it was done.
        stage["asked"] = list(dict.fromkeys([*said, *judged])) or [next(iter(stage["types"]))]
        ending += stage["ends"]
    for stage in stages:
        stage["prefix"] = f"{stage['name']}." if ending > 1 else ""
    return message.name, stages


def _stage(item: Any, name: str, variant: Any, repository: Path, manifest: Manifest) -> dict[str, Any]:
    for each in manifest.inputs:
        if each.role not in ("ids", "mask") and not each.optional:
            raise ConfigError(f"{repository} needs input {each.name!r}: all but ids and mask must be optional")
    ids = next(each for each in manifest.inputs if each.role == "ids")
    types = {each.name: (each.datatype, list(each.dims)) for each in manifest.outputs if not each.token_level}
    if not types:
        raise ConfigError(f"{repository} has no output of one value a row: all are of tokens")
    return {
        "name": item.name,
        "variant": name,
        "first": item.first,
        "logits": item.logits,
        "t": variant.t or 1.0,
        "pad": ids.pad_value,
        "inputs": [
            {"name": each.name, "role": each.role, "type": each.datatype, "numpy": NUMPY[each.datatype]}
            for each in manifest.inputs
        ],
        "answers": [_output(each) for each in manifest.outputs if not each.token_level and not each.on_request],
        "types": types,
        "runtimes": [_runtime(each, repository) for each in manifest.runtimes],
        "edges": [],
    }


def _output(output: OutputTensor) -> dict[str, Any]:
    if output.datatype not in NUMPY:
        raise ConfigError(f"output {output.name!r} is of {output.datatype}, which is not exported")
    return {
        "name": output.name,
        "type": output.datatype,
        "numpy": NUMPY[output.datatype],
        "dims": list(output.dims),
    }


def _runtime(runtime: Runtime, repository: Path) -> dict[str, Any]:
    return {
        "name": runtime.name,
        "max_length": runtime.max_length,
        "max_batch": runtime.max_batch,
        "dynamic": runtime.dynamic,
        "from": str(repository / runtime.name),
    }


@dataclasses.dataclass(frozen=True, slots=True)
class _Repository:
    """The models of a flow that are written beside its runtimes."""

    out: Path
    flow: dict[str, Any]
    inputs: Sequence[Tensor]  # that clients send
    outputs: Sequence[Tensor]
    instances: int

    def bls(self, name: str) -> None:
        """One model that calls the others."""
        self._python(name, "bls", self.inputs, self.outputs, self.flow)

    def ensemble(self, name: str) -> None:
        """Steps: cut and pad, ask the stage, cut and pad for the next one ...; at last, pick."""
        stages, steps = self.flow["stages"], []
        picked: list[Tensor] = []
        tails: dict[int, tuple[int, dict[str, Any]]] = {0: (-1, {"window": 0, "stride": 0})}
        for s, stage in enumerate(stages):
            tails |= {edge["to"]: (s, edge) for edge in stage["edges"] if edge["to"] >= 0}
        kind = stages[0]["inputs"][0]["type"]
        for s, stage in enumerate(stages):
            if any(each["type"] != kind for each in stage["inputs"]):
                raise ConfigError(f"stage {stage['name']!r}: an ensemble needs inputs of one type in all stages")
            parent, edge = tails[s]
            enough = [one for one in stage["runtimes"] if edge["window"] and one["max_length"] >= edge["window"]]
            runtime = enough[0] if enough else stage["runtimes"][-1]
            prepare = f"{name}_{s}"
            self._python(
                prepare,
                "prepare",
                [("ids", kind, [-1]), ("mask", kind, [-1])],
                [("out_ids", kind, [-1]), ("out_mask", kind, [-1]), ("parent", "INT32", [])],
                {
                    "window": edge["window"],
                    "stride": edge["stride"],
                    "length": 0 if runtime["dynamic"] else runtime["max_length"],
                    "pad": stage["pad"],
                    "numpy": NUMPY[kind],
                },
            )
            source = (f"s{parent}_ids", f"s{parent}_mask") if parent >= 0 else (self.flow["ids"], self.flow["mask"])
            there = {"out_ids": f"s{s}_ids", "out_mask": f"s{s}_mask", "parent": f"{s}_parent"}
            steps.append(_step(prepare, dict(zip(("ids", "mask"), source, strict=True)), there))
            given = {
                each["name"]: f"s{s}_{each['role']}" for each in stage["inputs"] if each["role"] in ("ids", "mask")
            }
            steps.append(_step(runtime["name"], given, {asked: f"{s}_{asked}" for asked in stage["asked"]}))
            picked += [(f"{s}_{asked}", *stage["types"][asked]) for asked in stage["asked"]]
            picked.append((f"{s}_parent", "INT32", []))
        self._python(f"{name}_pick", "pick", picked, self.outputs, self.flow)
        steps.append(
            _step(f"{name}_pick", {each[0]: each[0] for each in picked}, {each[0]: each[0] for each in self.outputs})
        )
        (self.out / name / "1").mkdir(parents=True)
        text = _head(name, 'platform: "ensemble"', self.inputs, self.outputs)
        text += "ensemble_scheduling { step [\n" + ",\n".join(steps) + "\n] }\n"
        (self.out / name / "config.pbtxt").write_text(text)

    def _python(
        self, name: str, code: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor], flow: dict[str, Any]
    ) -> None:
        folder, templates = self.out / name, MODELS
        (folder / "1").mkdir(parents=True)
        shutil.copyfile(templates / f"{code}.py", folder / "1" / "model.py")
        for shared in (templates / "rows.py", templates / "tensors.py"):
            shutil.copyfile(shared, folder / "1" / shared.name)
        text = _head(name, 'backend: "python"', inputs, outputs)
        text += f"instance_group [ {{ count: {self.instances} kind: KIND_CPU }} ]\n"
        text += f'parameters {{ key: "flow" value {{ string_value: {json.dumps(json.dumps(flow))} }} }}\n'
        (folder / "config.pbtxt").write_text(text)


def _step(model: str, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> str:
    maps = [
        f"{kind}_map {{ key: {json.dumps(key)} value: {json.dumps(value)} }}"
        for kind, pairs in (("input", inputs), ("output", outputs))
        for key, value in pairs.items()
    ]
    return f"  {{ model_name: {json.dumps(model)} model_version: -1 {' '.join(maps)} }}"


def _head(name: str, kind: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> str:
    def tensors(field: str, of: Sequence[Tensor]) -> str:
        lines = ",\n".join(
            f"  {{ name: {json.dumps(tensor)} data_type: TYPE_{datatype} dims: {[-1, *dims]} }}"
            for tensor, datatype, dims in of
        )
        return f"{field} [\n{lines}\n]\n"

    return (
        f"name: {json.dumps(name)}\n{kind}\nmax_batch_size: 0\n{tensors('input', inputs)}{tensors('output', outputs)}"
    )


def _linked(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def main(argv: Sequence[str] | None = None) -> int:
    """Write the repository."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("flow", type=Path, help="a flow file, every variant with a repository")
    add("--out", type=Path, required=True, metavar="REPO", help="a folder that is made")
    add("--variant", action="append", default=[], metavar="STAGE=NAME", help="of a stage (default: the most accurate)")
    add("--instances", type=int, default=4, metavar="N", help="of the Python models: calls at a time (default: 4)")
    args = parser.parse_args(argv)
    chosen = dict(text.split("=", 1) for text in args.variant)
    print(json.dumps(export(args.flow, args.out, chosen, instances=args.instances)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
