"""`arlo simulate trace`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from arlo.cli import main
from arlo.traces import read_csv


def make(path: Path, *flags: str) -> int:
    return main(["simulate", "trace", "make", str(path), *flags])


def test_make_writes_what_it_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.csv"
    flags = ["--arrivals", "twitter-bursty", "--rate", "200", "--duration-s", "30", "--length", "uniform:1:600"]
    assert make(path, *flags, "--seed", "4", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    trace = read_csv(path)
    assert (said["requests"], said["duration_s"]) == (len(trace), 30.0)
    assert said["longest"] == trace.length.max()
    assert said["above_512"] == pytest.approx((trace.length > 512).mean())
    assert set(said["dispersion"]) == {"0.01s", "0.1s", "1s", "10s"}
    before = path.read_bytes()
    assert make(path, *flags, "--seed", "4") == 0
    assert path.read_bytes() == before
    assert "lengths uniform from 1 to 600" in capsys.readouterr().out


def test_inspect_shows_numbers_and_charts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "c.csv").write_text("segment,t_in_segment_s,count\na,0,5\na,1,9\nb,0,2\nb,1,2\n")
    assert make(tmp_path / "t.csv", "--rate", "sine:100:1:20", "--duration-s", "40") == 0
    capsys.readouterr()
    assert main(["simulate", "trace", "inspect", str(tmp_path / "t.csv"), str(tmp_path / "c.csv")]) == 0
    out = capsys.readouterr().out
    for part in ("dispersion", "10-s clips", "load, 0 to", "lengths", "window a", "window b", "512"):
        assert part in out
    assert main(["simulate", "trace", "inspect", str(tmp_path / "t.csv"), str(tmp_path / "c.csv"), "--json"]) == 0
    kinds = [(each["format"], each.get("segment")) for each in json.loads(capsys.readouterr().out)["traces"]]
    assert kinds == [("arlo", None), ("twitter-counts", "a"), ("twitter-counts", "b")]
    assert main(["simulate", "trace", "inspect", str(tmp_path / "c.csv"), "--segment", "a", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["mean_rate"] == 7.0


def test_inspect_of_one_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.csv").write_text("arrived_at_s,length\n0,5\n")
    assert main(["simulate", "trace", "inspect", str(tmp_path / "t.csv")]) == 0
    assert main(["simulate", "trace", "inspect", str(tmp_path / "t.csv"), "--json"]) == 0
    assert '"clips": null' in capsys.readouterr().out


def test_plots_load_nothing(tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    (tmp_path / "t.csv").write_text("arrived_at_s,length\n" + "".join(f"{i / 10},{i % 50 + 1}\n" for i in range(900)))
    assert main(["simulate", "trace", "inspect", str(tmp_path / "t.csv"), "--plot", str(tmp_path / "p.html")]) == 0
    page = (tmp_path / "p.html").read_text()
    assert "default-src 'none'" in page
    assert page.count('class="plotly-graph-div"') == 4
    assert "bdata" not in page.rsplit("</script></head>", 1)[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["make", "{}/t.txt"], "ends in .csv"),
        (["make", "{}/t.csv", "--rate", "fast"], "--rate must be numbers"),
        (["make", "{}/t.csv", "--segment", "burst"], "did you mean 'bursty'"),
        (["make", "{}/t.csv", "--arrivals", "poisson", "--burst", "3"], "burst cannot be set here"),
        (["inspect", "{}/none.csv"], "none.csv"),
        (["inspect", "{}/empty.csv"], "holds no request"),
        (["inspect", "{}/empty.csv", "--segment", "a"], "files of counts"),
    ],
)
def test_errors_say_what_to_do(
    tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty.csv").write_text("arrived_at_s,length\n")
    assert main(["simulate", "trace", *(each.format(tmp_path) for each in arguments)]) == 2
    assert message in capsys.readouterr().err


def test_a_very_long_trace_is_written_without_its_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arlo.cli.trace.command.MOST_SUMMARISED", 10)
    assert make(tmp_path / "t.csv", "--rate", "100", "--duration-s", "2") == 0
    out = capsys.readouterr().out
    assert "dispersion" not in out
    assert "arlo simulate trace inspect" in out
    assert make(tmp_path / "t.csv", "--rate", "100", "--duration-s", "2", "--json") == 0
    assert set(json.loads(capsys.readouterr().out)) == {"file", "name", "workload", "requests"}
