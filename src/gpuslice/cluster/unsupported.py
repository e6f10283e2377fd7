"""Finds what a pod asks for and this scheduler does not support.

Such a pod stays Pending with an event that says so; it is never placed as if it had not asked. Mere
preferences (preferred inter-pod affinity, ScheduleAnyway) are not binding and are passed over.
"""

from __future__ import annotations

from typing import Final

from gpuslice.kube.wire import Affinity, PodSpec

MOST_RULES: Final = 100
"""The most of one kind in one pod. Each is checked against every node: for 5,000 nodes these take a third of
a second."""
MOST_VALUES: Final = 10_000
"""The most values in the rules of one pod."""


def unsupported(spec: PodSpec) -> str:
    """One sentence naming the field and the remedy, or "" if everything asked for is implemented."""
    for field, what in _asked(spec):
        return f"{field}: gpuslice does not implement {what}; remove it or use another schedulerName"
    return ""


def _asked(spec: PodSpec) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    affinity = spec.affinity
    if affinity is not None:
        for name, rules in (
            ("podAffinity", affinity.pod_affinity),
            ("podAntiAffinity", affinity.pod_anti_affinity),
        ):
            if rules is not None and rules.required_during_scheduling_ignored_during_execution:
                field = f"spec.affinity.{name}.requiredDuringSchedulingIgnoredDuringExecution"
                found.append((field, "required inter-pod affinity"))
        requirements, values = _node_rules(affinity)
        if requirements > MOST_RULES or values > MOST_VALUES:
            most = f"more than {MOST_RULES} requirements or {MOST_VALUES} values"
            found.append(("spec.affinity.nodeAffinity", most))
    if len(spec.tolerations or ()) > MOST_RULES:
        found.append(("spec.tolerations", f"more than {MOST_RULES} tolerations"))
    spread = spec.topology_spread_constraints or ()
    if any(constraint.when_unsatisfiable != "ScheduleAnyway" for constraint in spread):
        found.append(("spec.topologySpreadConstraints", "topology spread with DoNotSchedule"))
    found += [
        (f"spec.volumes[{volume.name}]", "volumes that the scheduler has to bind")
        for volume in spec.volumes or ()
        if volume.persistent_volume_claim is not None or volume.ephemeral is not None
    ]
    claims = any(c.resources.claims for c in (*(spec.init_containers or ()), *spec.containers))
    if spec.resource_claims or claims:
        found.append(("spec.resourceClaims", "dynamic resource allocation"))
    return found


def _node_rules(affinity: Affinity) -> tuple[int, int]:
    """How many requirements a pod has of nodes, with its preferences, and how many values these name."""
    rules = affinity.node_affinity
    if rules is None:
        return 0, 0
    required = rules.required_during_scheduling_ignored_during_execution
    terms = [
        *(required.node_selector_terms if required else ()),
        *(p.preference for p in rules.preferred_during_scheduling_ignored_during_execution or ()),
    ]
    asked = [(*(term.match_expressions or ()), *(term.match_fields or ())) for term in terms]
    values = sum(len(requirement.values or ()) for requirements in asked for requirement in requirements)
    # A term without requirements is looked at as well.
    return sum(max(len(requirements), 1) for requirements in asked), values
