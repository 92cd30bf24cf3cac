"""Scaling decisions as stories: what is seen at a time, and what is decided. Each line is one call of decide().

w0 s512 0.4     worker w0 serves s512 and is 40 % busy from here on; `w0 -` serves nothing, `w0 off` is not usable,
                `w0 gone` is not there any more
10 p98=60 rows=500 load=1.5     at 10 s: the signals; what is left out stays
10..70 p98=40                   every second from 10 s to 70 s
"""

from __future__ import annotations

import pytest

from arlo.errors import ConfigError
from arlo.planning.scaling.policies import Decision, ScalingPolicy, Signals, make_policy
from arlo.planning.view import WorkerView

SETTINGS: dict[str, float] = {
    "min_workers": 1,
    "max_workers": 4,
    "scale_out_share": 0.95,
    "scale_in_share": 0.5,
    "scale_in_period_s": 60,
    "headroom": 0.05,
    "cooldown_s": 10,
}
TWO = "w0 s512 0.4\nw1 s64 0.6\n"


class Story:
    """Runs lines against a policy."""

    def __init__(self, policy: ScalingPolicy) -> None:
        self.policy = policy
        self.fleet: dict[str, WorkerView] = {}
        self.seen: dict[str, float] = {"p98": 60.0, "rows": 500, "load": 1.0}
        self.kept: frozenset[str] = frozenset()

    def run(self, text: str) -> list[str]:
        """The decisions that do something, in words."""
        told: list[str] = []
        for line in text.strip().splitlines():
            first, *words = line.split()
            if first.startswith("w"):
                self.worker(first, words)
                continue
            self.seen.update((key, float(value)) for key, value in (word.split("=") for word in words))
            start, _, end = first.partition("..")
            for now in range(int(start), int(end or start) + 1):
                decision = self.policy.decide(self.signals(now))
                if decision.action != "none":
                    told.append(f"{now} {in_words(decision)}")
        return told

    def acts(self, text: str) -> list[str]:
        """The same, without their reasons."""
        return [line.split(":")[0] for line in self.run(text)]

    def worker(self, name: str, words: list[str]) -> None:
        if words == ["gone"]:
            del self.fleet[name]
            return
        serving = None if words[0] in {"-", "off"} else words[0]
        busy = float(words[1]) if len(words) > 1 else 0.0
        self.fleet[name] = WorkerView(id=name, serving=serving, usable=words[0] != "off", busy=busy)

    def signals(self, now: float) -> Signals:
        return Signals(
            now_s=now,
            slo_ms=100,
            p98_ms=self.seen["p98"],
            rows=int(self.seen["rows"]),
            unanswered=int(self.seen.get("lost", 0)),
            arrived=int(self.seen["arrived"]) if "arrived" in self.seen else None,
            load=self.seen["load"],
            workers=list(self.fleet.values()),
            longest="s512",
            kept=self.kept,
        )


def in_words(decision: Decision) -> str:
    words = [decision.action, *[word for word in (decision.worker, decision.runtime) if word]]
    return f"{' '.join(words)}: {decision.reason}"


def story(name: str, **settings: float) -> Story:
    return Story(make_policy(name, **{**SETTINGS, **settings}))


def test_target_adds_a_worker_with_the_longest_runtime_at_95_percent() -> None:
    assert story("target").run(TWO + "0 p98=94.9\n1 p98=95") == [
        "1 add s512: the p98 latency of 500 rows is 95.0 ms, at least 95% of the SLO of 100 ms",
    ]


def test_target_does_not_add_again_for_latency_of_the_smaller_cluster() -> None:
    """w2 takes 25 s to serve; then the window of 10 s still holds rows of before. Only then is it too late again."""
    lines = TWO + "0..4 p98=97\nw2 off\n5..24\nw2 s512 0.9\n25..36 p98=96"
    assert story("target").run(lines) == [
        "0 add s512: the p98 latency of 500 rows is 97.0 ms, at least 95% of the SLO of 100 ms",
        "35 add s512: the p98 latency of 500 rows is 96.0 ms, at least 95% of the SLO of 100 ms",
    ]


