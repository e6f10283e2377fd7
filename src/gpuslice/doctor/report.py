"""Findings as text for people, and as `-o json` and `-o yaml` print them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gpuslice.doctor.finding import Finding, Level


class FindingReport(msgspec.Struct, frozen=True, rename="camel"):
    level: str
    code: str
    object: str
    sentence: str
    remedy: list[str]
    numbers: dict[str, int]


class DoctorReport(msgspec.Struct, frozen=True, rename="camel"):
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


def tell(findings: Sequence[Finding]) -> str:
    """The text for people: a block per finding, and a sum."""
    blocks = []
    for number, finding in enumerate(findings, 1):
        remedy = "".join(f"\n   -> {line}" for line in finding.remedy.splitlines())
        blocks.append(f"{number}. {finding.level}: {finding.sentence}{remedy}")
    return "\n\n".join([*blocks, _sum(findings)])


def _sum(findings: Sequence[Finding]) -> str:
    if not findings:
        return "nothing is wrong"
    counts = {"error": 0, "warning": 0}
    for finding in findings:
        counts[finding.level] += 1
    return ", ".join(f"{count} {level}{'s' if count > 1 else ''}" for level, count in counts.items() if count)
