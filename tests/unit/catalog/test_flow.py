"""Flow files: what is read, and that what is wrong is named."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from arlo.catalog.flow import Flow
from arlo.catalog.flow_accuracy import path_accuracy
from arlo.catalog.flow_file import load_flow, parse_flow
from arlo.catalog.flow_outcomes import RowOutcomes
from arlo.errors import ConfigError

TREE = """
[flow]
name = "traffic"
slo_ms = 250
drop = "reroute"

[[flow.stage]]
name = "detect"
lengths = [[40, 1], [100, 3]]
[[flow.stage.variant]]
name = "small"
accuracy = [0.7, 0.6]
max_lengths = [64, 128]
latency = [[64, 1, 2.0], [64, 8, 8.0], [128, 1, 4.0], [128, 8, 16.0]]
[[flow.stage.variant]]
name = "large"
accuracy = 0.9
max_lengths = [64, 128]
latency = [[64, 1, 4.0], [128, 1, 9.0]]

[[flow.stage]]
name = "cars"
batch = {max = 4}
[[flow.stage.variant]]
name = "b0"
accuracy = 0.8
latency = [[1, 5.0], [4, 12.0], [8, 20.0]]

[[flow.stage]]
name = "faces"
[[flow.stage.variant]]
name = "vgg"
accuracy = 0.95
latency = [[1, 10.0]]

