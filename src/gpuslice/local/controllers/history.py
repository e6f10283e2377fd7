"""ControllerRevisions: the remembered templates of StatefulSets and DaemonSets.

`kubectl rollout history` and `undo` read them; pods carry the name of theirs in a label.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from typing import Any, Final

import msgspec

from gpuslice.errors import Conflict
from gpuslice.local.controllers.informers import Informer
from gpuslice.local.controllers.objects import ControllerRevision, Json, LabelSelector, Managed, PodTemplate
from gpuslice.local.controllers.podcontrol import claim
from gpuslice.local.controllers.pods import owner_reference, safe_letters
from gpuslice.local.controllers.runtime import Shared

REVISION_LABEL: Final = "controller-revision-hash"
"""On pods: which template they were made from."""
HASH_LABEL: Final = "controller.kubernetes.io/hash"


def template_patch(template: PodTemplate) -> Json:
    """What a revision remembers: a strategic merge patch that restores the template."""
    return {"spec": {"template": {**msgspec.to_builtins(template), "$patch": "replace"}}}


def template_of(revision: ControllerRevision) -> PodTemplate:
    """The template that a revision remembers."""
    return msgspec.convert(revision.data["spec"]["template"], PodTemplate)


class History:
    """Finds, makes and forgets the revisions of one owner."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._revisions: Informer[ControllerRevision] = shared.informers.of(ControllerRevision)

    async def current(
        self, owner: Managed, selector: LabelSelector, template: PodTemplate
    ) -> tuple[ControllerRevision, list[ControllerRevision]]:
        """The revision of the template as it is now, and all others, oldest first."""
        every = await claim(self._shared, self._revisions, owner, selector)
        every.sort(key=lambda one: (one.revision, one.metadata.creation_timestamp or "", one.name))
        data, last = template_patch(template), every[-1].revision if every else 0
        same = [one for one in every if one.data == data]
        if not same:
            return await self._create(owner, template, data, last + 1), every
        found = same[-1]
        others = [one for one in every if one is not found]
        if found.revision != last:  # an old template came back
            body: Json = {"metadata": _exactly(found), "revision": last + 1}
            answer = await self._shared.client.patch(ControllerRevision, found.name, body, found.namespace)
            self._revisions.observe(answer)
            found = answer
        return found, others

    async def forget(self, old: Sequence[ControllerRevision], limit: int, used: Collection[str]) -> None:
        """Delete the oldest beyond the limit; those whose names are in `used` stay and do not count."""
        idle = [one for one in old if one.name not in used]
        for one in idle[: max(0, len(idle) - limit)]:
            await self._shared.client.delete(one.resource, one.name, one.namespace, uid=one.uid)

    async def _create(
        self, owner: Managed, template: PodTemplate, data: Json, revision: int
    ) -> ControllerRevision:
        for collisions in range(10):
            text = msgspec.json.encode((data, collisions or None), order="sorted")
            digest = safe_letters(hashlib.sha256(text).digest()[:8])
            name = f"{owner.name}-{digest}"
            labels = {**(template.metadata.labels or {}), HASH_LABEL: digest}
            body: dict[str, Any] = {
                "apiVersion": "apps/v1",
                "kind": "ControllerRevision",
                "metadata": {
                    "name": name,
                    "namespace": owner.namespace,
                    "labels": labels,
                    "ownerReferences": [owner_reference(owner)],
                },
                "data": data,
                "revision": revision,
            }
            try:
                answer = await self._shared.client.create(ControllerRevision.resource, body, owner.namespace)
            except Conflict:
                there = await self._shared.client.get(ControllerRevision, name, owner.namespace)
                if there.controller_uid == owner.uid and there.data == data:
                    return there
            else:
                return msgspec.json.decode(answer, type=ControllerRevision)
        raise Conflict(409, f"no free name for a revision of {owner.key}")


def _exactly(item: Managed) -> Json:
    return {"uid": item.uid, "resourceVersion": item.metadata.resource_version}
