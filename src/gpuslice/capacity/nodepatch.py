"""Makes the patches by which a pool writes labels, taints and cordons on its nodes, and removes them again.
Pure.

What was written is recorded in an annotation of the node, so that a label which somebody else set is never
removed, and a label that the pool no longer has is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from gpuslice import names
from gpuslice.capacity.nodepool import DesiredPool
from gpuslice.cluster.text import decode
from gpuslice.devices.migstate import MigState
from gpuslice.devices.sharing import MigStrategy
from gpuslice.errors import InputError
from gpuslice.kube.wire import Node, Taint, Wire


class NodeRecord(Wire, frozen=True, gc=False):
    """The annotation. `made`: the machine was made for the pool. `config`: how the GPUs are to be
    partitioned.

    `uid` is the pool's: a pool of the same name with another uid is another pool. `cordoned`: we cordoned the
    node, so that it is ours to undo.
    """

    pool: str = ""
    uid: str = ""
    made: bool = False
    labels: tuple[str, ...] = ()
    taints: tuple[str, ...] = ()
    config: str = ""
    cordoned: bool = False


_decoder: Final = msgspec.json.Decoder(NodeRecord)


def read_record(node: Node) -> NodeRecord:
    """What a pool wrote on the node; an empty record if none did, or if it cannot be read."""
    try:
        return decode(_decoder, node.annotations.get(names.POOL_RECORD, "{}"))
    except InputError:
        return NodeRecord()


def labels_of(desired: DesiredPool, *, made: bool) -> dict[str, str]:
    """The labels that every node of the pool has."""
    name = desired.spec.name
    own = {names.POOL: name}
    if made:
        own |= {names.AKS_POOL: name, names.INSTANCE_TYPE: desired.spec.node_vm_size}
    if desired.spec.gpu_instance_profile is None and desired.spec.mig_strategy is not MigStrategy.NONE:
        # MIG devices are counted so, whoever partitions the GPUs.
        own[names.MIG_STRATEGY] = desired.spec.mig_strategy.value
    return {**desired.spec.labels, **own}


def mig_labels(config: str, strategy: str) -> dict[str, str]:
    """The labels that say how a node's GPUs are to be partitioned and counted."""
    return {names.MIG_CONFIG: config, names.MIG_STRATEGY: strategy}


def node_patch(
    node: Node, desired: DesiredPool, *, cordon: bool, tell: tuple[str, str] | None = None
) -> dict[str, Any] | None:
    """The patch that makes a node as its pool says, None if it is so already.

    `tell`: the MIG configuration and the strategy that the node is to have from now on.
    """
    record = read_record(node)
    labels = labels_of(desired, made=record.made)
    changes: dict[str, str | None] = {
        key: value for key, value in labels.items() if node.labels.get(key) != value
    }
    gone = set(record.labels) - labels.keys() - {names.MIG_STRATEGY}  # that changes with the partitioning
    changes |= {key: None for key in sorted(gone) if key in node.labels}
    annotations: dict[str, str | None] = {}
    config = record.config
    if tell is not None:
        config = tell[0]
        changes |= mig_labels(*tell)
        if node.labels.get(names.MIG_CONFIG) != config:
            # The former state must not be mistaken for the new one's.
            changes[names.MIG_CONFIG_STATE] = MigState.PENDING
            annotations[names.MIG_CONFIG_REASON] = None
    taints = tuple(str(taint) for taint in desired.spec.taints)
    wanted = NodeRecord(
        desired.spec.name,
        desired.uid,
        record.made,
        tuple(sorted(labels)),
        taints,
        config,
        record.cordoned if cordon and node.spec.unschedulable else cordon,
    )
    if wanted != record:
        annotations[names.POOL_RECORD] = msgspec.json.encode(wanted).decode()
    return _patch(
        node, changes, annotations, _taints(node, record.taints, taints), _cordon(node, record, cordon)
    )


def release_patch(node: Node) -> dict[str, Any]:
    """The patch that removes what a pool wrote; the partitioning of the GPUs stays as it is."""
    record = read_record(node)
    changes: dict[str, str | None] = {key: None for key in record.labels if key in node.labels}
    patch = _patch(
        node,
        changes,
        {names.POOL_RECORD: None},
        _taints(node, record.taints, ()),
        _cordon(node, record, False),
    )
    assert patch is not None
    return patch


def new_node(name: str, desired: DesiredPool) -> dict[str, Any]:
    """The Node of a machine that is to be made."""
    labels = labels_of(desired, made=True)
    config = desired.partitioning.config if desired.partitioning is not None else ""
    taints = tuple(str(taint) for taint in desired.spec.taints)
    record = NodeRecord(desired.spec.name, desired.uid, True, tuple(sorted(labels)), taints, config)
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {**labels, **(mig_labels(config, desired.spec.mig_strategy.value) if config else {})},
            "annotations": {names.POOL_RECORD: msgspec.json.encode(record).decode()},
        },
        "spec": {"taints": [_taint(_read(text)) for text in taints]} if taints else {},
    }


def _patch(
    node: Node,
    labels: Mapping[str, str | None],
    annotations: Mapping[str, str | None],
    taints: list[dict[str, str]] | None,
    unschedulable: bool | None,
) -> dict[str, Any] | None:
    spec: dict[str, Any] = {}
    if taints is not None:
        spec["taints"] = taints
    if unschedulable is not None:
        spec["unschedulable"] = unschedulable
    if not (labels or annotations or spec):
        return None
    metadata: dict[str, Any] = {"resourceVersion": node.metadata.resource_version}
    if labels:
        metadata["labels"] = labels
    if annotations:
        metadata["annotations"] = annotations
    return {"metadata": metadata, **({"spec": spec} if spec else {})}


def _cordon(node: Node, record: NodeRecord, cordon: bool) -> bool | None:
    if cordon and not node.spec.unschedulable:
        return True
    return False if record.cordoned and not cordon and node.spec.unschedulable else None


def _taints(node: Node, old: tuple[str, ...], new: tuple[str, ...]) -> list[dict[str, str]] | None:
    """The node's taints with our new ones in place of our former ones; None if nothing changes."""
    there = node.spec.taints or ()
    kept = [taint for taint in there if _text(taint) not in old or _text(taint) in new]
    missing = [_read(text) for text in new if text not in {_text(taint) for taint in there}]
    if not missing and len(kept) == len(there):
        return None
    return [_taint(taint) for taint in (*kept, *missing)]


def _text(taint: Taint) -> str:
    return f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"


def _read(text: str) -> Taint:
    pair, _, effect = text.rpartition(":")
    key, _, value = pair.partition("=")
    return Taint(key, value, effect)


def _taint(taint: Taint) -> dict[str, str]:
    body = {"key": taint.key, "value": taint.value, "effect": taint.effect, "timeAdded": taint.time_added}
    return {key: value for key, value in body.items() if value}
