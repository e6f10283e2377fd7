"""Translates pods that were written for Kubernetes 1.4 to 1.9 into today's form. Pure.

At that time kubelet itself counted GPUs as `alpha.kubernetes.io/nvidia-gpu`, a pod's affinity was JSON in an
annotation, and the documentation chose GPUs by a node label whose values had spaces ("Tesla K80"), which
nobody checked. Today such a pod waits for ever, goes to any node, or is refused. Sources: kubernetes.io,
"Schedule GPUs" of 1.6 to 1.9; changelogs of 1.6 (affinity became a field) and 1.11 (the resource went away).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final

from gpuslice import names
from gpuslice.devices.catalogue import MODELS
from gpuslice.devices.labelvalue import label_value
from gpuslice.errors import InputError
from gpuslice.requests.check import wanted

Json = dict[str, Any]
"""A pod, or the template of one, as it is written."""
_GROUPS: Final = ("containers", "initContainers")
_KINDS: Final = ("nodeAffinity", "podAffinity", "podAntiAffinity")
_NODE_KINDS: Final = (
    "requiredDuringSchedulingIgnoredDuringExecution",
    "preferredDuringSchedulingIgnoredDuringExecution",
)


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence about a field."""

    field: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.field}: {self.sentence}"


@dataclass(frozen=True, slots=True)
class Change:
    """A change of one part of a pod: its place (keys and indexes), and its new value.

    `value` None: the part is removed.
    """

    path: tuple[str | int, ...]
    value: object

    @property
    def pointer(self) -> str:
        """The place as a JSON pointer (RFC 6901)."""
        return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in self.path)


@dataclass(frozen=True, slots=True)
class Translation:
    """The pod in today's form. `changes` turn the old into the new; `warnings` say what to write today.

    `problems` are about what cannot be translated: it is left as it is.
    """

    pod: Json
    changes: tuple[Change, ...] = ()
    warnings: tuple[Note, ...] = ()
    problems: tuple[Note, ...] = ()


def translate(pod: Mapping[str, Any]) -> Translation:
    """Translate a pod or a pod template ({metadata, spec}). One that asks for no GPU stays as it is.

    A part that is not of the shape it must have is left alone: the API server will say what is wrong.
    """
    work = _Work(deepcopy(dict(pod)))
    work.resources()
    if work.asks_for_gpu():
        work.annotation()
        work.names_of_gpus()
    return Translation(work.pod, tuple(work.changes.values()), tuple(work.warnings), tuple(work.problems))


class _Work:
    def __init__(self, pod: Json) -> None:
        self.pod = pod
        self.changes: dict[tuple[str | int, ...], Change] = {}
        self.warnings: list[Note] = []
        self.problems: list[Note] = []

    def containers(self) -> list[tuple[str, int, Json]]:
        spec = _mapping(self.pod.get("spec"))
        return [
            (group, index, container)
            for group in _GROUPS
            for index, container in enumerate(_list(spec.get(group)))
            if isinstance(container, dict)
        ]

    def asks_for_gpu(self) -> bool:
        return any(
            wanted(name, amount)
            for _, _, container in self.containers()
            for amounts in _mapping(container.get("resources")).values()
            for name, amount in _mapping(amounts).items()
        )

    def change(self, path: tuple[str | int, ...], value: object) -> None:
        self.changes[path] = Change(path, value)

    # --- alpha.kubernetes.io/nvidia-gpu ---------------------------------------------------------------
    def resources(self) -> None:
        for group, index, container in self.containers():
            resources = _mapping(container.get("resources"))
            renamed = False
            for field in ("limits", "requests"):
                amounts = _mapping(resources.get(field))
                if names.HISTORICAL_GPU not in amounts:
                    continue
                where = f"spec.{group}[{index}].resources.{field}[{names.HISTORICAL_GPU}]"
                old = amounts[names.HISTORICAL_GPU]
                new = amounts.get(names.WHOLE_GPU, old)
                if str(new) != str(old):
                    why = f"is {old}, but {names.WHOLE_GPU} beside it is {new}; remove the former"
                    self.problems.append(Note(where, why))
                    continue
                resources[field] = {
                    names.WHOLE_GPU if name == names.HISTORICAL_GPU else name: amount
                    for name, amount in amounts.items()
                }
                if not renamed:
                    # Once: the API server makes requests of limits before it asks webhooks.
                    what = (
                        f"no node has had this resource since Kubernetes 1.11; write {names.WHOLE_GPU}: {old}"
                    )
                    self.warnings.append(Note(where, what))
                renamed = True
            if renamed:
                self.change(("spec", group, index, "resources"), resources)

    # --- scheduler.alpha.kubernetes.io/affinity ---------------------------------------------------------
    def annotation(self) -> None:
        annotations = _mapping(_mapping(self.pod.get("metadata")).get("annotations"))
        text = annotations.get(names.HISTORICAL_AFFINITY)
        if text is None:
            return
        where = f"metadata.annotations[{names.HISTORICAL_AFFINITY}]"
        useless = "has had no effect since Kubernetes 1.6"
        spec = self.pod["spec"]
        if spec.get("affinity"):
            self.problems.append(Note(where, f"{useless}, and the pod has spec.affinity; remove it"))
            return
        try:
            affinity = _affinity(str(text))
        except InputError as error:
            self.problems.append(Note(where, f"{useless} and cannot be made spec.affinity: {error}"))
            return
        del annotations[names.HISTORICAL_AFFINITY]
        spec["affinity"] = affinity
        self.change(("metadata", "annotations", names.HISTORICAL_AFFINITY), None)
        self.change(("spec", "affinity"), affinity)
        self.warnings.append(Note(where, f"{useless}; write the same under spec.affinity"))

    # --- "Tesla K80" ------------------------------------------------------------------------------------
    def names_of_gpus(self) -> None:
        spec = self.pod["spec"]
        selector = _mapping(spec.get("nodeSelector"))
        name = selector.get(names.HISTORICAL_GPU_NAME)
        if isinstance(name, str) and label_value(name) != name:
            selector[names.HISTORICAL_GPU_NAME] = label_value(name)
            self.change(("spec", "nodeSelector", names.HISTORICAL_GPU_NAME), label_value(name))
            self._renamed(f"spec.nodeSelector[{names.HISTORICAL_GPU_NAME}]", [name], [label_value(name)])
        affinity = _mapping(spec.get("affinity"))
        changed = False
        for place, expression in _expressions(_mapping(affinity.get("nodeAffinity"))):
            values = _texts(expression.get("values"))
            if expression.get("key") != names.HISTORICAL_GPU_NAME:
                continue
            new = list(dict.fromkeys(value for old in values for value in _labels_of(old)))
            if new != values:
                expression["values"] = new
                changed = True
                self._renamed(f"spec.affinity.nodeAffinity.{place}.values", values, new)
        if changed:
            self.change(("spec", "affinity"), affinity)

    def _renamed(self, where: str, old: Sequence[str], new: Sequence[str]) -> None:
        what = (
            f"a label's value has no spaces, and nodes carry the GPU's whole name; "
            f"instead of {', '.join(old)} write {', '.join(new)}"
        )
        self.warnings.append(Note(where, what))