def test_target_gives_up_waiting_for_a_worker_that_never_comes() -> None:
    assert story("target").acts(TWO + "0..250 p98=97") == ["0 add s512", "120 add s512", "240 add s512"]
    assert story("target", max_workers=3).acts(TWO + "0..50 p98=97\nw2 off\n51..250") == ["0 add s512"]


def test_target_stops_at_the_limit() -> None:
    assert story("target", max_workers=2).acts(TWO + "0..90 p98=200") == []


def test_a_few_slow_rows_are_no_evidence() -> None:
    assert story("target").acts(TWO + "0 p98=300 rows=49\n1 rows=50") == ["1 add s512"]


def test_target_releases_the_least_busy_after_a_whole_period() -> None:
    three = TWO + "w2 s128 0.1\n"
    assert story("target").run(three + "0..70 p98=49") == [
        "60 remove w2: the p98 latency is 49.0 ms, below 50% of the SLO of 100 ms for 60 s; w2 is the least busy (10%)"
    ]


def test_one_moment_above_begins_the_period_anew() -> None:
    assert story("target").acts(TWO + "0..50 p98=49\n51 p98=50\n52..111 p98=49") == []
    assert story("target").acts(TWO + "0..50 p98=49\n51 p98=50\n52..112 p98=49") == ["112 remove w1"]


def test_moments_that_nobody_saw_do_not_count() -> None:
    assert story("target").acts(TWO + "0 p98=49\n10\n20\n30\n40\n50\n60") == ["60 remove w1"]
    assert story("target").acts(TWO + "0 p98=49\n10\n20\n31\n40\n50\n60") == []


def test_each_release_needs_a_period_of_its_own() -> None:
    three = TWO + "w2 s128 0.1\n"
    assert story("target").acts(three + "0..60 p98=10\nw2 gone\n61..130") == ["60 remove w2", "121 remove w1"]


def test_no_traffic_for_a_period_releases_a_worker() -> None:
    told = story("target").run(TWO + "0..60 p98=0 rows=0 arrived=0 load=0")
    assert told[-1] == (
        "60 remove w1: there was no request, below 50% of the SLO of 100 ms for 60 s; w1 is the least busy (60%)"
    )


def test_requests_without_answers_are_no_rest() -> None:
    assert story("target").acts(TWO + "0..90 p98=0 rows=0 arrived=800 load=1") == []


def test_rows_that_expire_ask_for_a_worker_however_quick_the_others_are() -> None:
    """In the worst overload no row is answered, and what is answered beside many that expire may well be quick."""
    assert story("target").run(TWO + "0 rows=0 lost=800 arrived=800 load=9") == [
        "0 add s512: 800 of 800 rows were refused or expired"
    ]
    assert story("target").acts(TWO + "0 p98=10 rows=97 lost=3") == ["0 add s512"]
    assert story("target").acts(TWO + "0..90 p98=60 rows=98 lost=2") == [], "2 % may be late anyway"
    assert story("target", max_workers=2).acts(TWO + "0..90 p98=10 rows=97 lost=3 load=0") == [], "and none is let go"


def test_a_few_rows_that_expire_are_no_evidence() -> None:
    assert story("target").acts(TWO + "0 rows=0 lost=49") == []


def test_the_last_instance_of_the_longest_runtime_stays() -> None:
    assert story("target").acts("w0 s512 0.1\nw1 s64 0.6\n0..60 p98=10") == ["60 remove w1"]
    assert story("target").acts("w0 s512 0.1\nw1 s512 0.6\n0..60 p98=10") == ["60 remove w0"]
    assert story("target").acts("w0 s512 0.1\nw1 off\n0..60 p98=10 load=0") == [], "it is the only one"


