"""Logs do not grow without bound, while the process that writes them goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from arlo.workers import log_file
from arlo.workers.log_file import LogFile


def test_a_log_is_limited_under_the_hands_of_its_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_file, "LIMIT_BYTES", 1000)
    path = tmp_path / "w0.log"
    log = LogFile(path)
    log.begin("worker w0")
    with path.open("ab", buffering=0) as writer:  # as a server has it open
        for number in range(200):
            writer.write(b"line %d\n" % number)
            log.limit()
            assert path.stat().st_size <= 1000
        assert (tmp_path / "w0.log.1").stat().st_size > 1000 - 20
        kept = (tmp_path / "w0.log.1").read_text() + path.read_text()
        assert kept.endswith("line 198\nline 199\n")
        assert "line 199" in log.excerpt()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["w0.log", "w0.log.1"]


def test_a_log_that_cannot_be_copied_is_emptied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_file, "LIMIT_BYTES", 10)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(log_file.shutil, "copyfile", full)
    path = tmp_path / "w0.log"
    path.write_text("x" * 100)
    assert LogFile(path).limit()
    assert path.stat().st_size == 0
    assert not LogFile(tmp_path / "none.log").limit()
