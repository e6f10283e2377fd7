"""A pod's status out of its containers' states: pure, as pkg/kubelet/kubelet_pods.go computes it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpuslice.clock import rfc3339
from gpuslice.local.kubelet.logs import Log
from gpuslice.local.kubelet.podspec import RunContainer, RunPod, StampedCondition
from gpuslice.local.kubelet.runtime import Exit, Launch


@dataclass(frozen=True, slots=True)
class Waiting:
    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Started:
    since_ns: int


@dataclass(frozen=True, slots=True)
class Ended:
    exit: Exit
    started_ns: int
    finished_ns: int
    container_id: str


@dataclass(slots=True)
class ContainerRecord:
    """What is known of one container. The worker of its pod changes it, everybody else reads."""

    spec: RunContainer
    init: bool
    state: Waiting | Started | Ended
    last: Ended | None = None
    container_id: str = ""
    restarts: int = 0
    launch: Launch | None = None
    log: Log | None = None
    previous_log: Log | None = None

    @property
    def running(self) -> bool:
        return isinstance(self.state, Started)

    @property
    def passed(self) -> bool:
        """True if an init container lets the next one start."""
        if self.spec.sidecar:
            return self.running
        return isinstance(self.state, Ended) and self.state.exit.code == 0

    def status(self) -> dict[str, object]:
        """The containerStatuses entry."""
        running = self.running
        ready = self.passed if self.init else running
        entry: dict[str, object] = {
            "name": self.spec.name,
            "image": self.spec.image,
            "imageID": self.spec.image,
            "ready": ready,
            "started": running,
            "restartCount": self.restarts,
            "state": _state(self.state),
            "lastState": _state(self.last) if self.last else {},
        }
        if self.container_id:
            entry["containerID"] = self.container_id
        return entry


def _state(state: Waiting | Started | Ended) -> dict[str, object]:
    match state:
        case Waiting(reason, message):
            return {"waiting": {"reason": reason, "message": message} if message else {"reason": reason}}
        case Started(since_ns):
            return {"running": {"startedAt": rfc3339(since_ns)}}
        case Ended(ended, started_ns, finished_ns, container_id):
            what: dict[str, object] = {
                "exitCode": ended.code,
                "reason": ended.why,
                "startedAt": rfc3339(started_ns),
                "finishedAt": rfc3339(finished_ns),
                "containerID": container_id,
            }
            if ended.message:
                what["message"] = ended.message
            return {"terminated": what}


def phase_of(restart_policy: str, records: Sequence[ContainerRecord]) -> str:
    """Pending, Running, Succeeded or Failed."""
    init = [record for record in records if record.init]
    apps = [record for record in records if not record.init]
    for record in init:
        if (
            restart_policy == "Never"
            and not record.spec.sidecar
            and isinstance(record.state, Ended)
            and record.state.exit.code
        ):
            return "Failed"
    if any(isinstance(record.state, Waiting) and record.last is None for record in apps):
        return "Pending"
    if any(not isinstance(record.state, Ended) for record in apps) or restart_policy == "Always":
        return "Running"
    failed = any(isinstance(record.state, Ended) and record.state.exit.code for record in apps)
    if not failed:
        return "Succeeded"
    return "Failed" if restart_policy == "Never" else "Running"


@dataclass(slots=True)
class Conditions:
    """The pod's conditions, each with the time when it last became what it is."""

    _since: dict[str, tuple[str, str]] = field(default_factory=dict)

    def build(
        self, foreign: Iterable[StampedCondition], values: Mapping[str, tuple[bool, str]], now_ns: int
    ) -> list[dict[str, object]]:
        """`values`: type -> (holds, reason why not). Conditions of others are kept as they are."""
        now = rfc3339(now_ns)
        built: list[dict[str, object]] = []
        for condition in foreign:
            if condition.type in values:
                self._since.setdefault(
                    condition.type, (condition.status, condition.last_transition_time or now)
                )
            else:
                built.append(_foreign(condition))
        for kind, (holds, reason) in values.items():
            status = "True" if holds else "False"
            if self._since.get(kind, ("", ""))[0] != status:
                self._since[kind] = (status, now)
            entry: dict[str, object] = {
                "type": kind,
                "status": status,
                "lastProbeTime": None,
                "lastTransitionTime": self._since[kind][1],
            }
            if reason and not holds:
                entry["reason"] = reason
            built.append(entry)
        return built


def _foreign(condition: StampedCondition) -> dict[str, object]:
    entry: dict[str, object] = {
        "type": condition.type,
        "status": condition.status,
        "lastProbeTime": condition.last_probe_time,
        "lastTransitionTime": condition.last_transition_time,
    }
    if condition.reason:
        entry["reason"] = condition.reason
    if condition.message:
        entry["message"] = condition.message
    return entry


def pod_status(
    pod: RunPod,
    records: Sequence[ContainerRecord],
    conditions: Conditions,
    *,
    phase: str,
    host_ip: str,
    pod_ip: str,
    started_ns: int,
    now_ns: int,
    reason: str = "",
    message: str = "",
) -> dict[str, object]:
    """The status to send as a merge patch."""
    done = phase in ("Succeeded", "Failed")
    why = "PodCompleted" if phase == "Succeeded" else "PodFailed" if phase == "Failed" else ""
    initialized = phase == "Succeeded" or all(record.passed for record in records if record.init)
    ready = not done and bool(records) and initialized and all(r.running for r in records if not r.init)
    unready = why or ("ContainersNotInitialized" if not initialized else "ContainersNotReady")
    values = {
        "PodReadyToStartContainers": (not done, ""),
        "Initialized": (initialized, why or "ContainersNotInitialized"),
        "Ready": (ready, unready),
        "ContainersReady": (ready, unready),
        "PodScheduled": (True, ""),
    }
    status: dict[str, object] = {
        "phase": phase,
        "conditions": conditions.build(pod.status.conditions or (), values, now_ns),
        "hostIP": host_ip,
        "hostIPs": [{"ip": host_ip}],
        "startTime": rfc3339(started_ns),
        "containerStatuses": [record.status() for record in records if not record.init],
    }
    if pod_ip:
        status["podIP"] = pod_ip
        status["podIPs"] = [{"ip": pod_ip}]
    if any(record.init for record in records):
        status["initContainerStatuses"] = [record.status() for record in records if record.init]
    if reason:
        status["reason"] = reason
    if message:
        status["message"] = message
    return status


def rejected_status(reason: str, message: str, now_ns: int) -> dict[str, object]:
    """The status of a pod that was not admitted: nothing of it ever ran."""
    return {"phase": "Failed", "reason": reason, "message": message, "startTime": rfc3339(now_ns)}
