"""Columns as Go's text/tabwriter makes them (minwidth 0, tabwidth 0, padding 2, blanks).

kubectl's plugins print with it, and scripts cut their columns. A cell ends with a tab; what follows the
last tab of a line is no cell. A column is a run of consecutive lines that have a cell there: a shorter line
ends it, and the next run has a width of its own.
"""

from __future__ import annotations

PADDING = 2


def align(text: str) -> str:
    """Replace the tabs of a text by blanks."""
    rows = [line.split("\t") for line in text.split("\n")]
    widths = [[0] * (len(row) - 1) for row in rows]
    for column in range(max(len(row) for row in rows) - 1):
        start = 0
        while start < len(rows):
            end = start
            while end < len(rows) and len(rows[end]) - 1 > column:
                end += 1
            if end > start:
                width = max(len(row[column]) for row in rows[start:end]) + PADDING
                for line in range(start, end):
                    widths[line][column] = width
            start = end + 1 if end == start else end
    return "\n".join(
        "".join(cell.ljust(width) for cell, width in zip(row, [*own, 0], strict=True))
        for row, own in zip(rows, widths, strict=True)
    )
