"""Columns as Go's text/tabwriter makes them; the expected texts are from Go 1.24 with (0, 0, 2, ' ', 0)."""

from __future__ import annotations

import pytest

from gpuslice.cli.tabwriter import align


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("no cell", "no cell"),
        ("a\tb\nlonger\tc\n", "a       b\nlonger  c\n"),
        # What follows the last tab is no cell: it neither widens the column nor is padded.
        ("a\tvery long tail\nb\tx", "a  very long tail\nb  x"),
        # A terminated last cell is padded: trailing blanks.
        ("a\tb\t\nlonger\tc\t\n", "a       b  \nlonger  c  \n"),
        # A line without that cell ends the column; the next run has a width of its own.
        ("wide cell\tx\n\na\ty\n", "wide cell  x\n\na  y\n"),
        ("aaaa\tb\tc\nd\te\nf\tgggg\th", "aaaa  b  c\nd     e\nf     gggg  h"),
        ("\t\tx\na\tb\ty", "      x\na  b  y"),
    ],
)
def test_cells_line_up(text: str, expected: str) -> None:
    assert align(text) == expected
