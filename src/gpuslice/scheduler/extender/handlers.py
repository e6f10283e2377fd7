"""The verbs of the extender: bytes in, bytes out, no HTTP.

Routes, error texts and the order of checks are gpushare's (gpushare-scheduler-extender, pkg/scheduler and
pkg/routes); prioritize and preempt are kube-scheduler's, which gpushare lacked.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from typing import Final

import msgspec
import numpy as np

from gpuslice.cluster.podcode import PodCode
from gpuslice.cluster.records import NodeView
from gpuslice.cluster.state import Cluster
from gpuslice.cluster.trimming import trimmed
from gpuslice.errors import ApiError, GpuSliceError, InputError, NotFound, Unavailable
from gpuslice.kube.client import Client
from gpuslice.kube.wire import NAME_LENGTH, Pod, name_problem
from gpuslice.observe.metrics import Metrics
from gpuslice.placement.fleet import CODES, Codes
from gpuslice.placement.verdict import Code, Verdict
from gpuslice.requests.pod import PodRequest
from gpuslice.scheduler.binder import Binder
from gpuslice.scheduler.extender import wire
from gpuslice.scheduler.extender.nodelists import NodeList, NodeLists
from gpuslice.scheduler.summary import summed_up, views

REMEMBERED_PODS: Final = 4096
"""Number of pods that filter saw and that are kept for their bind, which only names them: saves reading each
again."""
"""Number of nodes shown before other tasks run: about half a millisecond."""

_KEPT: Final = np.uint8(CODES.index(Code.INSUFFICIENT))
"""The refusal of a node whose room is another pod's already, or is kept for a more important pod."""


