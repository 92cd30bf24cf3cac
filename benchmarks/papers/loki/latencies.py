"""The variants of examples/simulate/loki_{traffic,social}.toml: `python -m benchmarks.papers.loki.latencies`.

Loki's own profile is not open to be used, so latencies are estimated from what the models' authors publish, for the
paper's GPU (GTX 1080 Ti, 5.67 T multiply-adds a second at its boost clock, 3,584 cores x 1.582 GHz):

    ms of a batch = 3 (launch and copy) + rows x giga multiply-adds / (efficiency x 5.67)

The efficiencies are assumptions: dense convolutions 0.45, large plain ones (VGG) 0.6, residual ones 0.35, depthwise
ones (EfficientNet), which wait for memory, 0.15, transformers 0.45. Accuracies are the published top-1 or mAP, each
divided by that of the family's best, as the paper does.
"""

from __future__ import annotations

import dataclasses

PEAK = 5.67  # T multiply-adds a second
LAUNCH_MS = 3.0
BATCHES = (1, 2, 4, 8, 16, 32, 64)
LONGEST_MS = 125.0  # half of the SLO: a batch that takes longer is never allowed
CROP = 224  # pixels that every classifier of crops takes


@dataclasses.dataclass(frozen=True, slots=True)
class Family:
    """Models of one kind: (name, published accuracy, giga multiply-adds of an image)."""

    efficiency: float
    models: tuple[tuple[str, float, float], ...]


def _efficientnet() -> tuple[tuple[str, float, float], ...]:
    """Tan and Le, Table 2: (top-1, G multiply-adds, pixels); work grows with the area, and crops have CROP pixels."""
    table = (
        ("b0", 77.1, 0.39, 224), ("b1", 79.1, 0.70, 240), ("b2", 80.1, 1.0, 260), ("b3", 81.6, 1.8, 300),
        ("b4", 82.9, 4.2, 380), ("b5", 83.6, 9.9, 456), ("b6", 84.0, 19.0, 528), ("b7", 84.3, 37.0, 600),
    )  # fmt: skip
    return tuple((name, top1, work * (CROP / pixels) ** 2) for name, top1, work, pixels in table)


def _vit(tokens: int, width: int, layers: int) -> float:
    """G multiply-adds of a transformer: 12 n d^2 + 2 n^2 d for each layer."""
    return layers * (12 * tokens * width**2 + 2 * tokens**2 * width) / 1e9


FAMILIES = {
    # YOLOv5 6.0 at 640 pixels: mAP 50-95 on COCO; its published FLOPs are two for each multiply-add.
    "yolov5": Family(
        0.45, (("n", 28.0, 2.25), ("s", 37.4, 8.25), ("m", 45.4, 24.5), ("l", 49.0, 54.55), ("x", 50.7, 102.85))
    ),
    "efficientnet": Family(0.15, _efficientnet()),
    # torchvision's table of classification weights: top-1 and GFLOPS, which are multiply-adds.
    "vgg": Family(
        0.6, (("vgg11", 69.02, 7.61), ("vgg13", 69.928, 11.31), ("vgg16", 71.592, 15.47), ("vgg19", 72.376, 19.63))
    ),
    "resnet": Family(
        0.35,
        (
            ("r18", 69.758, 1.81), ("r34", 73.314, 3.66), ("r50", 76.13, 4.09), ("r101", 77.374, 7.8),
            ("r152", 78.312, 11.51),
        ),
    ),
    # CLIP (Radford et al.), zero-shot top-1; multiply-adds by formula.
    "clip": Family(
        0.45,
        (
            ("b32", 63.2, _vit(50, 768, 12)), ("b16", 68.6, _vit(197, 768, 12)),
            ("l14", 75.3, _vit(257, 1024, 24)), ("l14-336", 76.2, _vit(577, 1024, 24)),
        ),
    ),
}  # fmt: skip


def latency_ms(work: float, efficiency: float, rows: int) -> float:
    """Latency of a batch in ms."""
    return LAUNCH_MS + rows * work / (efficiency * PEAK)


def variants(family: str) -> list[tuple[str, float, list[tuple[int, float]]]]:
    """(name, normalised accuracy, [(rows, ms)]) of a family, as they stand in the example files."""
    found = FAMILIES[family]
    best = max(accuracy for _, accuracy, _ in found.models)
    made = []
    for name, accuracy, work in found.models:
        points = [(rows, round(latency_ms(work, found.efficiency, rows), 2)) for rows in BATCHES]
        kept = [point for point in points if point[1] <= LONGEST_MS]
        made.append((name, round(accuracy / best, 4), kept))
    return made


def tables(family: str) -> str:
    """TOML of a family's variants."""
    lines = []
    for name, accuracy, points in variants(family):
        latency = ", ".join(f"[{rows}, {ms}]" for rows, ms in points)
        lines += ["[[flow.stage.variant]]", f'name = "{name}"', f"accuracy = {accuracy}", f"latency = [{latency}]"]
    return "\n".join(lines)


def main() -> None:
    """Prints all tables."""
    for family in FAMILIES:
        print(f"# {family}\n{tables(family)}\n")


if __name__ == "__main__":
    main()