[[flow.edge]]
from = "detect"
to = "cars"
hop_ms = 1
when = {label_in = ["car"], share = 0.75}
expand = {kind = "spans", output = "boxes", max = 16, factor = {small = 4, large = 40}, distribution = "poisson"}
[[flow.edge]]
from = "detect"
to = "faces"
when = {label_in = ["person"], share = 0.25}
"""

CASCADE = """
[flow]
name = "cascade"
slo_ms = 100
[[flow.stage]]
name = "small"
variants = [{name = "s", accuracy = 0.8, latency = [[1, 10.0]]}]
[[flow.stage]]
name = "large"
variants = [{name = "l", accuracy = 0.9, latency = [[1, 100.0]]}]
[[flow.edge]]
from = "small"
to = "exit"
when = {score = "calibrated_max", at_least = 0.93, share = 0.7}
[[flow.edge]]
from = "small"
to = "large"
answer = {ensemble = "last"}
"""


def parse(text: str) -> Flow:
    return parse_flow(text, base=Path(), source="flow.toml")


def test_a_tree_is_read_whole() -> None:
    flow = parse(TREE)
    assert (flow.name, flow.slo_ms, flow.drop) == ("traffic", 250, "reroute")
    assert [flow.stages[i].name for i in flow.order] == ["detect", "cars", "faces"]
    small, large = flow.stages[0].variants
    assert (small.max_batch, small.batch_caps, large.batch_caps) == (8, (1, 8), (1,))
    assert (small.latency_ns(8, 1), small.latency_ns(1, 0)) == (16_000_000, 2_000_000)
    assert flow.stages[0].bins(0) == (0.25, 0.75)
    assert flow.stages[0].accuracy(0) == pytest.approx(0.625)
    cars = flow.stages[1]
    assert (cars.batch.max, cars.variants[0].max_batch, cars.variants[0].batch_caps) == (4, 4, (1, 4))
    assert flow.factor(0, 0) == pytest.approx(3)
    assert flow.factor(0, 1) == pytest.approx(12), "at most 16 children, of three quarters of the rows"
    assert flow.multiplicity(1, (1, 0)) == pytest.approx(12)
    assert flow.multiplicity(2, (1, 0)) == pytest.approx(0.25)
    assert [flow.label(1, prefix) for prefix in flow.prefixes(1)] == ["detect:small>cars:b0", "detect:large>cars:b0"]
    assert (flow.hops_ms(1), flow.hops_ms(2)) == (1, 0)


def test_what_an_exit_leaves_goes_on() -> None:
    flow = parse(CASCADE)
    assert flow.exit_share(0, 0) == 0.7
    assert flow.factor(1, 0) == pytest.approx(0.3)
    assert path_accuracy(flow, 1, (0, 0)) == 0.9, "the last stage answers anew"
    assert path_accuracy(parse(TREE), 1, (1, 0)) == pytest.approx(0.72), "both must be right"


def test_paths_are_counted_where_rows_were_recorded() -> None:
    flow = parse(TREE)
    correct = np.array([True, True, False, False])
    same = RowOutcomes({("detect", "large"): correct, ("cars", "b0"): correct})
    assert path_accuracy(flow, 1, (1, 0), same) == 0.5, "wrong on the same rows: not 0.25"
    assert path_accuracy(flow, 1, (0, 0), same) == pytest.approx(0.5), "one was not recorded: product of 0.625 and 0.8"
    with pytest.raises(ConfigError, match="same rows"):
        RowOutcomes({("a", "b"): correct, ("c", "d"): correct[:2]})


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("slo_ms = 250", "slo_m = 250", "'slo_m' is not a key here: did you mean 'slo_ms'?"),
        ("slo_ms = 250", "slo_ms = 0", "slo_ms must be above 0"),
        ("slo_ms = 250", "", "slo_ms is missing"),
        ("slo_ms = 250", "slo_ms = 250\njoule = -1", "flow.joule must be 0 to 1000, not -1"),
        ("slo_ms = 250", "slo_ms = 250\njoule = 0.1", "flow.joule needs the watts of every variant"),
        ("slo_ms = 250", "slo_ms = 250\nwatts = -1", "watts must be 0 to 100000, not -1"),
        ("latency = [[1, 10.0]]", "latency = [[1, 10.0]]\nwatt = 3", "'watt' is not a key here: did you mean 'watts'?"),
        ('drop = "reroute"', 'drop = "never"', "flow.drop must be one of slack, reroute, per_task, last, none"),
        ('drop = "reroute"', "utilisation = 1.5", "utilisation must be above 0 and at most 1"),
        ('drop = "reroute"', 'utilisation = "windw"', "or \"window\", not 'windw'"),
        ('drop = "reroute"', "utilisation = true", "utilisation must be a number"),
        ("accuracy = 0.9\n", "accuracy = 90\n", "variant 'large': accuracy must be from 0 to 1, not 90"),
        ("accuracy = [0.7, 0.6]", "accuracy = [0.7, 0.6, 0.5]", "accuracy needs 1 number, or 1 per max_length"),
        ("accuracy = 0.8\n", "", "variant 'b0': accuracy is missing"),
        ("latency = [[1, 10.0]]", "latency = [[1, 0]]", "latency must be above 0"),
        ("latency = [[1, 10.0]]", "latency = [[1.5, 10]]", "whole numbers from 1"),
        ("latency = [[1, 10.0]]", "latency = [[1, nan]]", "latency must be finite, not nan"),
        ("latency = [[1, 10.0]]", "latency = [[1, 1e300]]", "latency is in ms, at most an hour, not 1e+300"),
        ("latency = [[1, 10.0]]", "latency = [[1, 10], [1, 11]]", "two values for the same rows and tokens"),
        ("max_lengths = [64, 128]", "max_lengths = [128, 64]", "max_lengths must ascend"),
        ("[[40, 1], [100, 3]]", "[[40, 1], [300, 3]]", "rows of 300 tokens do not fit variant 'small'"),
        ("batch = {max = 4", "batch = {maximum = 4", "'maximum' is not a key here: did you mean 'max'?"),
        ('to = "faces"', 'to = "face"', "there is no stage 'face'; known: detect, cars, faces"),
        ('to = "faces"', 'to = "cars"', "'cars' is reached by 2 edges: several lead to a stage only where all"),
        ("large = 40", "big = 40", "'big' is not a key here"),
        (", large = 40", "", "lacks the variant 'large'"),
        ("share = 0.75", "share = 1.75", "when.share must be from 0 to 1"),
        ('kind = "spans"', 'kind = "span"', "expand.kind must be one of"),
        ('distribution = "poisson"', 'distribution = "trace"', "go with distribution = empirical or trace"),
        ('distribution = "poisson"', 'distribution = "trace", counts = [0, 0]', "one must be above 0"),
        ('distribution = "poisson"', "counts = [1, 3000000000]", "expand.counts must be 0 to 1,000,000"),
        ('name = "faces"', 'name = "faces"\nentry = true', "'detect' is reached by 0 edges"),
        ("[flow]", "[flows]", "flow"),
    ],
)
def test_what_is_wrong_is_named(old: str, new: str, message: str) -> None:
    assert old in TREE
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse(TREE.replace(old, new, 1))


def test_what_workers_draw() -> None:
    """A variant's own, or the flow's."""
    flow = parse(TREE.replace("slo_ms = 250", "slo_ms = 250\nwatts = 90\njoule = 0.01", 1))
    assert (flow.joule, flow.metered) == (0.01, True)
    assert {variant.watts for stage in flow.stages for variant in stage.variants} == {90.0}
    own = TREE.replace("slo_ms = 250", "slo_ms = 250\nwatts = 90", 1).replace(
        "latency = [[1, 10.0]]", "latency = [[1, 10.0]]\nwatts = 30", 1
    )
    assert sorted({variant.watts for stage in parse(own).stages for variant in stage.variants}) == [30.0, 90.0]
    assert not parse(TREE).metered


def test_an_exit_needs_its_share() -> None:
    with pytest.raises(ConfigError, match=r"an exit needs when\.share"):
        parse(CASCADE.replace(", share = 0.7", ""))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        load_flow(tmp_path / "none.toml")


def test_what_a_row_costs_is_that_of_the_runtimes_and_the_batch_that_it_gets(tmp_path: Path) -> None:
    """Rows of 100 tokens take the longer runtime, and cost least in batches of 4. Gateway and simulator read these."""
    curves = "[[64, 1, 2.0], [64, 4, 4.0], [64, 8, 40.0], [128, 1, 5.0], [128, 4, 8.0], [128, 8, 80.0]]"
    text = TREE.replace("[[40, 1], [100, 3]]", "[[100, 1]]").replace(
        "[[64, 1, 2.0], [64, 8, 8.0], [128, 1, 4.0], [128, 8, 16.0]]", f"{curves}\nmax_batch = 8"
    )
    (tmp_path / "flow.toml").write_text(text)
    stage = load_flow(tmp_path / "flow.toml").stages[0]
    assert (stage.least_ns(0), stage.work_ns(0)) == (5_000_000, 2_000_000)
