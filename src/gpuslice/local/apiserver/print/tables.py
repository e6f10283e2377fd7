"""Server-side tables: what `kubectl get` prints. The cells of each kind are made in `printers`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from gpuslice.clock import Clock
from gpuslice.local.apiserver.print import printers
from gpuslice.local.apiserver.print.cells import age, json_path
from gpuslice.local.apiserver.schema.kinds import Column, Kind
from gpuslice.local.apiserver.schema.objects import convert, decode, encode
from gpuslice.local.apiserver.schema.status import Json

_TYPES = {"s": "string", "i": "integer", "d": "date", "b": "boolean"}


def wanted(accept: str) -> bool:
    """Whether the client asks for a table before anything else."""
    for option in accept.split(","):
        if "as=Table" in option:
            return "g=meta.k8s.io" in option and ("v=v1" in option or "v=v1beta1" in option)
        if option.strip().startswith("application/json"):
            return False
    return False


class Tables:
    """Renders objects of any kind as rows."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def table(
        self, kind: Kind, raws: Iterable[bytes], meta: Json, *, include: str = "", head: bool = True
    ) -> Json:
        """A `metav1.Table`. `include`: Metadata (the default), Object, or None of each row's object."""
        cells = self._cells(kind)
        moment = self._clock.now_ns() // 1_000_000_000
        rows = []
        for raw in raws:
            obj = decode(raw)
            row: Json = {"cells": cells(obj, moment)}
            if include != "None":
                row["object"] = _row_object(kind, obj, include)
            rows.append(row)
        table: Json = {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": meta}
        table["columnDefinitions"] = self.columns(kind) if head else []
        table["rows"] = rows
        return table

    def columns(self, kind: Kind) -> list[Json]:
        """The column definitions of a kind."""
        if kind.custom is not None:
            first = _column("Name", "string", format_="name")
            if not kind.custom.columns:
                return [first, _column("Age", "date")]
            return [first] + [
                _column(one.name, one.type, one.priority, one.format, one.description)
                for one in kind.custom.columns
            ]
        found = []
        for text in printers.COLUMNS.get(kind.storage, "Name:s* Age:s").split():
            name, _, rest = text.rpartition(":")
            found.append(
                _column(
                    name.replace("_", " "),
                    _TYPES[rest[0]],
                    1 if "1" in rest else 0,
                    "name" if rest.endswith("*") else "",
                )
            )
        return found

    def renderer(self, kind: Kind, include: str) -> Callable[[str, bytes], bytes]:
        """Watch events as tables; only the first carries the column definitions."""
        head = [True]

        def render(type_: str, raw: bytes) -> bytes:
            meta = {"resourceVersion": decode(raw)["metadata"].get("resourceVersion", "")}
            table = self.table(kind, [raw], meta, include=include, head=head[0])
            head[0] = False
            return encode({"type": type_, "object": table}) + b"\n"

        return render

    def _cells(self, kind: Kind) -> Callable[[Json, int], list[Any]]:
        if kind.custom is not None:
            columns = kind.custom.columns
            if columns:
                return lambda obj, moment: (
                    [obj["metadata"]["name"]] + [_custom_cell(obj, column, moment) for column in columns]
                )
            return lambda obj, moment: [obj["metadata"]["name"], obj["metadata"].get("creationTimestamp")]
        found = printers.CELLS.get(kind.storage)
        if found is None:
            return lambda obj, moment: [
                obj["metadata"]["name"],
                age(obj["metadata"].get("creationTimestamp"), moment),
            ]
        rows = found
        return lambda obj, moment: (
            [obj["metadata"]["name"], *rows(obj, moment)]
            if not printers.is_bare(kind.storage)
            else rows(obj, moment)
        )


def _column(name: str, type_: str, priority: int = 0, format_: str = "", description: str = "") -> Json:
    return {
        "name": name,
        "type": type_,
        "format": format_,
        "description": description or name,
        "priority": priority,
    }


def _row_object(kind: Kind, obj: Json, include: str) -> Json:
    if include == "Object":
        return convert(kind, obj)
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}


def _custom_cell(obj: Json, column: Column, moment: int) -> Any:
    values = json_path(obj, column.path)
    if not values:
        return None
    if column.type == "date":
        return age(values[0], moment) if isinstance(values[0], str) else "<invalid>"
    if column.type in ("integer", "number", "boolean"):
        return values[0]
    if len(values) == 1 and isinstance(values[0], str):
        return values[0]
    return ",".join(one if isinstance(one, str) else encode(one).decode() for one in values)
