"""Label and field selectors: the text of a query and the LabelSelector of an object, as predicates.

Source of the grammar: apimachinery `labels.Parse` and `fields.ParseSelector`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from gpuslice.local.apiserver.schema.status import bad_request

Labels = Mapping[str, str]
_KEY = r"[A-Za-z0-9](?:[A-Za-z0-9._/-]*[A-Za-z0-9])?"
_VALUE = r"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)?"
_SET = re.compile(rf"({_KEY})\s+(in|notin)\s+\(([^()]*)\)")
_EQUAL = re.compile(rf"({_KEY})\s*(==|=|!=)\s*({_VALUE})")
_COMPARE = re.compile(rf"({_KEY})\s*(<|>)\s*(-?\d+)")
_EXISTS = re.compile(rf"(!?)\s*({_KEY})")


@dataclass(frozen=True, slots=True)
class Requirement:
    """One clause: operator is `in`, `notin`, `exists`, `!`, `gt` or `lt`."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def matches(self, labels: Labels) -> bool:
        """Whether the labels satisfy this clause."""
        value = labels.get(self.key)
        match self.operator:
            case "in":
                return value is not None and value in self.values
            case "notin":
                return value is None or value not in self.values
            case "exists":
                return value is not None
            case "!":
                return value is None
        bound = int(next(iter(self.values)))
        if value is None or not re.fullmatch(r"-?\d+", value):
            return False
        return int(value) > bound if self.operator == "gt" else int(value) < bound


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """All clauses must hold; no clause matches everything."""

    clauses: tuple[Requirement, ...] = ()

    def matches(self, labels: Labels) -> bool:
        """Whether the labels satisfy every clause."""
        return all(clause.matches(labels) for clause in self.clauses)


@lru_cache(1024)
def parse_labels(text: str) -> LabelSelector:
    """Read `app=web,tier in (a,b),!canary`. Raises a 400 Failure for anything else."""
    rest, clauses = text.strip(), []
    while rest:
        if found := _SET.match(rest):
            values = frozenset(value.strip() for value in found[3].split(","))
            clauses.append(Requirement(found[1], found[2], values))
        elif found := _COMPARE.match(rest):
            clauses.append(Requirement(found[1], "gt" if found[2] == ">" else "lt", frozenset((found[3],))))
        elif found := _EQUAL.match(rest):
            operator = "notin" if found[2] == "!=" else "in"
            clauses.append(Requirement(found[1], operator, frozenset((found[3],))))
        elif found := _EXISTS.match(rest):
            clauses.append(Requirement(found[2], "!" if found[1] else "exists"))
        else:
            raise bad_request(f"unable to parse requirement: found {rest!r}, expected: identifier")
        rest = rest[found.end() :].lstrip()
        if rest and not rest.startswith(","):
            raise bad_request(
                f"unable to parse requirement: found {rest!r}, expected: ',' or 'end of string'"
            )
        rest = rest[1:].lstrip()
    return LabelSelector(tuple(clauses))


_OPERATORS = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "!"}


def label_selector(selector: Mapping[str, Any] | None) -> LabelSelector:
    """The predicate of a `metav1.LabelSelector` object; an empty one matches everything."""
    selector = selector or {}
    clauses = [
        Requirement(key, "in", frozenset((value,)))
        for key, value in (selector.get("matchLabels") or {}).items()
    ]
    clauses += [
        Requirement(
            clause.get("key", ""),
            _OPERATORS.get(clause.get("operator", ""), "exists"),
            frozenset(clause.get("values") or ()),
        )
        for clause in selector.get("matchExpressions") or ()
    ]
    return LabelSelector(tuple(clauses))


def selector_text(selector: Mapping[str, Any] | None) -> str:
    """A LabelSelector object in query syntax, as `scale` publishes it."""
    selector = selector or {}
    parts = [f"{key}={value}" for key, value in sorted((selector.get("matchLabels") or {}).items())]
    for clause in selector.get("matchExpressions") or ():
        key, operator = clause.get("key", ""), clause.get("operator", "")
        if operator in ("In", "NotIn"):
            parts.append(f"{key} {operator.lower()} ({','.join(sorted(clause.get('values') or ()))})")
        else:
            parts.append(key if operator == "Exists" else f"!{key}")
    return ",".join(parts)


@dataclass(frozen=True, slots=True)
class FieldSelector:
    """Clauses (path, equal?, value); all must hold."""

    clauses: tuple[tuple[str, bool, str], ...] = ()

    def matches(self, field: Callable[[str], str]) -> bool:
        """Whether the fields, read by path, satisfy every clause."""
        return all((field(path) == value) is equal for path, equal, value in self.clauses)

    def exact(self, path: str) -> str | None:
        """The value that the selector demands of a path, if it demands one."""
        for name, equal, value in self.clauses:
            if name == path and equal:
                return value
        return None


@lru_cache(1024)
def parse_fields(text: str) -> FieldSelector:
    """Read `spec.nodeName=n1,status.phase!=Failed`. Raises a 400 Failure for anything else."""
    clauses = []
    for part in re.split(r"(?<!\\),", text) if text else ():
        if not part.strip():
            continue
        found = re.fullmatch(r"\s*([^=!]+?)\s*(==|=|!=)(.*)", part)
        if found is None:
            raise bad_request(f"invalid selector: '{part}'; can't understand '{part}'")
        value = re.sub(r"\\([,=\\])", r"\1", found[3].strip())
        clauses.append((found[1], found[2] != "!=", value))
    return FieldSelector(tuple(clauses))
