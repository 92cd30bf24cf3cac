"""The comparison with other servers: the search, the figures of a run, the files that rivals are started with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from arlo.errors import ConfigError
from benchmarks.peers.__main__ import options_of, parser, table
from benchmarks.peers.compare import built, cosines, json_lines
from benchmarks.peers.rivals import nginx_config, triton_config
from benchmarks.peers.search import STEP, Search, equal_rate, grid, judge


def test_grid_has_equal_steps_up_to_the_end() -> None:
    assert grid(10, 20) == (10.0, 12.5, 15.6, 19.5)
    rates = grid(10, 1000)
    assert rates[-1] <= 1000 < rates[-1] * STEP


@pytest.mark.parametrize("limit", [0, 10, 40, 99, 500, 5000])
def test_search_finds_the_highest_rate_that_passes(limit: float) -> None:
    rates = grid(10, 1000)
    search = Search(rates)
    tried = []
    while (rate := search.next) is not None:
        tried.append(rate)
        search.tell(rate <= limit)
    assert search.found == max((rate for rate in rates if rate <= limit), default=None)
    assert search.at_end == (limit >= rates[-1])
    assert len(tried) == len(set(tried)) <= 5


def test_run_passes_with_99_percent_of_what_was_planned_on_time() -> None:
    def run(late: int, lost: int, cut_short: bool = False) -> bool:
        latencies: list[float | None] = [0.01] * (1000 - late - lost) + [0.2] * late + [None] * lost
        return judge(100, latencies, slo_s=0.1, duration_s=10, planned=1000, cut_short=cut_short).passed

    assert run(10, 0)
    assert run(0, 10)
    assert not run(6, 5)
    assert not run(0, 0, cut_short=True)
    found = judge(100, [0.01, 0.03, None, 0.2], slo_s=0.1, duration_s=2, planned=4, cut_short=False)
    assert (found.on_time, found.failed, found.on_time_rows_s) == (2, 1, 1.0)
    assert found.p50_ms == pytest.approx(30)
    assert judge(1, [None], slo_s=1, duration_s=1, planned=1, cut_short=False).p98_ms is None


def test_equal_rate_is_half_of_the_least() -> None:
    assert equal_rate((10, 20, 40, 80), [80, 40, None]) == 20
    assert equal_rate((10, 20), [10, 20]) == 10
    assert equal_rate((10, 20), [None]) == 10


def test_cosines_are_of_rows() -> None:
    found = cosines(np.array([[1.0, 0.0], [3.0, 4.0]]), np.array([[2.0, 0.0], [4.0, -3.0]]))
    assert found == pytest.approx([1.0, 0.0])


def test_configurations_name_what_they_are_given(tmp_path: Path) -> None:
    assert 'key: "graph" value: { string_value: "/a \\"b\\"" }' in triton_config({"graph": '/a "b"'})
    text = nginx_config(80, [81, 82], tmp_path)
    assert "least_conn; server 127.0.0.1:81; server 127.0.0.1:82;" in text
    assert "listen 127.0.0.1:80;" in text


def test_log_of_arlo_is_read() -> None:
    lines = json_lines('text\n{"event": "built", "what": "w"}\n{"half')
    assert lines == [{"event": "built", "what": "w"}]
    assert built(lines)
    assert not built(json_lines('{"event": "build_failed", "log": "l"}'))


def test_options_and_table() -> None:
    options = options_of(parser().parse_args(["--only", "triton", "arlo", "--duration", "5"]))
    assert [rival.name for rival in options.rivals] == ["arlo", "triton"]
    with pytest.raises(ConfigError, match="--rates"):
        options_of(parser().parse_args(["--rates", "9", "3"]))
    equal = {"p50_ms": 5.0, "p98_ms": None, "cpu_ms": 3.0, "rss_mb": 100.0}
    each = {"what": "w", "more": True, "on_time_rows_s": 99.6, "equal": equal, "start_s": 2.0}
    text = table({"servers": [each], "slo_ms": 100, "duration_s": 5, "lengths": "tweets", "equal_rate": 10})
    assert "| w | over 100 | 5.0 | - | 3.0 | 100 | 2.0 |" in text
