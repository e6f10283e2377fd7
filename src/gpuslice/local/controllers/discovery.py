"""Which kinds the server has, and a metadata-only view of any of them."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import cast

import msgspec

from gpuslice.errors import ApiError
from gpuslice.kube.client import Client
from gpuslice.kube.wire import Resource, Wire
from gpuslice.local.controllers.objects import Managed

NEEDED = frozenset({"delete", "get", "list", "patch", "watch"})
"""Verbs that a kind must have to be collected."""


class _Group(Wire, frozen=True):
    name: str = ""
    preferred_version: dict[str, str] = msgspec.field(default_factory=dict)


class _Groups(Wire, frozen=True):
    groups: tuple[_Group, ...] = ()


class _Entry(Wire, frozen=True):
    name: str = ""
    kind: str = ""
    namespaced: bool = False
    verbs: tuple[str, ...] = ()


class _Entries(Wire, frozen=True):
    resources: tuple[_Entry, ...] = ()


async def collectable(client: Client) -> list[Resource]:
    """Every kind that can be listed, watched and deleted, in its group's preferred version.

    A group whose server does not answer is left out this time.
    """
    groups = msgspec.json.decode(await client.read("/apis"), type=_Groups).groups
    versions = [("", "v1"), *((one.name, one.preferred_version.get("version", "v1")) for one in groups)]
    found = await asyncio.gather(*(_resources(client, group, version) for group, version in versions))
    return [resource for some in found for resource in some]


async def _resources(client: Client, group: str, version: str) -> list[Resource]:
    path = f"/apis/{group}/{version}" if group else f"/api/{version}"
    try:
        entries = msgspec.json.decode(await client.read(path), type=_Entries).resources
    except ApiError:
        return []
    return [
        Resource(group, version, one.name, one.kind, one.namespaced)
        for one in entries
        if "/" not in one.name and set(one.verbs) >= NEEDED
    ]


@cache
def metadata_kind(resource: Resource) -> type[Managed]:
    """A kind of which only the metadata is read."""
    return cast(
        "type[Managed]", type(resource.kind, (Managed,), {"resource": resource}, frozen=True, gc=False)
    )
