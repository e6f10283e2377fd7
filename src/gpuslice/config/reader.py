"""From a YAML file to a struct: unknown keys, wrong types and repeated keys are errors, never ignored."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar, get_args, get_origin

import msgspec
import yaml

from gpuslice.errors import InputError

S = TypeVar("S", bound="Section")
T = TypeVar("T")

ALIASED: Final = 100_000
"""So many values may a document's aliases stand for, beside those that are written in it."""
API_VERSION: Final = "gpuslice.io/v1alpha1"


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Base of everything in a file: camelCase keys, and only the known ones."""


class _Loader(yaml.SafeLoader):
    """YAML's safe subset, without repeated keys (the last one would win silently) and without numbers to the
    base of 60, which Kubernetes does not read either: `devices: [1:1]` is a MIG device, not GPU 61.

    A line of aliases can stand for a thousand times the line before: they are counted as what they stand for.
    """

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self._written = 0
        self._sizes: dict[int, int] = {}
        """Of each node, by its id: how many there were if its aliases were written out."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        is_alias = self.check_event(yaml.AliasEvent)
        node = super().compose_node(parent, index)
        if node is None or (is_alias and id(node) in self._sizes):
            return node
        if is_alias:
            raise yaml.composer.ComposerError(None, None, "an alias (*) stands for what it is in", mark)
        self._written += 1
        inner = node.value if isinstance(node, yaml.CollectionNode) else ()
        parts = (part for one in inner for part in (one if isinstance(one, tuple) else (one,)))
        size = self._sizes[id(node)] = 1 + sum(self._sizes[id(part)] for part in parts)
        if size > self._written + ALIASED:
            why = f"aliases (*) stand for more than {ALIASED} values; write out what is meant"
            raise yaml.composer.ComposerError(None, None, why, mark)
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[object] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key must be text", key.start_mark)
            name = key.value
            if name in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {name!r} appears twice", key.start_mark
                )
            seen.add(name)
        return super().construct_mapping(node, deep=deep)


_INT: Final = "tag:yaml.org,2002:int"
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _INT]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    _INT, re.compile(r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0[0-7_]*|[1-9][0-9_]*)$"), list("-+0123456789")
)


def read_document(path: Path, kind: str, model: type[S]) -> S:
    """Read one YAML document of that kind. Raises InputError naming the file and the place in it."""
    return read_file(path, lambda text: parse(text, kind, model))


def read_file(path: Path, parse: Callable[[str], T]) -> T:
    """What `parse` makes of a file's text. Raises InputError naming the file and the place in it."""
    try:
        text = path.read_text()
    except FileNotFoundError as error:
        raise InputError("there is no such file", field=str(path)) from error
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InputError(f"cannot be read: {why}", field=str(path)) from error
    try:
        return parse(text)
    except InputError as error:
        raise InputError(str(error), field=str(path)) from error


def load_yaml(text: str) -> Any:
    """The value of one YAML (or JSON) document. Raises InputError naming line and column."""
    return _load(text, yaml.load)


def load_yamls(text: str) -> list[Any]:
    """The values of all documents of a file. Raises InputError naming line and column."""
    return _load(text, lambda stream, Loader: list(yaml.load_all(stream, Loader=Loader)))  # noqa: N803


def _load(text: str, load: Callable[..., T]) -> T:
    try:
        return load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise InputError(_explain_yaml(error)) from error
    except RecursionError as error:
        raise InputError("nested too deeply") from error
    except ValueError as error:  # a date that is none, such as 2026-13-45
        raise InputError(f"not YAML: {error}; put text that looks like a date in quotes") from error


def parse(text: str, kind: str, model: type[S]) -> S:
    """Read a document's text. Raises InputError naming the place."""
    document = load_yaml(text)
    if not isinstance(document, dict):
        raise InputError(f"expected a mapping with apiVersion, kind: {kind} and spec")
    document = dict(document)
    for key, wanted in (("apiVersion", API_VERSION), ("kind", kind)):
        found = document.pop(key, None)
        if found != wanted:
            said = f"{found!r} is not known here" if found is not None else "missing"
            raise InputError(f"{said}; write {wanted}", field=key)
    return convert(document, model)


def convert(document: object, model: type[S]) -> S:
    """The struct that a document's value stands for. Raises InputError naming the place."""
    try:
        return msgspec.convert(document, model)
    except msgspec.ValidationError as error:
        what, path = explain(str(error), model)
        raise InputError(what, field=path) from error


def _places(model: type[Section], at: str = "") -> Iterator[tuple[str, str]]:
    """Every key that a model knows and where it belongs, such as ("cpu", "spec.nodes[]")."""
    for field in msgspec.structs.fields(model):
        yield field.encode_name, at
        place = f"{at}.{field.encode_name}" if at else field.encode_name
        for nested, many in _nested(field.type):
            yield from _places(nested, f"{place}[]" if many else place)


def _nested(annotation: Any, many: bool = False) -> Iterator[tuple[type[Section], bool]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation, many
    for argument in get_args(annotation):
        yield from _nested(argument, many or get_origin(annotation) is tuple)


def _unknown(key: str, model: type[Section]) -> str:
    """What is wrong with a key that is not known where it stands."""
    places: dict[str, list[str]] = {}
    for known, place in _places(model):
        places.setdefault(known, []).append(place)
    if key in places:
        there = " or ".join(f"under {place}" if place else "at the top" for place in places[key])
        return f"unknown key {key!r}: it belongs {there}"
    meant = difflib.get_close_matches(key, places, n=1, cutoff=0.75)
    return f"unknown key {key!r}; " + (f"write {meant[0]}?" if meant else "remove it or mend its spelling")


def _explain_yaml(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or " ".join(str(error).split())
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}" if mark else f"not YAML: {problem}"


_TYPES: Final = {
    "int": "a whole number",
    "float": "a number",
    "str": "text (in quotes, if it looks like something else)",
    "bool": "true or false",
    "array": "a list",
    "object": "a mapping",
    "null": "nothing",
}
_PLACE = re.compile(r"(?P<what>.*?)(?: - at `(?P<key>key in )?\$\.?(?P<path>.*)`)?", re.DOTALL)


def explain(message: str, model: type[Section] = Section) -> tuple[str, str]:
    """msgspec's sentence in the words of the file, and the place in it."""
    match = _PLACE.fullmatch(message)
    assert match is not None  # the pattern matches any text
    what, path = match["what"], match["path"] or ""
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", what):
        what = _unknown(unknown[1], model)
    elif missing := re.fullmatch(r"Object missing required field `(.*)`", what):
        what = f"key {missing[1]!r} is missing"
    elif types := re.fullmatch(r"Expected `(.*)`, got `(.*)`", what):
        wanted = " or ".join(_TYPES.get(one, one) for one in types[1].split(" | "))
        what = f"expected {wanted}, not {_TYPES.get(types[2], types[2]).partition(' (')[0]}"
    elif least := re.fullmatch(r"Expected `int` >= (.*)", what):
        what = f"write a whole number of at least {least[1]}"
    elif most := re.fullmatch(r"Expected `int` <= (.*)", what):
        what = f"write a whole number of at most {most[1]}"
    elif value := re.fullmatch(r"Invalid enum value (.*)", what):
        what = f"{value[1]} is not one of the known values"
    else:
        what = what[:1].lower() + what[1:].replace("`", "")
    return what, path
