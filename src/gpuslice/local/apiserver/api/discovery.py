"""What the server says about itself: groups and resources (old and aggregated form), version."""

from __future__ import annotations

from collections.abc import Iterable

from gpuslice.local.apiserver.api.http import Reply, Request, reply
from gpuslice.local.apiserver.schema.kinds import GROUP_ORDER, Kind, Registry
from gpuslice.local.apiserver.schema.objects import encode
from gpuslice.local.apiserver.schema.status import Json, no_such_route

VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
MAJOR, MINOR = "1", "36"
"""The Kubernetes version whose behaviour this server follows."""
AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

_WRITE = ["get", "patch", "update"]
_SUBRESOURCES: dict[str, tuple[str, str, str, list[str]]] = {
    "attach": ("", "v1", "PodAttachOptions", ["create", "get"]),
    "binding": ("", "v1", "Binding", ["create"]),
    "eviction": ("policy", "v1", "Eviction", ["create"]),
    "exec": ("", "v1", "PodExecOptions", ["create", "get"]),
    "log": ("", "v1", "Pod", ["get"]),
    "finalize": ("", "v1", "Namespace", ["update"]),
    "scale": ("autoscaling", "v1", "Scale", _WRITE),
}
"""Subresources that are not of their parent's kind: group, version, kind, verbs."""

REVIEWS: dict[tuple[str, str, str], str] = {
    ("authentication.k8s.io", "v1", "selfsubjectreviews"): "SelfSubjectReview",
    ("authentication.k8s.io", "v1", "tokenreviews"): "TokenReview",
    ("authorization.k8s.io", "v1", "localsubjectaccessreviews"): "LocalSubjectAccessReview",
    ("authorization.k8s.io", "v1", "selfsubjectaccessreviews"): "SelfSubjectAccessReview",
    ("authorization.k8s.io", "v1", "selfsubjectrulesreviews"): "SelfSubjectRulesReview",
    ("authorization.k8s.io", "v1", "subjectaccessreviews"): "SubjectAccessReview",
}
"""Kinds that are only asked, never stored."""

VERSION: Json = {
    "major": MAJOR,
    "minor": MINOR,
    "gitVersion": f"v{MAJOR}.{MINOR}.0+gpuslice",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "",
    "platform": "",
}


def _subresources(kind: Kind) -> Iterable[tuple[str, str, str, str, list[str]]]:
    names = [*kind.subresources]
    if kind.scale:
        names.append("scale")
    if kind.status:
        names.append("status")
    for name in sorted(names):
        group, version, what, verbs = _SUBRESOURCES.get(name, (kind.group, kind.version, kind.kind, _WRITE))
        yield name, group, version, what, verbs


def groups(registry: Registry) -> dict[str, list[str]]:
    """Every named group with its versions, preferred first."""
    found: dict[str, list[str]] = {group: [] for group in GROUP_ORDER}
    for group, version, _ in REVIEWS:
        found.setdefault(group, [])
        if version not in found[group]:
            found[group].append(version)
    for kind in registry:
        versions = found.setdefault(kind.group, [])
        if kind.version not in versions:
            versions.append(kind.version)
    found.pop("", None)
    return {group: sorted(versions, key=_priority) for group, versions in found.items() if versions}


def _priority(version: str) -> tuple[int, str]:
    rank = 1 if "beta" in version else 2 if "alpha" in version else 0
    return rank, version


