"""Decodes the API server's bytes, so that an object which does not decode leaves the other objects unharmed.

A list is decoded in one go, which is fast. Only if that fails it is taken apart, and each object is looked at
alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final, Generic, TypeVar, get_args, get_origin

import msgspec

from gpuslice.kube.wire import KubeObject, ObjectMeta, Wire

K = TypeVar("K", bound=KubeObject)

DEEPEST: Final = 100
"""Levels of JSON that are looked at: no field of ours is so deep. Whoever may write an object may give its
managedFields thousands of them, and a decoder ends at the interpreter's limit."""
UNREADABLE: Final = (msgspec.DecodeError, UnicodeError)
_TOKEN: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Broken(Generic[K]):
    """An object that does not decode: `object` has of its fields what could be read, `problem` says why."""

    object: K
    problem: str


class ListMeta(Wire, frozen=True, gc=False):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _RawList(Wire, frozen=True, gc=False):
    metadata: ListMeta = ListMeta()
    items: list[msgspec.Raw] | None = None


@cache
def _decoder(kind: type[K]) -> msgspec.json.Decoder[K]:
    return msgspec.json.Decoder(kind)


@cache
def _list_decoder(kind: type[KubeObject]) -> msgspec.json.Decoder[Wire]:
    model = msgspec.defstruct(
        f"{kind.__name__}List",
        [
            ("metadata", ListMeta, ListMeta()),
            ("items", list[kind] | None, None),  # type: ignore[valid-type]
        ],
        bases=(Wire,),
        frozen=True,
        gc=False,
    )
    return msgspec.json.Decoder(model)


_raw_list: Final = msgspec.json.Decoder(_RawList)


def decode_list(kind: type[K], body: bytes) -> tuple[list[K], list[Broken[K]], ListMeta]:
    """The objects of a list, those that do not decode, and the list's own metadata.

    Raises msgspec.DecodeError or UnicodeError if it is no list.
    """
    try:
        return _whole_list(kind, body)
    except RecursionError:
        body = shallow(body)
    except UNREADABLE:
        pass
    raw = _raw_list.decode(body)
    items: list[K] = []
    broken: list[Broken[K]] = []
    for one in raw.items or ():
        read = decode_item(kind, one)
        if isinstance(read, Broken):
            broken.append(read)
        else:
            items.append(read)
    return items, broken, raw.metadata


def _whole_list(kind: type[K], body: bytes) -> tuple[list[K], list[Broken[K]], ListMeta]:
    page = _list_decoder(kind).decode(body)
    return page.items or [], [], page.metadata  # type: ignore[attr-defined]


def decode_one(kind: type[K], body: bytes | msgspec.Raw) -> K:
    """One object. Raises msgspec.DecodeError or UnicodeError."""
    decoder: msgspec.json.Decoder[K] = _decoder(kind)
    try:
        return decoder.decode(body)
    except RecursionError:
        return decoder.decode(shallow(bytes(body)))


def decode_item(kind: type[K], body: bytes | msgspec.Raw) -> K | Broken[K]:
    """One object, or what can be said of it. Never raises."""
    try:
        return decode_one(kind, body)
    except UNREADABLE as error:
        problem = str(error)
    try:
        value = msgspec.json.decode(shallow(bytes(body)))
    except UNREADABLE:
        value = {}
    return Broken(_salvaged(kind, value), problem)


def shallow(body: bytes) -> bytes:
    """JSON with everything that is nested too deeply taken for null."""
    kept: list[bytes] = []
    depth = begin = 0
    for token in _TOKEN.finditer(body):
        match body[token.start()]:
            case 0x5B | 0x7B:  # [ {
                depth += 1
                if depth == DEEPEST + 1:
                    kept += (body[begin : token.start()], b"null")
            case 0x5D | 0x7D:  # ] }
                depth -= 1
                if depth == DEEPEST:
                    begin = token.end()
    return b"".join((*kept, body[begin:])) if depth < DEEPEST else b"null"


def _salvaged(model: type[K], value: object) -> K:
    """What of an object's fields can be read one by one; the others are as if they were absent."""
    found = {}
    for field in msgspec.structs.fields(model):
        if isinstance(value, Mapping) and field.encode_name in value:
            part = value[field.encode_name]
            try:
                found[field.name] = msgspec.convert(part, field.type)
            except msgspec.ValidationError:
                if (inner := _inner(field.type)) is not None:
                    found[field.name] = _salvaged(inner, part)
                elif (inner := _element(field.type)) is not None and isinstance(part, list):
                    found[field.name] = tuple(_salvaged(inner, one) for one in part)
    return model(**found)


def _inner(annotation: object) -> type | None:
    """The struct that a field holds, if it holds one."""
    kinds = [annotation, *get_args(annotation)] if get_origin(annotation) is not tuple else []
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Wire)), None)


def _element(annotation: object) -> type | None:
    """The struct that a field holds any number of, if it does."""
    for kind in (annotation, *get_args(annotation)):
        if get_origin(kind) is tuple:
            return _inner(get_args(kind)[0])
    return None


class _Mark(Wire, frozen=True, gc=False):
    metadata: ObjectMeta = ObjectMeta()


def decode_mark(body: msgspec.Raw) -> ObjectMeta:
    """The metadata of what is no object that could exist: a Pod's bookmark has `containers: null`."""
    return decode_one(_Mark, body).metadata  # type: ignore[type-var]
