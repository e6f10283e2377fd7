"""What a pod may ask for and this scheduler does not do.

Such a pod stays Pending with an event that says so; it is never placed as if it had not asked. Mere
preferences (preferred inter-pod affinity, ScheduleAnyway) bind nobody and are passed over.
"""

from __future__ import annotations

from gpuslice.kube.wire import PodSpec


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
