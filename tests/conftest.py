"""A check that cannot run says so, and fails in CI: nobody shall take a suite that did not run for one that passed."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

CI = os.environ.get("CI", "").lower() in ("true", "1")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if CI and report.skipped and not hasattr(report, "wasxfail"):
        _, _, why = report.longrepr if isinstance(report.longrepr, tuple) else ("", 0, str(report.longrepr))
        report.outcome, report.longrepr = "failed", f"this is CI, where nothing is skipped: {why}"
    return report