class Extender:
    """The verbs of one extender. The decisions are synchronous: they see one state of the cluster.

    While the cluster's gate is closed no decision is made: filter and bind say so in their `Error`, the other
    verbs raise Unavailable. kube-scheduler tries the pod again after its backoff. `kept` returns those of
    some nodes whose room is kept for a more important pod than this one. `refused` is called for every pod
    that the engine lets on none of its nodes.
    """

    def __init__(
        self,
        cluster: Cluster,
        client: Client,
        binder: Binder,
        metrics: Metrics,
        *,
        kept: Callable[[Pod, Sequence[str]], Collection[str]] = lambda _pod, _nodes: (),
        refused: Callable[[Pod, PodRequest, list[str], Codes], None] = lambda *_: None,
    ) -> None:
        self._kept = kept
        self._refused = refused
        self._cluster = cluster
        self._client = client
        self._binder = binder
        self._metrics = metrics
        self._lists = NodeLists(cluster.fleet)
        self._pods: OrderedDict[str, Pod] = OrderedDict()

    # --- filter -----------------------------------------------------------------------------------
    def filter(self, body: bytes) -> bytes:
        """ExtenderArgs to ExtenderFilterResult. Never raises: what is wrong is in `Error`.

        A wrong request of the pod is no such error: each node refuses the pod for it.
        """
        try:
            args = wire.decode(body, wire.FilterArgs)
            pod = wire.decode_pod(args.pod)
            if pod is None:
                return wire.filter_error("arg or pod is nil")
            items: dict[str, msgspec.Raw] | None = None
            if wire.given(args.node_names):
                nodes = self._lists.get(bytes(args.node_names))
            elif wire.given(args.nodes):
                items = wire.decode_nodes(args.nodes)
                nodes = self._lists.of(list(items))
            else:
                return wire.filter_error("cannot get node names")
        except InputError as error:
            return wire.filter_error(str(error))
        try:
            request = self._cluster.request_of(pod)
        except InputError as error:
            self._metrics.verdicts.labels("filter", Code.BAD_REQUEST.value).inc(len(nodes.names))
            failed = msgspec.json.encode(dict.fromkeys(nodes.names, str(error)))
            return wire.filter_result(b"[]", _whole([] if items is not None else None), failed)
        if request and (why := self._cluster.gate.closed()):
            return wire.filter_error(why)
        self._remember(pod)
        return self._filter(pod, request, nodes, items)

    def _filter(
        self, pod: Pod, request: PodRequest, nodes: NodeList, items: dict[str, msgspec.Raw] | None
    ) -> bytes:
        record = self._cluster.pod(pod.uid) if pod.uid else None
        if record is not None:
            # A bind of this pod is under way or its answer was lost: only that node may get the pod.
            codes = np.full(len(nodes.names), _KEPT, np.uint8)
            codes[[index for index, name in enumerate(nodes.names) if name == record.node]] = 0
        elif request:
            codes = self._cluster.fleet.codes(request)[nodes.rows]
            if codes.all():
                self._refused(pod, request, nodes.names, codes)
            for name in self._kept(pod, nodes.names):
                codes[nodes.names.index(name)] = _KEPT
        else:
            codes = np.zeros(len(nodes.names), np.uint8)
        for number, count in zip(*np.unique(codes, return_counts=True), strict=True):
            self._metrics.verdicts.labels("filter", CODES[number].value).inc(int(count))
        names, failed = nodes.fitting(codes), nodes.failed(codes)
        kept = None
        if items is not None:
            kept = [raw for (raw, code) in zip(items.values(), codes, strict=True) if not code]
        return wire.filter_result(names, _whole(kept), failed)

    def _remember(self, pod: Pod) -> None:
        if pod.uid:
            self._pods[pod.uid] = trimmed(pod)
            self._pods.move_to_end(pod.uid)
            if len(self._pods) > REMEMBERED_PODS:
                self._pods.popitem(last=False)

    # --- prioritize -------------------------------------------------------------------------------
    def prioritize(self, body: bytes) -> bytes:
        """ExtenderArgs to HostPriorityList: 0..10 per node, by the cluster's policy.

        The best of the nodes asked about gets 10 and the worst 0: on so coarse a scale the absolute scores of
        nodes that differ by one pod would mostly be the same, and kube-scheduler's own spreading decide.
        """
        self._check_gate()
        try:
            args = wire.decode(body, wire.FilterArgs)
            pod = wire.decode_pod(args.pod)
            names = (
                wire.decode_names(bytes(args.node_names))
                if wire.given(args.node_names)
                else list(wire.decode_nodes(args.nodes))
            )
            request = self._cluster.request_of(pod) if pod is not None else PodRequest()
        except InputError:
            # kube-scheduler ignores a failed prioritize; an empty list has the same effect.
            return b"[]"
        scores = self._cluster.scores(request, names)
        lowest, span = min(scores, default=0), max(max(scores, default=0) - min(scores, default=0), 1)
        return msgspec.json.encode(
            [
                {"Host": name, "Score": 10 * (score - lowest) // span}
                for name, score in zip(names, scores, strict=True)
            ]
        )

    # --- preempt ----------------------------------------------------------------------------------
    async def preempt(self, body: bytes) -> bytes:
        """ExtenderPreemptionArgs to ExtenderPreemptionResult: victims that free a single GPU.

        kube-scheduler proposes by the node's sum. Its proposal is kept if it frees a GPU. Otherwise the
        answer has the pods that do, and those of the proposed pods that hold no GPU (they free something
        else). Nodes where no eviction helps are left out.
        """
        self._check_gate()
        try:
            args = wire.decode(body, wire.PreemptArgs)
            pod = wire.decode_pod(args.pod)
            proposed = wire.decode_victims(args)
            request = self._cluster.request_of(pod) if pod is not None else PodRequest()
        except InputError:
            return wire.encode_victims({})
        if pod is None:
            return wire.encode_victims({})
        kept: dict[str, wire.Victims] = {}
        for node, victims in proposed.items():
            # kube-scheduler proposes hundreds of nodes: other tasks run in between.
            await asyncio.sleep(0)
            self._check_gate()
            if not request or self._cluster.fits_without(request, node, victims.uids):
                kept[node] = victims
                continue
            chosen = self._cluster.victims(request, node, pod.spec.priority)
            if chosen is None:
                continue
            others = tuple(uid for uid in victims.uids if self._cluster.pod(uid) is None)
            uids = tuple(record.uid for record in chosen) + others
            if uids:
                kept[node] = wire.Victims(uids, victims.pdb_violations)
        return wire.encode_victims(kept)

    # --- bind -------------------------------------------------------------------------------------
    async def bind(self, body: bytes) -> tuple[int, bytes]:
        """ExtenderBindingArgs to ExtenderBindingResult: 200, or 500 with the reason, as gpushare; 503 if
        there will be no such reason after a while.
        """
        try:
            args = wire.decode(body, wire.BindArgs)
        except InputError as error:
            return 500, wire.bind_result(str(error))
        verdict = await self._bind(args)
        self._metrics.verdicts.labels("bind", verdict.code.value).inc()
        if verdict.ok:
            return 200, wire.bind_result("")
        return 503 if verdict.code is PodCode.NOT_READY else 500, wire.bind_result(verdict.message)

    async def _bind(self, args: wire.BindArgs) -> Verdict:
        asked = (("PodName", args.pod_name), ("PodNamespace", args.pod_namespace), ("Node", args.node))
        for field, name in asked:
            if problem := name_problem(name):
                # The names in a request go into URLs: they must not lead to another object.
                return Verdict(PodCode.WRONG_POD, f"{field} {name[:NAME_LENGTH]!r} is no name: {problem}")
        pod = self._pods.pop(args.pod_uid, None)
        if pod is None or (pod.name, pod.namespace) != (args.pod_name, args.pod_namespace):
            try:
                pod = await self._client.get(Pod, args.pod_name, args.pod_namespace)
            except NotFound as error:
                return Verdict(PodCode.WRONG_POD, str(error))
            except (ApiError, GpuSliceError) as error:
                return Verdict(PodCode.API_FAILED, str(error))
            if pod.uid != args.pod_uid:
                return Verdict(
                    PodCode.WRONG_POD,
                    f"The pod {args.pod_name} in ns {args.pod_namespace}'s uid is {pod.uid}, and it's not "
                    f"equal with expected {args.pod_uid}",
                )
        return await self._binder.bind(pod, args.node)

    # --- inspect ----------------------------------------------------------------------------------
    async def inspect(self, node: str | None = None) -> tuple[int, bytes]:
        """gpushare's inspect JSON: all nodes by name, or one. Memory in the node's own unit.

        503 while not all is known: readers could not tell a part from the whole.
        """
        if why := self._cluster.gate.incomplete():
            return 503, msgspec.json.encode({"nodes": [], "error": why})
        if node is None:
            nodes = [_inspect(view) async for view in views(self._cluster) if view.gpus]
            return 200, msgspec.json.encode({"nodes": nodes})
        view = self._cluster.snapshot(node)
        if view is None:
            return 404, msgspec.json.encode({"nodes": [], "error": f'node "{node}" not found'})
        return 200, msgspec.json.encode({"nodes": [_inspect(view)]})

    def _check_gate(self) -> None:
        if why := self._cluster.gate.closed():
            raise Unavailable(why)

    async def metrics(self) -> bytes:
        """The text for Prometheus, with the cluster summed up as it is now."""
        return await summed_up(self._cluster, self._metrics)


def _whole(items: list[msgspec.Raw] | None) -> bytes:
    """`Nodes`: a list of whole nodes, null if none was sent."""
    return b"null" if items is None else msgspec.json.encode({"metadata": {}, "items": items})


def _inspect(view: NodeView) -> dict[str, object]:
    units = view.unit.units_in
    devs = [
        {
            "id": one.gpu.index,
            "totalGPU": units(one.gpu.memory_mib),
            "usedGPU": units(one.used_mib),
            "pods": [
                {"name": share.name, "namespace": share.namespace, "usedGPU": units(share.mib)}
                for share in one.pods
                if not share.assumed
            ],
        }
        for one in view.gpus
    ]
    return {
        "name": view.name,
        "totalGPU": sum(units(one.gpu.memory_mib) for one in view.gpus) + view.rest_units,
        "usedGPU": sum(units(one.used_mib) for one in view.gpus),
        "devs": devs,
    }
