"""Findings as `-o json` and `-o yaml` print them."""

from __future__ import annotations

from collections.abc import Sequence

from gpuslice.cli.doctor.finding import Finding, Level
from gpuslice.cli.output import Report


class FindingReport(Report, frozen=True):
    level: str
    code: str
    object: str
    sentence: str
    remedy: list[str]
    numbers: dict[str, int]


class DoctorReport(Report, frozen=True):
    errors: int
    warnings: int
    findings: list[FindingReport]


def report(findings: Sequence[Finding]) -> DoctorReport:
    """The same as the text, for programs."""
    return DoctorReport(
        sum(finding.level is Level.ERROR for finding in findings),
        sum(finding.level is Level.WARNING for finding in findings),
        [
            FindingReport(
                str(one.level),
                one.code,
                one.object,
                one.sentence,
                one.remedy.splitlines(),
                dict(one.numbers),
            )
            for one in findings
        ],
    )
