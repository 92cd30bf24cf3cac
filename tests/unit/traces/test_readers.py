"""Readers of the known formats, and workloads from files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arlo.errors import ConfigError
from arlo.traces import (
    Trace,
    detect,
    make_workload,
    materialise,
    read_counts,
    read_csv,
    read_trace,
    replayed,
    shipped_loads,
)
from arlo.traces.measure import summarise, summarise_counts
from arlo.traces.readers import segments
from arlo.traces.writers import write_workload
from tests.fakes.development_data import development_file

OWN = "arrived_at_s,length\n0.5,10\n2,20\n"
TWEETS = (
    "epoch_ms,kind,lang,chars_text,chars_full,words_full,bert_tokens_text,bert_tokens_full\n"
    "1524662101657,reply,en,8,6,7,3,26\n1524662100657,retweet,tr,5,5,7,2,51\n"
)
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,0\n"
)
COUNTS = "segment,t_in_segment_s,t_in_trace_s,count\na,0,7,5\na,1,8,7\nb,0,9,1\nb,1,10,3\nb,2,11,2\n"
MINUTES = "minute,invocations\n0,60\n1,180\n"


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write(content: str, name: str = "t.csv") -> Path:
        path: Path = tmp_path / name
        path.write_text(content)
        return path

    return write


def test_formats_are_told_by_their_header(write: Any) -> None:
    for content, name in (
        (OWN, "arlo"),
        (TWEETS, "tweet-lengths"),
        (AZURE, "azure-llm"),
        (COUNTS, "twitter-counts"),
        (MINUTES, "azure-functions"),
        ("\ufeff" + OWN, "arlo"),
        ("length,user,arrived_at_s\n", "arlo"),
    ):
        assert detect(write(content)).name == name


def test_requests_of_each_format(write: Any) -> None:
    own = read_trace(write(OWN))
    assert (own.arrived_at_s.tolist(), own.length.tolist()) == ([0.5, 2.0], [10, 20])
    tweets = read_trace(write(TWEETS))  # out of order in the file
    assert (tweets.arrived_at_s.tolist(), tweets.length.tolist()) == ([0.0, 1.0], [51, 26])
    for tokens, length in (("context", [374, 396]), ("generated", [44, 1]), ("total", [418, 396])):
        azure = read_trace(write(AZURE), tokens=tokens)
        assert azure.length.tolist() == length
        assert azure.arrived_at_s.tolist() == pytest.approx([0.0, 4.314579], abs=2e-6)


def test_a_sample_of_ten_milliseconds_is_spread_over_its_second(write: Any) -> None:
    """As the public sample of tweets has them; a queue behind it would see bursts that no traffic has."""
    random = np.random.default_rng(5)
    ms = np.sort(random.integers(0, 60, 3000) * 1000 + random.integers(657, 667, 3000)) + 1_524_662_100_000
    header = "epoch_ms,lang,bert_tokens_full\n"
    path = write(header + "".join(f"{at},en,{20 + n % 7}\n" for n, at in enumerate(ms)))
    trace = read_trace(path)
    assert trace.arrived_at_s.tolist() == read_trace(path).arrived_at_s.tolist()
    seconds = np.floor(trace.arrived_at_s + (ms[0] % 1000 - 657) / 10 + 1e-3)
    assert np.bincount(seconds.astype(int), minlength=60)[5:55].tolist() == pytest.approx(
        np.bincount((ms - ms[0] + ms[0] % 1000) // 1000)[5:55].tolist(), abs=12
    )
    tenths = np.bincount((trace.arrived_at_s % 1 * 10).astype(int), minlength=10)
    assert tenths.min() > 200
    assert summarise(trace).dispersion[0.01] == pytest.approx(1, abs=0.15)
    whole = write(header + "".join(f"{at},en,20\n" for at in range(1_524_662_100_000, 1_524_662_103_000, 37)))
    assert read_trace(whole).arrived_at_s[:4].tolist() == [0.0, 0.037, 0.074, 0.111]


def test_clips_are_counted_with_their_own_requests() -> None:
    """Two clips of 100 requests and one of five, which is too short to be one of them."""
    at = np.concatenate([np.linspace(0, 19.9, 200), np.linspace(20, 20.4, 5)])
    clips = summarise(Trace(arrived_at_s=at, length=np.full(205, 30, np.int32))).clips
    assert clips is not None
    assert (clips.clips, clips.requests_per_clip) == (2, 100.0)


def test_counts_of_each_format(write: Any) -> None:
    path = write(COUNTS)
    assert segments(path) == ["a", "b"]
    b = read_counts(path, "b")
    assert (b.count.tolist(), b.step_s, b.duration_s) == ([1, 3, 2], 1.0, 3.0)
    minutes = read_counts(write(MINUTES))
    assert (minutes.count.tolist(), minutes.step_s) == ([60, 180], 60.0)
    assert minutes.relative(60).rate.tolist() == [0.5, 1.5]
    assert minutes.relative(120).rate.tolist() == [1.0]
    assert read_counts(write("segment,t_in_segment_s,count\nonly,0,4\n")).count.tolist() == [4]


@pytest.mark.parametrize(
    ("content", "reader", "message"),
    [
        ("", read_trace, "no column layout that is known"),
        ("a,b\n1,2\n", read_trace, "azure-functions"),
        (COUNTS, read_trace, "as counts"),
        (OWN, read_counts, "as a trace"),
        (COUNTS, read_counts, "name a segment.*a, b"),
        (COUNTS, lambda path: read_counts(path, "aa"), "did you mean 'a'"),
        (COUNTS + "b,4,9,2\n", lambda path: read_counts(path, "b"), "line 7: step 4 comes after 2"),
        (COUNTS + "b,3,9,\n", lambda path: read_counts(path, "b"), "line 7: count is ''"),
        (COUNTS + "b,3\n", lambda path: read_counts(path, "b"), "line 7: count is None"),
        (MINUTES + "2,-5\n", read_counts, "line 4: invocations is -5"),
        ("minute,invocations\n", read_counts, "no counts"),
        (AZURE + "yesterday,1,1\n", read_trace, "line 4: TIMESTAMP"),
        (AZURE + "2023-11-16 18:15:59,many,1\n", read_trace, "line 4: ContextTokens is 'many'"),
        (
            AZURE,
            lambda path: read_trace(path, tokens="both"),
            "tokens of an Azure LLM trace are context",
        ),
        (TWEETS + "1524662100657,reply,en,1,1,1,1,0\n", read_trace, "line 4: bert_tokens_full is 0"),
        (TWEETS.splitlines()[0] + "\n", read_trace, "no request"),
        (OWN + "3,7.5\n", read_trace, "line 4"),
        (OWN + "3\n", read_trace, "line 4"),
        (OWN + "3,99999999999\n", read_trace, "line 4: no request is longer"),
        (OWN + "1,5\n", read_trace, "must not go back"),
    ],
)
def test_wrong_files_are_refused_with_file_and_line(write: Any, content: str, reader: Any, message: str) -> None:
    path = write(content)
    with pytest.raises(ConfigError, match=message) as caught:
        reader(path)
    assert "t.csv" in str(caught.value) or "tokens of an Azure" in message


def test_a_missing_file(tmp_path: Path) -> None:
    for reader in (read_trace, read_counts, detect):
        with pytest.raises(ConfigError, match=r"nothing\.csv"):
            reader(tmp_path / "nothing.csv")


# Our own format: there and back ---------------------------------------------------------------------------------------


def test_a_workload_there_and_back(tmp_path: Path) -> None:
    name = "t.csv"
    workload = make_workload(arrivals="twitter-bursty", rate=800, duration_s=12, seed=3)
    seen: list[int] = []
    count = write_workload(workload, tmp_path / "sub" / name, seen.append)
    made, read = materialise(workload), read_csv(tmp_path / "sub" / name)
    assert count == len(read) == seen[-1]
    assert np.array_equal(np.rint(read.arrived_at_s * 1e9), np.rint(made.arrived_at_s * 1e9))
    assert np.array_equal(read.length, made.length)
    assert [path.name for path in (tmp_path / "sub").iterdir()] == [name]
    # And as a workload again.
    again = materialise(make_workload(trace=tmp_path / "sub" / name))
    assert np.array_equal(again.length, made.length)
    assert np.array_equal(again.arrived_at_s, made.arrived_at_s)


def test_names_and_folders_that_cannot_be_written(tmp_path: Path) -> None:
    workload = make_workload(rate=5, duration_s=1)
    with pytest.raises(ConfigError, match=r"ends in \.csv"):
        write_workload(workload, tmp_path / "t.txt")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write"):
        write_workload(workload, tmp_path / "file" / "t.csv")


# Workloads from files -------------------------------------------------------------------------------------------------


def test_a_trace_as_a_workload(write: Any) -> None:
    path = write("arrived_at_s,length\n0,25\n1,125\n2,250\n4,5\n")
    whole = make_workload(trace=path)
    assert whole.duration_s > 4
    assert (whole.name, whole.expected()) == ("t", 4.0)
    part = make_workload(trace=path, duration_s=2, rescale=512)
    assert materialise(part).length.tolist() == [102, 512]
    fast = materialise(make_workload(trace=path, rate=1.5))
    assert fast.arrived_at_s.tolist() == [0.0, 0.5, 1.0, 2.0]
    for settings, message in (({"duration_s": 9}, "ends after 4 s"), ({"rate": "ramp:1:2"}, "a number")):
        with pytest.raises(ConfigError, match=message):
            make_workload(trace=path, **settings)
    with pytest.raises(ConfigError, match="no request"):
        replayed(Trace(arrived_at_s=np.empty(0), length=np.empty(0, np.int32)), "empty", "nothing")


def test_counts_as_a_load(write: Any) -> None:
    path = write("minute,invocations\n" + "".join(f"{i},{100 if i < 5 else 300}\n" for i in range(10)))
    workload = make_workload(counts=path, smooth_s=60, rate=40, arrivals="twitter-stable", length="fixed:9", seed=1)
    assert workload.duration_s == 600
    trace = materialise(workload)
    first = int(np.searchsorted(trace.arrived_at_s, 300))
    assert first == pytest.approx(6_000, abs=4 * 6_000**0.5)
    assert len(trace) - first == pytest.approx(18_000, abs=4 * 18_000**0.5)
    assert make_workload(counts=path).expected() == pytest.approx(2000)  # as many as were counted


# The development data -------------------------------------------------------------------------------------------------


def test_the_shipped_loads_are_derived_from_their_source() -> None:
    path = development_file("twitter-infadapter/segments.csv")
    assert sorted(segments(path)) == sorted(shipped_loads())
    for name, load in shipped_loads().items():
        assert load.rate == pytest.approx(read_counts(path, name).relative(10.0).rate, abs=1e-4)
    assert summarise_counts(read_counts(path, "steady_high")).dispersion[1.0] == pytest.approx(0.99, abs=0.01)


def test_real_tweets_hardly_drift() -> None:
    """What is left over sampling noise is small: traces/README.md says so beside the paper's figure."""
    clips = summarise(read_trace(development_file("twitter-lengths/tweets_2018-04-25.csv"))).clips
    assert clips is not None
    assert clips.clips == 13
    assert clips.drift_log_p98 < 0.1
    assert clips.drift_log_median < 0.05


def test_real_azure_traces() -> None:
    context = read_trace(development_file("azure-llm-2023/AzureLLMInferenceTrace_conv.csv"))
    assert len(context) == 19_366
    assert summarise(context).above_512 == pytest.approx(0.605, abs=0.001)
    generated = read_trace(development_file("azure-llm-2023/AzureLLMInferenceTrace_conv.csv"), tokens="generated")
    assert summarise(generated).above_512 == pytest.approx(0.029, abs=0.001)
    minutes = read_counts(development_file("maf2019/inv_1350func_1440min_total_per_minute.csv"))
    assert summarise_counts(minutes).peak_rate / summarise_counts(minutes).mean_rate == pytest.approx(6.3, abs=0.1)
