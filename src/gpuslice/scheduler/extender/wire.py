"""The extender's wire format: bytes to values and back.

k8s.io/kube-scheduler/extender/v1 carries no JSON tags, so kube-scheduler sends and expects Go's own casing
(`NodeNames`). Go decodes keys in any casing, and hand-written clients rely on it: keys that are not found in
Go's casing are looked for in any. Node names stay raw bytes: the same list comes with every pod and is
recognised without decoding it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from gpuslice.errors import InputError
from gpuslice.kube.wire import ObjectMeta, Pod, Wire

ABSENT = msgspec.Raw(b"")
"""A key that was not sent. kube-scheduler sends every key, with null where there is no value."""
NULL = msgspec.Raw(b"null")


class FilterArgs(msgspec.Struct, frozen=True, gc=False, rename="pascal"):
    """ExtenderArgs: filter and prioritize."""

    pod: msgspec.Raw = ABSENT
    nodes: msgspec.Raw = ABSENT
    node_names: msgspec.Raw = ABSENT


class BindArgs(msgspec.Struct, frozen=True, gc=False):
    """ExtenderBindingArgs."""

    pod_name: str = msgspec.field(default="", name="PodName")
    pod_namespace: str = msgspec.field(default="", name="PodNamespace")
    pod_uid: str = msgspec.field(default="", name="PodUID")
    node: str = msgspec.field(default="", name="Node")


class PreemptArgs(msgspec.Struct, frozen=True, gc=False, rename="pascal"):
    """ExtenderPreemptionArgs."""

    pod: msgspec.Raw = ABSENT
    node_name_to_victims: msgspec.Raw = ABSENT
    node_name_to_meta_victims: msgspec.Raw = ABSENT


class Victims(msgspec.Struct, frozen=True, gc=False):
    """MetaVictims or Victims, whichever was sent: only the uids matter."""

    uids: tuple[str, ...]
    pdb_violations: int = 0


class _MetaPod(msgspec.Struct, frozen=True, gc=False):
    uid: str = msgspec.field(default="", name="UID")


class _MetaVictims(msgspec.Struct, frozen=True, gc=False):
    pods: list[_MetaPod] | None = msgspec.field(default=None, name="Pods")
    violations: int = msgspec.field(default=0, name="NumPDBViolations")


class _OnlyMeta(Wire, frozen=True, gc=False):
    metadata: ObjectMeta = ObjectMeta()


class _FullVictims(msgspec.Struct, frozen=True, gc=False):
    pods: list[_OnlyMeta] | None = msgspec.field(default=None, name="Pods")
    violations: int = msgspec.field(default=0, name="NumPDBViolations")


class _RawNodes(Wire, frozen=True, gc=False):
    items: list[msgspec.Raw] | None = None


T = TypeVar("T", bound=msgspec.Struct)
_pod = msgspec.json.Decoder(Pod)
_names = msgspec.json.Decoder(list[str])
_raw_nodes = msgspec.json.Decoder(_RawNodes)
_only_meta = msgspec.json.Decoder(_OnlyMeta)
_meta_victims = msgspec.json.Decoder(dict[str, _MetaVictims])
_full_victims = msgspec.json.Decoder(dict[str, _FullVictims])
_loose = msgspec.json.Decoder(dict[str, msgspec.Raw])
_decoders: dict[type[msgspec.Struct], msgspec.json.Decoder[msgspec.Struct]] = {
    kind: msgspec.json.Decoder(kind) for kind in (FilterArgs, BindArgs, PreemptArgs)
}


def decode(body: bytes, kind: type[T]) -> T:
    """Read a request body in Go's casing or any other. Raises InputError with one sentence.

    An empty body is Go's `EOF`, as gpushare's extender answers.
    """
    if not body.strip():
        raise InputError("EOF")
    try:
        args = _decoders[kind].decode(body)
        if not all(msgspec.structs.astuple(args)):
            args = _decode_any_case(body, kind)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InputError(f"the body is not a {kind.__name__}: {error}") from error
    assert isinstance(args, kind)
    return args


def _decode_any_case(body: bytes, kind: type[T]) -> msgspec.Struct:
    wanted = {name.casefold(): name for name in (f.encode_name for f in msgspec.structs.fields(kind))}
    loose = {
        wanted[key.casefold()]: value
        for key, value in _loose.decode(body).items()
        if key.casefold() in wanted
    }
    return _decoders[kind].decode(msgspec.json.encode(loose))


def given(raw: msgspec.Raw) -> bool:
    """True if a key was sent with something in it."""
    return raw not in (ABSENT, NULL)


def decode_pod(raw: msgspec.Raw) -> Pod | None:
    """The pod of a request; None if there is none. Raises InputError."""
    if not given(raw):
        return None
    try:
        return _pod.decode(raw)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InputError(f"the pod cannot be read: {error}", field="Pod") from error


def decode_names(raw: bytes) -> list[str]:
    """NodeNames. Raises InputError."""
    try:
        return _names.decode(raw)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise InputError(f"not a list of node names: {error}", field="NodeNames") from error


def decode_nodes(raw: msgspec.Raw) -> dict[str, msgspec.Raw]:
    """Nodes (whole objects, nodeCacheCapable false) by name. Raises InputError."""
    try:
        items = _raw_nodes.decode(raw).items or []
        return {_only_meta.decode(item).metadata.name: item for item in items}
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InputError(f"not a list of nodes: {error}", field="Nodes") from error


def decode_victims(args: PreemptArgs) -> Mapping[str, Victims]:
    """What kube-scheduler would evict, by node, from either form. Raises InputError."""
    try:
        if given(args.node_name_to_meta_victims):
            meta = _meta_victims.decode(args.node_name_to_meta_victims)
            return {n: Victims(tuple(p.uid for p in v.pods or ()), v.violations) for n, v in meta.items()}
        if given(args.node_name_to_victims):
            full = _full_victims.decode(args.node_name_to_victims)
            return {
                n: Victims(tuple(p.metadata.uid for p in v.pods or ()), v.violations) for n, v in full.items()
            }
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InputError(f"the victims cannot be read: {error}", field="NodeNameToMetaVictims") from error
    return {}


def encode_victims(kept: Mapping[str, Victims]) -> bytes:
    """ExtenderPreemptionResult."""
    return msgspec.json.encode(
        {
            "NodeNameToMetaVictims": {
                node: {"Pods": [{"UID": uid} for uid in v.uids], "NumPDBViolations": v.pdb_violations}
                for node, v in kept.items()
            }
        }
    )


def filter_error(message: str) -> bytes:
    """ExtenderFilterResult that fails the whole attempt; kube-scheduler shows the text as the event."""
    return msgspec.json.encode(
        {
            "Nodes": None,
            "NodeNames": None,
            "FailedNodes": None,
            "FailedAndUnresolvableNodes": None,
            "Error": message,
        }
    )


def filter_result(names: bytes, nodes: bytes, failed: bytes) -> bytes:
    """ExtenderFilterResult from parts that are JSON already."""
    return b'{"Nodes":%b,"NodeNames":%b,"FailedNodes":%b,"FailedAndUnresolvableNodes":{},"Error":""}' % (
        nodes,
        names,
        failed,
    )


def bind_result(message: str) -> bytes:
    """ExtenderBindingResult."""
    return msgspec.json.encode({"Error": message})
