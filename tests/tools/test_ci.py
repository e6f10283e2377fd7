"""tools/ci.py: everything is run once and told of, whatever fails."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
REPORT = """\
<testsuites><testsuite>
  <testcase classname="e2e.test_one" time="2.5"/>
  <testcase classname="e2e.test_one" time="0.5"><failure message="x"/></testcase>
  <testcase classname="e2e.test_two" time="1"><skipped/></testcase>
  <testcase classname="e2e.test_two" time="1"><error message="x"/></testcase>
</testsuite></testsuites>
"""


@pytest.fixture
def ci(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return import_module("ci")


def shell(ci: Any, name: str, script: str) -> Any:
    return ci.Step(name, ("sh", "-c", script))


def test_every_file_with_real_clusters_is_run_once(ci: Any) -> None:
    there = {f"tests/e2e/{path.name}" for path in (ROOT / "tests" / "e2e").glob("test_*.py")}
    steps = [step for phase in ci.phases("python3.11", "", Path("/nowhere")) for step in phase]
    words = [word for step in steps for word in step.command]
    named = [name for word in words for name in re.findall(r"tests/e2e/\w+\.py", word)]
    assert Counter(named) == Counter(there)


def test_all_is_run_once_and_what_failed_is_named(
    ci: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tried = tmp_path / "tried"
    first = [shell(ci, "bad", f"echo why; echo again >>{tried}; exit 3"), shell(ci, "beside", "echo fine")]
    assert asyncio.run(ci.check([first, [shell(ci, "after", "echo later")]])) == 1
    said = capfd.readouterr().out
    assert tried.read_text() == "again\n"
    assert re.search(r"^why\n== bad: FAILED", said, re.MULTILINE)
    *_, table = said.partition("== seconds, outcome, step\n")
    assert re.findall(r"^ +\d+  (\w+) +(\w+)$", table, re.MULTILINE) == [
        *sorted([("FAILED", "bad"), ("ok", "beside")], key=lambda row: table.index(row[1])),
        ("ok", "after"),
    ]
    assert "failed: bad\n" in table


def test_what_steps_side_by_side_say_is_not_mixed_up(
    ci: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """They speak by turns: each waits for the other before it says the next."""
    there, back = tmp_path / "there", tmp_path / "back"
    os.mkfifo(there)
    os.mkfifo(back)
    ping = f"echo one; echo >{there}; read _ <{back}; echo two"
    pong = f"read _ <{there}; echo three; echo >{back}; echo four"
    assert asyncio.run(ci.check([[shell(ci, "ping", ping), shell(ci, "pong", pong)]])) == 0
    said = capfd.readouterr().out
    assert "one\ntwo\n" in said
    assert "three\nfour\n" in said


def test_a_report_is_counted_by_file(ci: Any, tmp_path: Path) -> None:
    (report := tmp_path / "report.xml").write_text(REPORT)
    files = ci.tests_by_file(report)
    assert {name: (str(counts), counts.seconds) for name, counts in files.items()} == {
        "e2e.test_one": ("1 passed, 1 failed", 3.0),
        "e2e.test_two": ("1 failed, 1 skipped", 2.0),
    }
    step = ci.Step("e2e: some", ("make", "e2e"), report)
    lines = ci.table([ci.Result(step, 2, 9.4, files)], 12.0)
    assert lines[-1] == "1 passed, 2 failed, 1 skipped"
    assert any("e2e.test_two" in line for line in lines)
    assert ci.tests_by_file(tmp_path / "none.xml") == {}


def test_its_own_end_is_that_of_its_steps_and_the_table_is_printed(tmp_path: Path) -> None:
    began = tmp_path / "began"
    os.mkfifo(began)
    script = f"""
import asyncio, ci
quick, long = ci.Step("quick", ("true",)), ci.Step("long", ("sh", "-c", "echo $$ >{began}; exec sleep 300"))
asyncio.run(ci.check([[quick], [long]]))
"""
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, cwd=ROOT / "tools", stdout=subprocess.PIPE, text=True) as process:
        pid = int(began.read_text())
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=60)
    table = said.partition("== seconds, outcome, step\n")[2]
    assert re.findall(r"^ +\d+  (\w+) +(\w+)$", table, re.MULTILINE) == [("ok", "quick"), ("FAILED", "long")]
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
