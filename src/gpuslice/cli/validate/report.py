"""What `gpuslice validate -o` prints."""

from __future__ import annotations

from collections.abc import Sequence

from gpuslice.cli.output import Report
from gpuslice.cli.validate.examine import Examined


class FindingReport(Report, frozen=True):
    level: str
    file: str
    object: str
    field: str
    sentence: str


class ValidateReport(Report, frozen=True):
    pods: int
    configurations: int
    findings: tuple[FindingReport, ...]


def report(examined: Sequence[Examined]) -> ValidateReport:
    """The same values with the names that programs read."""
    return ValidateReport(
        sum(one.pods for one in examined),
        sum(one.configurations for one in examined),
        tuple(
            FindingReport(finding.level, finding.file, finding.object, finding.field, finding.sentence)
            for one in examined
            for finding in one.findings
        ),
    )