def _affinity(text: str) -> Json:
    """The annotation's JSON, if it is what spec.affinity takes. Raises InputError."""
    try:
        affinity = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"it is not JSON ({error})") from error
    if not isinstance(affinity, dict) or not affinity:
        raise InputError("it is not a mapping with nodeAffinity, podAffinity or podAntiAffinity")
    for kind, terms in affinity.items():
        if kind not in _KINDS:
            raise InputError(f"{kind!r} is not one of {', '.join(_KINDS)}")
        if not isinstance(terms, dict):
            raise InputError(f"{kind} is not a mapping")
        for name, value in terms.items():
            if name not in _NODE_KINDS:
                raise InputError(f"{kind} has {name!r}, which no version of Kubernetes acted on")
            required = kind == "nodeAffinity" and name == _NODE_KINDS[0]
            if required and not isinstance(_mapping(value).get("nodeSelectorTerms"), list):
                raise InputError(f"nodeAffinity.{name} is not a mapping with a list of nodeSelectorTerms")
            if not required and not isinstance(value, list):
                raise InputError(f"{kind}.{name} is not a list")
    return affinity


def _expressions(node_affinity: Json) -> list[tuple[str, Json]]:
    """Every match expression of a node affinity, with its place."""
    required, preferred = (node_affinity.get(kind) for kind in _NODE_KINDS)
    terms = [
        (f"{_NODE_KINDS[0]}.nodeSelectorTerms[{index}]", term)
        for index, term in enumerate(_list(_mapping(required).get("nodeSelectorTerms")))
    ]
    terms += [
        (f"{_NODE_KINDS[1]}[{index}].preference", _mapping(term).get("preference"))
        for index, term in enumerate(_list(preferred))
    ]
    return [
        (f"{place}.matchExpressions[{index}]", expression)
        for place, term in terms
        for index, expression in enumerate(_list(_mapping(term).get("matchExpressions")))
        if isinstance(expression, dict)
    ]


def _labels_of(name: str) -> list[str]:
    """The label's values that a name in a manifest stands for; one that can be a value stands for itself.

    The documentation's "Tesla P100" is also the Tesla-P100-PCIE-16GB that the driver says.
    """
    value = label_value(name)
    if value == name:
        return [name]
    return [value, *(m for model in MODELS if (m := label_value(model.name)).startswith(f"{value}-"))]


def _mapping(value: object) -> Json:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _texts(value: object) -> list[str]:
    return list(value) if isinstance(value, list) and all(isinstance(one, str) for one in value) else []