def test_the_last_worker_of_a_model_stays() -> None:
    each = story("target")
    each.kept = frozenset({"a", "b"})
    assert each.acts("w0 a 0.1\nw1 b 0.3\nw2 b 0.2\n0..60 p98=10") == ["60 remove w2"]
    told = story("target")
    told.kept = frozenset({"a", "b"})
    assert told.acts("w0 a 0.1\nw1 b 0.3\n0..60 p98=10 load=0") == []


def test_of_equally_busy_workers_an_idle_one_and_then_the_youngest_goes() -> None:
    assert story("target").acts("w0 s512\nw1 s64\nw2 s64\n0..60 p98=10") == ["60 remove w2"]
    assert story("target").acts("w0 s512\nw1 -\nw2 s64\n0..60 p98=10 load=0") == ["60 remove w1"]


def test_a_worker_that_the_load_needs_is_not_released() -> None:
    assert story("target").acts(TWO + "0..90 p98=40 load=1.2") == []


def test_a_release_that_was_wrong_is_not_tried_again_for_ten_periods() -> None:
    """Two are too many and one is too few: without memory that would go on for ever, every 70 s."""
    teller = story("target")
    assert teller.acts(TWO + "0..60 p98=40 load=0.7\nw1 gone\n61..69 p98=96\n70") == ["60 remove w1", "70 add s512"]
    assert teller.acts("w2 s64 0.5\n71..669 p98=40 load=0.7") == []
    assert teller.acts("670..671") == ["670 remove w2"]


def test_a_wrong_release_is_forgotten_when_the_load_falls() -> None:
    teller = story("target")
    teller.acts(TWO + "0..60 p98=40 load=0.7\nw1 gone\n61..69 p98=96\n70")
    assert teller.acts("w2 s64 0.5\n71..150 p98=40 load=0.5") == ["131 remove w2"]


def test_a_release_before_the_load_rose_was_not_wrong() -> None:
    teller = story("target")
    assert teller.acts(TWO + "0..60 p98=40 load=0.7\nw1 gone\n61..69 p98=96\n70 load=1.5")[-1] == "70 add s512"
    assert teller.acts("w2 s64 0.5\n71..131 p98=40 load=0.7") == ["131 remove w2"]


def test_too_few_workers_are_filled_up() -> None:
    assert story("target", min_workers=3).run(TWO + "0 p98=10") == ["0 add s512: 2 workers are fewer than the 3 wanted"]
    assert story("headroom", min_workers=3).acts(TWO + "0..30 load=0") == ["0 add s512"]


def test_a_dead_cluster_is_no_matter_of_load() -> None:
    for name in ("target", "headroom"):
        assert story(name).acts("w0 off\nw1 off\n0..200 p98=500 load=5") == []


def test_headroom_adds_when_the_load_leaves_too_little_spare() -> None:
    assert story("headroom").run(TWO + "0 load=1.90\n1 load=1.91") == [
        "1 add s512: a load of 1.91 instances with 5% headroom is above 2",
    ]


def test_headroom_counts_workers_on_their_way() -> None:
    """A load of 3.5 wants two more; the second is asked for after the cool-down, before the first serves."""
    assert story("headroom").acts(TWO + "0..100 load=3.5") == ["0 add s512", "10 add s512"]


def test_headroom_releases_when_the_load_fits_on_one_fewer_for_a_period() -> None:
    told = story("headroom").run(TWO + "0..60 load=0.95")
    assert told[-1] == (
        "60 remove w1: a load of 0.95 instances with 5% headroom fits on 1 for 60 s; w1 is the least busy (60%)"
    )
    assert story("headroom").acts(TWO + "0..90 load=0.96") == []
    assert story("headroom").acts(TWO + "0..40 load=0.9\n41 load=1\n42..90 load=0.9") == []


def test_none_never_does_anything() -> None:
    assert story("none").acts(TWO + "0..90 p98=500 load=9") == []


def test_limits_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match="not 5 and 4"):
        story("target", min_workers=5)
