"""Steps of clients/check, at a size of which the order can be seen."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import pathlib
import sys
from typing import Any

import pytest


@pytest.fixture
def check(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    loader = importlib.machinery.SourceFileLoader("check", str(pathlib.Path(__file__).with_name("check")))
    spec = importlib.util.spec_from_loader("check", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "check", module)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    loader.exec_module(module)
    monkeypatch.setattr(module, "LOGS", tmp_path)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    return module


def meeting(own: str, other: str) -> str:
    """Ends well when both run at a time, and only then."""
    return f"touch {own}; for n in $(seq 250); do [ -e {other} ] && exit; sleep 0.02; done; exit 1"


@pytest.mark.parametrize(
    ("cores", "by", "failed"),
    [
        (2.0, "", []),
        # Controls: the processors are taken, or what both need.
        (1.5, "", ["a"]),
        (2.0, "maven", ["a"]),
    ],
)
def test_steps_run_beside_each_other_while_processors_are_free(
    check: Any, cores: float, by: str, failed: list[str]
) -> None:
    steps = [check.Step("a", 1.0, meeting("a", "b"), by=by), check.Step("b", 1.0, meeting("b", "a"), by=by)]
    assert check.run_all(steps, cores) == failed


def test_a_step_waits_for_those_that_it_needs(check: Any) -> None:
    steps = [check.Step("last", 0.1, "test -e first", ("first",)), check.Step("first", 0.1, "sleep 0.2; touch first")]
    assert check.run_all(steps, 2.0) == []
    # The control: it does not wait for what it does not name.
    (check.ROOT / "first").unlink()
    steps = [check.Step("last", 0.1, "test -e first"), steps[1]]
    assert check.run_all(steps, 2.0) == ["last"]


def test_a_failure_shows_its_last_lines_and_the_rest_runs(check: Any, capsys: pytest.CaptureFixture[str]) -> None:
    steps = [
        check.Step("build", 1.0, "seq 1 100; exit 3"),
        check.Step("user", 1.0, "touch user", ("build",)),
        check.Step("other", 1.0, "echo; echo 7 kept"),
    ]
    assert check.run_all(steps, 1.0) == ["build", "user"]
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("build: ") and said[0].endswith(": ended with 3")
    assert said[1:42] == [f"the last lines of {check.LOGS}/build.log:", *(f"  {line}" for line in range(61, 101))]
    assert said[42] == "user: not run, for it needs build"
    assert said[43].startswith("other: ") and said[43].endswith(": 7 kept")
    assert not (check.ROOT / "user").exists()


def test_a_step_that_takes_too_long_is_ended_with_all_it_started(check: Any) -> None:
    assert check.run_all([check.Step("slow", 1.0, "sleep 60 & sleep 60", bound=1)], 1.0) == ["slow"]
    assert check.run_all([check.Step("quick", 1.0, "true", bound=1)], 1.0) == []


def test_every_step_names_steps_that_there_are(check: Any) -> None:
    for driver in (None, "driver"):
        table = check.steps(driver)
        names = [step.name for step in table]
        assert len(set(names)) == len(names)
        assert all(need in names for step in table for need in step.needs)
        assert ("suite-rust" in names) == ("handed-round" in names) == bool(driver)
