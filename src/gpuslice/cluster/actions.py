"""The actions that controllers plan, as values; `executor` carries them out.

Every action is safe to repeat: after a crash, or when planned from an older state, it is found done or its
precondition refuses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from gpuslice.kube.wire import KubeObject, Resource


@dataclass(frozen=True, slots=True)
class Evict:
    """Ask a pod to leave, as far as disruption budgets allow. `dry_run`: only ask whether it would."""

    namespace: str
    name: str
    uid: str
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Patch:
    """Change fields of an object; metadata.uid and .resourceVersion in the body are preconditions."""

    kind: type[KubeObject]
    name: str
    body: Mapping[str, object]
    namespace: str | None = None
    subresource: str | None = None


@dataclass(frozen=True, slots=True)
class Create:
    """Make an object."""

    resource: Resource
    body: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete an object of the cluster; that it is gone is fine."""

    resource: Resource
    name: str


@dataclass(frozen=True, slots=True)
class Record:
    """An event about an object. It describes a state and is recorded only if that is new; with `happened`,
    each time.
    """

    about: KubeObject
    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    happened: bool = False
