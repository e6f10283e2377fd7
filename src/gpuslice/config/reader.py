"""From a YAML file to a struct: unknown keys, wrong types and repeated keys are errors, never ignored."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import yaml

from gpuslice.errors import InputError

S = TypeVar("S", bound="Section")

API_VERSION: Final = "gpuslice.io/v1alpha1"


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Base of everything in a file: camelCase keys, and only the known ones."""


class _Loader(yaml.SafeLoader):
    """YAML's safe subset, without repeated keys: the last one would win silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[object] = set()
        for key, _ in node.value:
            name = key.value
            if name in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {name!r} appears twice", key.start_mark
                )
            seen.add(name)
        return super().construct_mapping(node, deep=deep)


def read_document(path: Path, kind: str, model: type[S]) -> S:
    """Read one YAML document of that kind. Raises InputError naming the file and the place in it."""
    try:
        text = path.read_text()
    except FileNotFoundError as error:
        raise InputError("there is no such file", field=str(path)) from error
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InputError(f"cannot be read: {why}", field=str(path)) from error
    try:
        return parse(text, kind, model)
    except InputError as error:
        raise InputError(str(error), field=str(path)) from error


def parse(text: str, kind: str, model: type[S]) -> S:
    """Read a document's text. Raises InputError naming the place."""
    try:
        document = yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        raise InputError(_explain_yaml(error)) from error
    if not isinstance(document, dict):
        raise InputError(f"expected a mapping with apiVersion, kind: {kind} and spec")
    document = dict(document)
    for key, wanted in (("apiVersion", API_VERSION), ("kind", kind)):
        found = document.pop(key, None)
        if found != wanted:
            said = f"{found!r} is not known here" if found is not None else "missing"
            raise InputError(f"{said}; write {wanted}", field=key)
    try:
        return msgspec.convert(document, model)
    except msgspec.ValidationError as error:
        raise _explain(str(error)) from error


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


def _explain(message: str) -> InputError:
    """msgspec's sentence in the words of the file."""
    match = _PLACE.fullmatch(message)
    assert match is not None  # the pattern matches any text
    what, path = match["what"], match["path"] or ""
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", what):
        what = f"unknown key {unknown[1]!r}; remove it or mend its spelling"
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
    return InputError(what, field=path)
