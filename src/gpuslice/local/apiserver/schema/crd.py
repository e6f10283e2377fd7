"""What a CustomResourceDefinition says: the kinds it defines and the status that it gets."""

from __future__ import annotations

from gpuslice.local.apiserver.schema.kinds import Column, CustomKind, Kind, ScalePaths
from gpuslice.local.apiserver.schema.status import Json

KEY = ("apiextensions.k8s.io", "customresourcedefinitions")


def established(definition: Json, moment: str) -> None:
    """Write the status that tells clients that a definition is served."""
    names = definition["spec"]["names"]
    definition["status"] = {
        "conditions": [
            {
                "type": "NamesAccepted",
                "status": "True",
                "lastTransitionTime": moment,
                "reason": "NoConflicts",
                "message": "no conflicts found",
            },
            {
                "type": "Established",
                "status": "True",
                "lastTransitionTime": moment,
                "reason": "InitialNamesAccepted",
                "message": "the initial names have been accepted",
            },
        ],
        "acceptedNames": names,
        "storedVersions": [one["name"] for one in definition["spec"]["versions"] if one.get("storage")],
    }


def kinds_of(definition: Json) -> list[Kind]:
    """The kinds that a definition serves, one per version."""
    spec = definition["spec"]
    names = spec["names"]
    storage = next((one["name"] for one in spec["versions"] if one.get("storage")), "")
    found = []
    for one in spec["versions"]:
        if not one.get("served", True):
            continue
        sub = one.get("subresources") or {}
        scale = sub.get("scale")
        columns = tuple(
            Column(
                column["name"],
                column.get("type", "string"),
                column.get("jsonPath", ""),
                column.get("priority", 0),
                column.get("description", ""),
                column.get("format", ""),
            )
            for column in one.get("additionalPrinterColumns") or ()
        )
        found.append(
            Kind(
                spec["group"],
                one["name"],
                names["plural"],
                names["kind"],
                namespaced=spec.get("scope") != "Cluster",
                short=tuple(names.get("shortNames") or ()),
                categories=tuple(names.get("categories") or ()),
                status="status" in sub,
                generation="all",
                scale=ScalePaths(
                    scale["specReplicasPath"].lstrip("."),
                    scale["statusReplicasPath"].lstrip("."),
                    (scale.get("labelSelectorPath") or "").lstrip("."),
                )
                if scale
                else None,
                custom=CustomKind(
                    (one.get("schema") or {}).get("openAPIV3Schema") or {},
                    columns,
                    tuple(field["jsonPath"].lstrip(".") for field in one.get("selectableFields") or ()),
                    storage,
                ),
            )
        )
    return found
