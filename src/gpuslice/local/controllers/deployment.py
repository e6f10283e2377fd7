"""Deployment: one ReplicaSet per version of a pod template, moved from the old to the new step by step.

The history that `kubectl rollout history` and `undo` read are the old ReplicaSets with their revision
annotations.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

import msgspec
from msgspec.structs import replace

from gpuslice.errors import Conflict
from gpuslice.local.controllers.deploymentstatus import (
    complete,
    condition,
    counted,
    deadline_in,
    progressed,
    with_condition,
)
from gpuslice.local.controllers.objects import (
    Condition,
    Deployment,
    Json,
    Managed,
    Pod,
    PodTemplate,
    ReplicaSet,
)
from gpuslice.local.controllers.podcontrol import claim
from gpuslice.local.controllers.pods import active, owner_reference, safe_letters
from gpuslice.local.controllers.rollout import Size, fenceposts, grow, proportional, shrink
from gpuslice.local.controllers.runtime import Controller, Shared, settle_seconds

HASH_LABEL: Final = "pod-template-hash"
REVISION: Final = "deployment.kubernetes.io/revision"
HISTORY: Final = "deployment.kubernetes.io/revision-history"
DESIRED: Final = "deployment.kubernetes.io/desired-replicas"
MAXIMUM: Final = "deployment.kubernetes.io/max-replicas"
NOT_COPIED: Final = frozenset(
    {"kubectl.kubernetes.io/last-applied-configuration", REVISION, HISTORY, DESIRED, MAXIMUM}
)


class DeploymentController(Controller):
    """Rolls Deployments out, scales, pauses and cleans up after them."""

    name: ClassVar[str] = "deployment"
    reads: ClassVar[tuple[type[Managed], ...]] = (Deployment, ReplicaSet, Pod)

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._deployments = shared.informers.of(Deployment)
        self._sets = shared.informers.of(ReplicaSet)
        self._pods = shared.informers.of(Pod)
        self.own(self._deployments)
        self._sets.listeners.append(self._on_set)
        self._pods.listeners.append(self._on_pod)

    def _on_set(self, before: ReplicaSet | None, after: ReplicaSet | None) -> None:
        item = after or before
        assert item is not None
        for ref in item.metadata.owner_references:
            if ref.controller:
                if ref.kind == "Deployment":
                    counts = before is not None and after is not None and before.spec == after.spec
                    self.queue.add_after(
                        f"{item.namespace}/{ref.name}", settle_seconds(item.spec.replicas) if counts else 0.0
                    )
                return
        for owner in self._deployments.in_namespace(item.namespace):
            if not owner.selects.empty and owner.selects.matches(item.labels):
                self.queue.add(owner.key)

    def _on_pod(self, before: Pod | None, after: Pod | None) -> None:
        """A Recreate rollout goes on when the last old pod has gone."""
        if after is None and before is not None:
            owner = self._sets.by_uid(before.controller_uid)
            deployment = self._deployments.by_uid(owner.controller_uid) if owner is not None else None
            if deployment is not None and deployment.spec.strategy.type == "Recreate":
                self.queue.add(deployment.key)

    async def reconcile(self, key: str) -> None:
        """Take the next step of whatever the Deployment is in the middle of, then write status."""
        item = self._deployments.get(key)
        if item is None:
            return
        if item.selects.empty:
            text = "This deployment is selecting all pods. A non-empty selector is required."
            self.shared.record(item, "Warning", "SelectingAll", text)
            return
        sets = await claim(self.shared, self._sets, item, item.selects)
        if item.deleting:
            await self._status(item, sets)
            return
        item = await self._note_pause(item)
        scaling = any(
            _number(one, DESIRED) not in (None, item.spec.replicas) for one in sets if one.spec.replicas
        )
        if item.spec.paused or scaling:
            item, _, sets = await self._revise(item, sets, create=False)
            sets = await self._scale(item, sets)
        else:
            item, new, sets = await self._revise(item, sets, create=True)
            assert new is not None
            old = [one for one in sets if one.uid != new.uid]
            if item.spec.strategy.type == "Recreate":
                sets = await self._recreate(item, new, old)
            else:
                sets = await self._roll(item, new, old)
        await self._status(item, sets)

    # --- steps --------------------------------------------------------------------------------------
    async def _roll(self, item: Deployment, new: ReplicaSet, old: list[ReplicaSet]) -> list[ReplicaSet]:
        sizes = [_size(one) for one in old]
        size = grow(item.spec, _size(new), sizes)
        if size != new.spec.replicas:
            return [await self._resize(item, new, size), *old]
        new = await self._resize(item, new, size)  # its annotations
        changes = shrink(item.spec, _size(new), sizes)
        return [
            new,
            *[await self._resize(item, one, changes.get(one.name, one.spec.replicas)) for one in old],
        ]

    async def _recreate(self, item: Deployment, new: ReplicaSet, old: list[ReplicaSet]) -> list[ReplicaSet]:
        if any(one.spec.replicas for one in old):
            return [new, *[await self._resize(item, one, 0) for one in old]]
        # Old pods that are still terminating hold what the new ones need.
        running = [pod for one in old for pod in self._pods.controlled_by(one.uid)]
        if any(active(pod) or pod.deleting for pod in running):
            return [new, *old]
        return [await self._resize(item, new, item.spec.replicas), *old]

    async def _scale(self, item: Deployment, sets: list[ReplicaSet]) -> list[ReplicaSet]:
        """spec.replicas changed, or the rollout is paused: resize, but do not move between versions."""
        live = [one for one in sets if one.spec.replicas > 0]
        new = _newest(item, sets)
        if len(live) <= 1:
            lone = live[0] if live else new or max(sets, key=_born, default=None)
            return [await self._resize(item, one, item.spec.replicas) if one is lone else one for one in sets]
        if new is not None and _saturated(item, new):
            return [one if one is new else await self._resize(item, one, 0) for one in sets]
        if item.spec.strategy.type == "Recreate":
            return sets
        sizes = proportional(item.spec, [_size(one) for one in live])
        return [await self._resize(item, one, sizes.get(one.name, one.spec.replicas)) for one in sets]

    async def _resize(self, item: Deployment, one: ReplicaSet, size: int) -> ReplicaSet:
        surge, _ = fenceposts(item.spec)
        annotations = {DESIRED: str(item.spec.replicas), MAXIMUM: str(item.spec.replicas + surge)}
        change = one.spec.replicas != size
        stale = one.spec.replicas > 0 and not annotations.items() <= one.annotations.items()
        if not change and not stale:
            return one
        body: Json = {"metadata": {**_exactly(one), "annotations": annotations}, "spec": {"replicas": size}}
        answer = await self.patch(self._sets, one, body)
        if change:
            verb = "up" if size > one.spec.replicas else "down"
            text = f"Scaled {verb} replica set {one.name} from {one.spec.replicas} to {size}"
            self.shared.record(item, "Normal", "ScalingReplicaSet", text)
        return answer

    # --- versions -----------------------------------------------------------------------------------
    async def _revise(
        self, item: Deployment, sets: list[ReplicaSet], *, create: bool
    ) -> tuple[Deployment, ReplicaSet | None, list[ReplicaSet]]:
        """Find or make the ReplicaSet of the current template, and number the versions."""
        new = _newest(item, sets)
        old = [one for one in sets if one is not new]
        revision = str(max((_number(one, REVISION) or 0 for one in old), default=0) + 1)
        if new is None:
            if not create:
                return item, None, sets
            new = await self._create(item, old, revision)
        elif changes := _changes(item, new, revision):
            changes["metadata"] |= _exactly(new)
            new = await self.patch(self._sets, new, changes)
        revision = new.annotations.get(REVISION, revision)
        if item.annotations.get(REVISION) != revision:
            body = {"metadata": {**_exactly(item), "annotations": {REVISION: revision}}}
            item = await self.patch(self._deployments, item, body)
        return item, new, [new, *old]

    async def _create(self, item: Deployment, old: Sequence[ReplicaSet], revision: str) -> ReplicaSet:
        template = item.spec.template
        digest = template_hash(template, item.status.collision_count or 0)
        name = f"{item.name}-{digest}"
        body = _replica_set(item, name, digest, revision, old)
        try:
            answer = await self.client.create(ReplicaSet.resource, body, item.namespace)
        except Conflict:
            there = await self.client.get(ReplicaSet, name, item.namespace)
            if there.controller_uid == item.uid and same_template(there.spec.template, template):
                return there  # made by us; the informer has not heard of it
            count = (item.status.collision_count or 0) + 1
            await self.write_status(self._deployments, item, replace(item.status, collision_count=count))
            raise
        made = msgspec.json.decode(answer, type=ReplicaSet)
        text = f'Created new replica set "{name}"'
        state = Condition("Progressing", "True", "NewReplicaSetCreated", text)
        await self._add_condition(item, state)
        if made.spec.replicas:
            text = f"Scaled up replica set {name} from 0 to {made.spec.replicas}"
            self.shared.record(item, "Normal", "ScalingReplicaSet", text)
        return made

    async def _note_pause(self, item: Deployment) -> Deployment:
        old = condition(item.status.conditions, "Progressing")
        if old is not None and old.reason == "ProgressDeadlineExceeded":
            return item
        paused = old is not None and old.reason == "DeploymentPaused"
        if item.spec.paused and not paused:
            state = Condition("Progressing", "Unknown", "DeploymentPaused", "Deployment is paused")
        elif not item.spec.paused and paused:
            state = Condition("Progressing", "Unknown", "DeploymentResumed", "Deployment is resumed")
        else:
            return item
        return await self._add_condition(item, state)

    async def _add_condition(self, item: Deployment, state: Condition) -> Deployment:
        latest = self._deployments.get(item.key) or item
        conditions = with_condition(latest.status.conditions, state, self.shared.now())
        return await self.write_status(
            self._deployments, latest, replace(latest.status, conditions=conditions)
        )

    # --- afterwards ---------------------------------------------------------------------------------
    async def _status(self, item: Deployment, sets: Sequence[ReplicaSet]) -> None:
        item = self._deployments.latest(item)
        sets = [self._sets.latest(one) for one in sets]
        new = _newest(item, sets)
        status = counted(item, new, sets, self.shared.now())
        if not item.deleting and not item.spec.paused:
            status = progressed(item, new, status, self.shared.now())
            wait = deadline_in(item, status, self.shared.clock.now_ns() / 1e9)
            if wait is not None:
                self.queue.add_after(item.key, wait + 1)
        await self.write_status(self._deployments, item, status)
        if not item.deleting and (complete(item, status) or item.spec.paused):
            await self._clean(item, new, sets)

    async def _clean(self, item: Deployment, new: ReplicaSet | None, sets: Sequence[ReplicaSet]) -> None:
        """Forget versions beyond spec.revisionHistoryLimit, oldest first."""
        idle = [
            one
            for one in sets
            if one is not new and not (one.deleting or one.spec.replicas or one.status.replicas)
            if one.status.observed_generation >= one.metadata.generation
        ]
        idle.sort(key=lambda one: (_number(one, REVISION) or 0, _born(one)))
        for one in idle[: max(0, len(idle) - item.spec.revision_history_limit)]:
            await self.client.delete(ReplicaSet.resource, one.name, one.namespace, uid=one.uid)


def same_template(one: PodTemplate, other: PodTemplate) -> bool:
    """Equal but for the hash label that the Deployment itself adds."""

    def parts(template: PodTemplate) -> tuple[object, ...]:
        labels = {key: value for key, value in (template.metadata.labels or {}).items() if key != HASH_LABEL}
        return labels, template.metadata.annotations or {}, template.spec

    return parts(one) == parts(other)


def template_hash(template: PodTemplate, collisions: int) -> str:
    """A short name for a template; the collision count makes another one of an equal template."""
    text = msgspec.json.encode((template, collisions or None), order="sorted")
    return safe_letters(hashlib.sha256(text).digest()[:8])


def _replica_set(item: Deployment, name: str, digest: str, revision: str, old: Sequence[ReplicaSet]) -> Json:
    spec, template = item.spec, item.spec.template
    labels = {**(template.metadata.labels or {}), HASH_LABEL: digest}
    selector = msgspec.to_builtins(spec.selector)
    selector["matchLabels"] = {**(spec.selector.match_labels or {}), HASH_LABEL: digest}
    surge, _ = fenceposts(spec)
    size = grow(spec, Size(name, 0, 0, ("", "")), [_size(one) for one in old])
    if spec.strategy.type == "Recreate" and any(one.spec.replicas for one in old):
        size = 0
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {
            "name": name,
            "namespace": item.namespace,
            "labels": labels,
            "annotations": {
                **_copied(item),
                REVISION: revision,
                DESIRED: str(spec.replicas),
                MAXIMUM: str(spec.replicas + surge),
            },
            "ownerReferences": [owner_reference(item)],
        },
        "spec": {
            "replicas": size,
            "minReadySeconds": spec.min_ready_seconds,
            "selector": selector,
            "template": {
                "metadata": {**msgspec.to_builtins(template.metadata), "labels": labels},
                "spec": template.spec,
            },
        },
    }


def _changes(item: Deployment, new: ReplicaSet, revision: str) -> Json:
    """What the new ReplicaSet lacks: the Deployment's annotations, and a new number if it came back."""
    wanted = _copied(item)
    number = _number(new, REVISION) or 0
    if number < int(revision):
        wanted[REVISION] = revision
        if number:
            past = new.annotations.get(HISTORY, "")
            wanted[HISTORY] = f"{past},{number}" if past else str(number)
    missing = {key: value for key, value in wanted.items() if new.annotations.get(key) != value}
    changes: Json = {"metadata": {"annotations": missing}} if missing else {}
    if new.spec.min_ready_seconds != item.spec.min_ready_seconds:
        changes = {"metadata": {}, **changes, "spec": {"minReadySeconds": item.spec.min_ready_seconds}}
    return changes