class Discovery:
    """Answers /api, /apis, /api/v1, /apis/GROUP, /apis/GROUP/VERSION."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def root(self, request: Request, prefix: str) -> Reply:
        """GET /api (prefix "api") or /apis (prefix "apis")."""
        if "as=APIGroupDiscoveryList" in request.accept:
            return self._aggregated(prefix)
        if prefix == "api":
            addresses = [{"clientCIDR": "0.0.0.0/0", "serverAddress": ""}]
            return reply({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": addresses})
        found = [_group(group, versions) for group, versions in groups(self._registry).items()]
        return reply({"kind": "APIGroupList", "apiVersion": "v1", "groups": found})

    def group(self, name: str) -> Reply:
        """GET /apis/GROUP."""
        versions = groups(self._registry).get(name)
        if not versions:
            raise no_such_route()
        return reply({"kind": "APIGroup", "apiVersion": "v1", **_group(name, versions)})

    def resources(self, group: str, version: str) -> Reply:
        """GET /api/v1 or /apis/GROUP/VERSION."""
        found: list[Json] = []
        for kind in self._of(group, version):
            one: Json = {
                "name": kind.plural,
                "singularName": kind.singular,
                "namespaced": kind.namespaced,
                "kind": kind.kind,
                "verbs": VERBS,
            }
            if kind.short:
                one["shortNames"] = list(kind.short)
            if kind.categories:
                one["categories"] = list(kind.categories)
            found.append(one)
            for name, sub_group, sub_version, what, verbs in _subresources(kind):
                sub: Json = {
                    "name": f"{kind.plural}/{name}",
                    "singularName": "",
                    "namespaced": kind.namespaced,
                    "kind": what,
                    "verbs": verbs,
                }
                if (sub_group, sub_version) != (group, version):
                    sub |= {"group": sub_group, "version": sub_version}
                found.append(sub)
        for (of_group, of_version, plural), what in REVIEWS.items():
            if (of_group, of_version) == (group, version):
                found.append(
                    {
                        "name": plural,
                        "singularName": what.lower(),
                        "namespaced": what.startswith("Local"),
                        "kind": what,
                        "verbs": ["create"],
                    }
                )
        if not found:
            raise no_such_route()
        group_version = f"{group}/{version}" if group else version
        return reply(
            {
                "kind": "APIResourceList",
                "apiVersion": "v1",
                "groupVersion": group_version,
                "resources": found,
            }
        )

    def _of(self, group: str, version: str) -> list[Kind]:
        return sorted(
            (kind for kind in self._registry if kind.group == group and kind.version == version),
            key=lambda kind: kind.plural,
        )

    def _aggregated(self, prefix: str) -> Reply:
        of_group = {"": ["v1"]} if prefix == "api" else groups(self._registry)
        items = [
            {
                "metadata": {"name": group} if group else {"creationTimestamp": None},
                "versions": [
                    {"version": version, "resources": self._aggregate(group, version), "freshness": "Current"}
                    for version in versions
                ],
            }
            for group, versions in of_group.items()
        ]
        body = {
            "kind": "APIGroupDiscoveryList",
            "apiVersion": "apidiscovery.k8s.io/v2",
            "metadata": {},
            "items": items,
        }
        return Reply(encode(body), content_type=AGGREGATED)

    def _aggregate(self, group: str, version: str) -> list[Json]:
        found: list[Json] = []
        for kind in self._of(group, version):
            one: Json = {
                "resource": kind.plural,
                "responseKind": {"group": group, "version": version, "kind": kind.kind},
                "scope": "Namespaced" if kind.namespaced else "Cluster",
                "singularResource": kind.singular,
                "verbs": VERBS,
            }
            if kind.short:
                one["shortNames"] = list(kind.short)
            if kind.categories:
                one["categories"] = list(kind.categories)
            subresources = [
                {
                    "subresource": name,
                    "responseKind": {"group": sub_group, "version": sub_version, "kind": what},
                    "verbs": verbs,
                }
                for name, sub_group, sub_version, what, verbs in _subresources(kind)
            ]
            if subresources:
                one["subresources"] = subresources
            found.append(one)
        for (of_group, of_version, plural), what in REVIEWS.items():
            if (of_group, of_version) == (group, version):
                found.append(
                    {
                        "resource": plural,
                        "responseKind": {"group": group, "version": version, "kind": what},
                        "scope": "Namespaced" if what.startswith("Local") else "Cluster",
                        "singularResource": what.lower(),
                        "verbs": ["create"],
                    }
                )
        return found


def _group(name: str, versions: list[str]) -> Json:
    listed = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}
