"""Run all checks; `.ci/run` starts this. At the end it says how long each took, and what failed.

A step's output is printed whole when it ends: those of steps side by side are not mixed up. Nothing is
tried twice, and nothing is left out because something else failed. Standard library only: when it starts,
nothing is installed yet.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final
from xml.etree import ElementTree

ROOT: Final = Path(__file__).resolve().parent.parent
SIDE_BY_SIDE: Final = 3
"""Real clusters wait more than they compute: so many fit on two cores."""
PATIENCE: Final = 45 * 60
"""Seconds after which a step is ended. None needs half of them; the table shall be printed all the same."""
ENDED: Final = 124
"""The status of such a step."""
CLUSTERS: Final = (
    ("installing",),
    ("identity", "agent_alone"),
    ("lifecycle", "stories"),
    ("restarts", "chaos", "thousand_nodes"),
    ("wirings", "rights"),
    ("mig", "pools"),
    ("bare", "kwok", "image"),
)
"""The files of tests/e2e that share a cluster and what is installed on it; what takes longest comes first."""


@dataclass(frozen=True)
class Step:
    """A command, `make` mostly. If it runs pytest, that writes how each test went into `report`."""

    name: str
    command: Sequence[str]
    report: Path | None = None


@dataclass
class Counts:
    """The tests of a step or of one of its files."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0

    def __str__(self) -> str:
        parts = {"passed": self.passed, "failed": self.failed, "skipped": self.skipped}
        return ", ".join(f"{count} {what}" for what, count in parts.items() if count)

    def add(self, other: Counts) -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.seconds += other.seconds


@dataclass
class Result:
    """How a step ended: its exit status, the seconds it took, and its tests by file."""

    step: Step
    status: int
    seconds: float
    files: dict[str, Counts] = field(default_factory=dict)

    @property
    def outcome(self) -> str:
        return "FAILED" if self.status else "ok"

    @property
    def tests(self) -> Counts:
        total = Counts()
        for counts in self.files.values():
            total.add(counts)
        return total


def main() -> int:
    """0 if every step succeeded."""
    parser = argparse.ArgumentParser(description="Run all checks.")
    parser.add_argument("--newest", default="", help="the newest supported Python, if it is here")
    chosen = parser.parse_args()
    if not chosen.newest and os.environ.get("CI") == "true":
        print("no Python 3.13 here: the promise to support it cannot be checked", file=sys.stderr)
        return 1
    if not chosen.newest:
        print("skipped: tests on Python 3.13, which is not here")
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(check(phases(sys.executable, chosen.newest, Path(folder))))


def phases(oldest: str, newest: str, folder: Path) -> list[list[Step]]:
    """Those of a phase run side by side, phases one after the other: what computes has the machine alone."""

    def make(name: str, *words: str, python: str = oldest, tests: bool = False) -> Step:
        report = folder / f"{name}.xml" if tests else None
        return Step(name, ("make", f"PYTHON={python}", *words), report)

    clusters = [
        make(f"e2e: {', '.join(files)}", "e2e", f"E2E_TESTS={' '.join(map(e2e_file, files))}", tests=True)
        for files in CLUSTERS
    ]
    return [
        [make("install", "ready")],
        [make("lint", "lint"), make("audit", "audit")],
        [make("test, oldest Python", "test", tests=True)],
        [make("test, newest Python", "test", python=newest, tests=True)] if newest else [],
        [make("demo", "demo")],
        [make("programs", "programs")],
        # What the simulated cluster promises, promised by the real one, too.
        [*clusters, make("contract", "contract", tests=True)],
    ]


async def check(phases: Sequence[Sequence[Step]]) -> int:
    """Run the phases and print the table, even when ended before its time; 0 if every step succeeded."""
    whole = asyncio.current_task()
    assert whole is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, whole.cancel)
    began = time.monotonic()
    results: list[Result] = []
    try:
        for phase in phases:
            limit = asyncio.Semaphore(SIDE_BY_SIDE)
            async with asyncio.TaskGroup() as group:
                for step in phase:
                    group.create_task(done(step, limit, results))
    finally:
        print("\n".join(table(results, time.monotonic() - began)), flush=True)
    return 1 if any(result.status for result in results) else 0


def e2e_file(name: str) -> str:
    """The path of a test file of the real clusters."""
    return f"tests/e2e/test_{name}.py"


async def done(step: Step, limit: asyncio.Semaphore, results: list[Result]) -> None:
    """Run a step when there is room, and print what it said, however it ends."""
    async with limit:
        print(f"== begins: {step.name}", flush=True)
        began, status = time.monotonic(), ENDED
        with tempfile.TemporaryFile() as log:
            try:
                status = await run(step, log)
            finally:
                files = tests_by_file(step.report) if step.report else {}
                result = Result(step, status, time.monotonic() - began, files)
                results.append(result)
                log.seek(0)
                print(f"== {step.name}: {' '.join(step.command)}", flush=True)
                sys.stdout.buffer.write(log.read())
                print(f"== {step.name}: {result.outcome} after {result.seconds:.0f} s", flush=True)


async def run(step: Step, log: IO[bytes]) -> int:
    """Run a step to its end, or to that of our patience; its exit status."""
    environment = dict(os.environ)
    if step.report:
        given = environment.get("PYTEST_ADDOPTS", "")
        environment["PYTEST_ADDOPTS"] = f"{given} --junitxml={shlex.quote(str(step.report))}"
    process = await asyncio.create_subprocess_exec(
        *step.command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True
    )
    try:
        return await asyncio.wait_for(process.wait(), PATIENCE)
    except TimeoutError:
        return ENDED
    finally:
        await end(process)


async def end(process: asyncio.subprocess.Process) -> None:
    """End a step in order, so that tests take down their clusters; if it does not hurry, as it is."""
    for number, seconds in ((signal.SIGINT, 60), (signal.SIGKILL, 10)):
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError, TimeoutError):
                os.killpg(process.pid, number)
                await asyncio.wait_for(process.wait(), seconds)


def tests_by_file(report: Path) -> dict[str, Counts]:
    """What pytest's report says of each file; {} if there is none, because pytest never came so far."""
    found: dict[str, Counts] = {}
    if not report.exists():
        return found
    # pytest wrote it: there is nothing in it to be afraid of.
    for test in ElementTree.parse(report).iter("testcase"):  # noqa: S314
        counts = found.setdefault(test.get("classname", ""), Counts())
        kinds = {child.tag for child in test}
        failed, skipped = bool(kinds & {"failure", "error"}), "skipped" in kinds
        counts.add(Counts(not failed and not skipped, failed, skipped, float(test.get("time", 0))))
    return found


def table(results: Sequence[Result], seconds: float) -> list[str]:
    """What took how long, and how it ended. The files of a step with real clusters are listed below it."""
    lines = ["== seconds, outcome, step"]
    total = Counts()
    for result in results:
        total.add(result.tests)
        lines.append(
            f"{result.seconds:9.0f}  {result.outcome:6}  {result.step.name}  {result.tests}".rstrip()
        )
        if "e2e" in result.step.command:
            lines += [f"{each.seconds:9.0f}  {'':6}    {name}  {each}" for name, each in result.files.items()]
    lines.append(f"{seconds:9.0f}  {'':6}  in all")
    if failed := [result.step.name for result in results if result.status]:
        lines.append(f"failed: {', '.join(failed)}")
    return [*lines, f"{total.passed} passed, {total.failed} failed, {total.skipped} skipped"]


if __name__ == "__main__":
    try:
        sys.exit(main())
    except asyncio.CancelledError:
        sys.exit("ended before its time")