def _copied(item: Deployment) -> dict[str, str]:
    return {key: value for key, value in item.annotations.items() if key not in NOT_COPIED}


def _newest(item: Deployment, sets: Sequence[ReplicaSet]) -> ReplicaSet | None:
    """The ReplicaSet of the current template; the oldest if there are several."""
    same = [one for one in sets if same_template(one.spec.template, item.spec.template)]
    return min(same, key=_born, default=None)


def _saturated(item: Deployment, new: ReplicaSet) -> bool:
    wanted = item.spec.replicas
    return wanted == new.spec.replicas == new.status.available_replicas == _number(new, DESIRED)


def _size(one: ReplicaSet) -> Size:
    maximum = _number(one, MAXIMUM) or 0
    return Size(one.name, one.spec.replicas, one.status.available_replicas, _born(one), maximum)


def _born(one: ReplicaSet) -> tuple[str, str]:
    return one.metadata.creation_timestamp or "", one.name


def _number(one: ReplicaSet, annotation: str) -> int | None:
    text = one.annotations.get(annotation, "")
    return int(text) if text.isdecimal() else None


def _exactly(item: Managed) -> Mapping[str, str]:
    """Preconditions: this incarnation, unchanged since we looked."""
    return {"uid": item.uid, "resourceVersion": item.metadata.resource_version}
