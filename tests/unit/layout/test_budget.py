"""The house grows smaller: no folder, class or function is larger than budget.toml says, and new ones keep the limits.

What is said in two places is said once before something is added. A change that has to grow raises its numbers in the
same commit (`python -m tests.unit.layout.sizes --raise`), where a reader sees it.
"""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

from tests.unit.layout import english, sizes

HOW = "python -m tests.unit.layout.sizes"
SLACK = 40  # lines that a number may be above the tree before it has to fall


@pytest.fixture(scope="module")
def measured() -> dict[str, dict[str, int]]:
    return sizes.measured()


@pytest.mark.parametrize("section", ["folders", "classes", "functions", "files", "habits"])
def test_sizes_only_fall(measured: dict[str, dict[str, int]], section: str) -> None:
    budget, now = tomllib.loads(sizes.BUDGET.read_text())[section], measured[section]
    grown = {
        name: f"{size}, above {budget.get(name, 'the limit')}"
        for name, size in now.items()
        if size > budget.get(name, 0)
    }
    assert grown == {}, "shorten it, or part it; habits: say it as a native engineer would"
    slack = 0 if section in ("files", "habits") else SLACK
    fallen = [name for name, size in budget.items() if now.get(name, 0) < size - slack]
    assert fallen == [], f"these are smaller than their budget: {HOW} lowers it"


SOURCE = """
namespace a {
enum class E { kOne };
struct Small { int x = 0; };
class Outer final : public Base<int> {
 public:
  Outer() : x_{1}, y_(2) { run(); }
  class Inner;
  int get() const {
    return x_;  // a { in words
  }
};
class Outer::Inner {
  const char* text_ = "}";
};
template <class T>
T Outer::made(const T& from) {
  if (from) {
    return {};
  }
  return from;
}
void alone() {}
}  // namespace a
"""


def test_habits_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "a.py"
    source.write_text(
        'def f():\n    """Of its own,\n    anew: what\n    is beside."""\n    return 1  # nobody is told\n'
    )
    monkeypatch.setattr(english, "read_by_people", lambda: [source])
    assert set(english.habits().values()) == {1}


def test_pieces_of_cpp() -> None:
    assert list(sizes.of_cpp(SOURCE)) == [
        ("class", "Small", 1),
        ("class", "Outer", 8),
        ("inner", "Outer", 1),
        ("inner", "get", 3),
        ("class", "Outer::Inner", 3),
        ("outer", "Outer::made", 7),
        ("outer", "alone", 1),
    ]


def test_pieces_of_python() -> None:
    tree = ast.parse("class A:\n    def b(self):\n        return 1\n\n\nasync def c(): ...\n")
    assert sorted(sizes.of_python(tree)) == [("class", "A", 3), ("inner", "b", 2), ("inner", "c", 1)]
