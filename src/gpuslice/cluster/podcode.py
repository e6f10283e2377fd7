"""The codes of verdicts on a pod other than the engine's, in Kubernetes' words."""

from __future__ import annotations

from gpuslice.placement.verdict import Reason


class PodCode(Reason):
    """Codes of verdicts between the decision and the node."""

    BOUND = "bound"
    ALREADY_BOUND = "already_bound"
    WRONG_POD = "wrong_pod"
    API_FAILED = "api_failed"
    HELD = "held_back"
    NOT_READY = "not_ready"
    UNSUPPORTED = "pod_not_supported"
    NO_NODE_FITS = "no_node_fits"
    PREEMPTING = "preempting"
    NO_VICTIMS = "no_victims_help"
    PROTECTED = "protected_by_disruption_budgets"

    @property
    def ok(self) -> bool:
        return self in (PodCode.BOUND, PodCode.PREEMPTING)
