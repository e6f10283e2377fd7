"""Validation of pod specs (`pkg/apis/core/validation`): what users get wrong, in the words they know."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from gpuslice.errors import InputError
from gpuslice.local.apiserver.schema.status import (
    Cause,
    Json,
    duplicate,
    forbidden_field,
    invalid_value,
    not_found_value,
    required,
    unsupported,
)
from gpuslice.local.apiserver.schema.syntax import dns_label, qualified_name
from gpuslice.units import parse_quantity

_ENV_NAME = re.compile(r"[ -<>-~]+")
_STANDARD = ("cpu", "memory", "ephemeral-storage")
_UPDATE = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def pod_spec(spec: Json, path: str) -> list[Cause]:
    """Every wrong field of a PodSpec found at `path`."""
    return list(_spec(spec, path))


def _spec(spec: Json, path: str) -> Iterator[Cause]:
    if not spec.get("containers"):
        yield required(f"{path}.containers")
    policies = ("Always", "OnFailure", "Never")
    if spec.get("restartPolicy") not in policies:
        yield unsupported(f"{path}.restartPolicy", spec.get("restartPolicy"), policies)
    grace = spec.get("terminationGracePeriodSeconds")
    if isinstance(grace, int) and grace < 0:
        yield invalid_value(
            f"{path}.terminationGracePeriodSeconds", grace, "must be greater than or equal to 0"
        )
    volumes: set[str] = set()
    for index, volume in enumerate(spec.get("volumes") or ()):
        where = f"{path}.volumes[{index}]"
        name = volume.get("name")
        if not name:
            yield required(f"{where}.name")
        elif problem := dns_label(name):
            yield invalid_value(f"{where}.name", name, problem)
        elif name in volumes:
            yield duplicate(f"{where}.name", name)
        else:
            volumes.add(name)
        if len(volume) > 2:
            extra = sorted(key for key in volume if key != "name")[1]
            yield forbidden_field(f"{where}.{extra}", "may not specify more than 1 volume type")
    names: set[str] = set()
    for group in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(group) or ()):
            where = f"{path}.{group}[{index}]"
            name = container.get("name")
            if not name:
                yield required(f"{where}.name")
            elif problem := dns_label(name):
                yield invalid_value(f"{where}.name", name, problem)
            yield from _container(container, where, volumes)
            if name in names:
                yield duplicate(f"{where}.name", name)
            names.add(name)
    for index, toleration in enumerate(spec.get("tolerations") or ()):
        where = f"{path}.tolerations[{index}]"
        operator = toleration.get("operator") or "Equal"
        if operator not in ("Equal", "Exists", "Lt", "Gt"):
            yield unsupported(f"{where}.operator", operator, ("Equal", "Exists"))
        if not toleration.get("key") and operator != "Exists":
            yield invalid_value(
                f"{where}.operator",
                operator,
                'operator must be Exists when `key` is empty, which means "match all values and all keys"',
            )
        if operator == "Exists" and toleration.get("value"):
            yield invalid_value(
                f"{where}.operator", toleration, "value must be empty when `operator` is 'Exists'"
            )
        if toleration.get("effect") not in (None, "", "NoSchedule", "PreferNoSchedule", "NoExecute"):
            effects = ("NoSchedule", "PreferNoSchedule", "NoExecute")
            yield unsupported(f"{where}.effect", toleration["effect"], effects)
    for key in spec.get("nodeSelector") or ():
        if problem := qualified_name(key):
            yield invalid_value(f"{path}.nodeSelector", key, problem)


def _container(container: Json, where: str, volumes: set[str]) -> Iterator[Cause]:
    if not container.get("image"):
        yield required(f"{where}.image")
    policies = ("Always", "IfNotPresent", "Never")
    if container.get("imagePullPolicy") not in policies:
        yield unsupported(f"{where}.imagePullPolicy", container.get("imagePullPolicy"), policies)
    for index, port in enumerate(container.get("ports") or ()):
        number = port.get("containerPort")
        if not number:
            yield required(f"{where}.ports[{index}].containerPort")
        elif not 0 < number < 65536:
            yield invalid_value(
                f"{where}.ports[{index}].containerPort", number, "must be between 1 and 65535, inclusive"
            )
    for index, variable in enumerate(container.get("env") or ()):
        name = variable.get("name")
        if not name:
            yield required(f"{where}.env[{index}].name")
        elif not _ENV_NAME.fullmatch(name):
            why = (
                "a valid environment variable name must consist only of printable ASCII characters other "
                "than '='"
            )
            yield invalid_value(f"{where}.env[{index}].name", name, why)
        if variable.get("value") and variable.get("valueFrom"):
            yield invalid_value(
                f"{where}.env[{index}].valueFrom", "", "may not be specified when `value` is not empty"
            )
    mounted: set[str] = set()
    for index, mount in enumerate(container.get("volumeMounts") or ()):
        at = f"{where}.volumeMounts[{index}]"
        if not mount.get("name"):
            yield required(f"{at}.name")
        elif mount["name"] not in volumes:
            yield not_found_value(f"{at}.name", mount["name"])
        if not mount.get("mountPath"):
            yield required(f"{at}.mountPath")
        elif mount["mountPath"] in mounted:
            yield invalid_value(f"{at}.mountPath", mount["mountPath"], "must be unique")
        else:
            mounted.add(mount["mountPath"])
    resources = container.get("resources")
    if resources:
        yield from _resources(resources, f"{where}.resources")


def _standard(name: str) -> bool:
    return name in _STANDARD or name.startswith("hugepages-")


def _resources(resources: Json, where: str) -> Iterator[Cause]:
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for field, amounts in (("limits", limits), ("requests", requests)):
        for name, amount in amounts.items():
            at = f"{where}.{field}[{name}]"
            if "/" not in name and not _standard(name):
                why = "must be a standard resource type or fully qualified"
                yield invalid_value(at, name, why)
                continue
            if problem := qualified_name(name):
                yield invalid_value(at, name, problem)
            number = _number(amount)
            if number is None:
                yield invalid_value(at, amount, "is not a quantity")
            elif number < 0:
                yield invalid_value(at, amount, "must be greater than or equal to 0")
            elif not _standard(name) and number.denominator != 1:
                yield invalid_value(at, amount, "must be an integer")
    for name, amount in requests.items():
        limit = limits.get(name)
        if limit is None:
            if not _standard(name):
                yield required(f"{where}.limits", "Limit must be set for non overcommitable resources")
            continue
        want, most = _number(amount), _number(limit)
        if want is None or most is None:
            continue
        at = f"{where}.requests"
        if not _standard(name) and want != most:
            yield invalid_value(at, amount, f"must be equal to {name} limit of {limit}")
        elif want > most:
            yield invalid_value(at, amount, f"must be less than or equal to {name} limit of {limit}")


def _number(amount: Any) -> Any:
    try:
        return parse_quantity(amount, field="")
    except InputError:
        return None


def pod_update(new: Json, old: Json) -> list[Cause]:
    """What an update of a pod's spec may not change."""
    if new == old:
        return []
    causes = []
    for index, container in enumerate(new.get("containers") or ()):
        if not container.get("image"):
            causes.append(required(f"spec.containers[{index}].image"))
    before, after = old.get("tolerations") or [], new.get("tolerations") or []
    if any(one not in after for one in before):
        why = "existing toleration can not be modified except its tolerationSeconds"
        if any(_bare(one) not in [_bare(other) for other in after] for one in before):
            causes.append(forbidden_field("spec.tolerations", why))
    gated = bool(old.get("schedulingGates"))
    gates = [one.get("name") for one in old.get("schedulingGates") or ()]
    for one in new.get("schedulingGates") or ():
        if one.get("name") not in gates:
            why = "only deletion is allowed, but found new scheduling gate '" + str(one.get("name")) + "'"
            causes.append(forbidden_field("spec.schedulingGates", why))
    if _frozen(new, gated=gated) != _frozen(old, gated=gated):
        causes.append(forbidden_field("spec", _UPDATE))
    return causes


def _bare(toleration: Json) -> Json:
    return {key: value for key, value in toleration.items() if key != "tolerationSeconds"}


def _frozen(spec: Json, *, gated: bool) -> Json:
    free = {"activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds", "schedulingGates"}
    if gated:
        free |= {"nodeSelector", "affinity"}
    rest = {key: value for key, value in spec.items() if key not in free}
    for group in ("containers", "initContainers"):
        rest[group] = [
            {key: value for key, value in container.items() if key != "image"}
            for container in spec.get(group) or ()
        ]
    return rest
