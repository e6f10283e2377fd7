"""Who must not lose a device: containers that hold it, and pods that are about to."""

from __future__ import annotations

from gpuslice import names
from gpuslice.devices.availability import OK
from gpuslice.devices.availability import closed as shut
from gpuslice.devices.inventory import Gpu
from gpuslice.node.grants.held import Held, Owner
from gpuslice.node.grants.nodepod import NodePod
from gpuslice.node.mig.users import SOMEBODY, users
from gpuslice.requests.allocation import Allocation, Grant
from gpuslice.requests.kinds import SHARES, Kind, WholeDevices
from gpuslice.requests.pod import ContainerRequest, PodRequest, Role

SMALL = f"{names.MIG_PREFIX}1g.5gb"
SMALL_DEVICES = WholeDevices(SMALL)


def device(number: int, *, closed: bool = False) -> Gpu:
    availability = shut("being partitioned") if closed else OK
    return Gpu(
        number, f"MIG-{number}", "A100", 4864, availability, resource=SMALL, parent="GPU-0", shareable=False
    )


def pod(name: str, count: int = 1, planned: tuple[str, ...] = (), kind: Kind = SMALL_DEVICES) -> NodePod:
    asks = ContainerRequest("main", Role.APP, kind, count)
    grants = tuple(Grant("main", uuid, 4864, whole=True) for uuid in planned)
    return NodePod(
        name, "default", name, PodRequest((asks,)), planned=Allocation(grants) if planned else None
    )


def held(*uuids: str, owner: str = "") -> Held:
    whose = Owner(owner, "main") if owner else None
    return Held(1, SMALL_DEVICES, frozenset(uuids), dict.fromkeys(uuids, 1), whose, bool(owner), 1, 0.0)


def test_who_holds_a_device_uses_it_also_if_nobody_knows_who_that_is() -> None:
    found = users(
        [held("MIG-0", owner="a"), held("MIG-1")], {"a": pod("a")}, [device(0), device(1), device(2)]
    )
    assert found == {"MIG-0": "default/a", "MIG-1": SOMEBODY}


def test_a_replica_in_use_is_its_device_in_use() -> None:
    assert users([held("MIG-0::3", owner="a")], {"a": pod("a")}, [device(0)]) == {"MIG-0": "default/a"}


def test_a_pod_that_a_scheduler_promised_a_device_is_waited_for() -> None:
    gpus = [device(0, closed=True), device(1)]
    assert users([], {"a": pod("a", planned=("MIG-0",))}, gpus) == {"MIG-0": "default/a"}


def test_a_pod_of_kube_scheduler_needs_what_is_going_only_if_too_little_else_is_left() -> None:
    gpus = [device(0, closed=True), device(1, closed=True), device(2)]
    assert users([], {"a": pod("a")}, gpus) == {}
    assert users([], {"a": pod("a", 2)}, gpus) == dict.fromkeys(("MIG-0", "MIG-1"), "default/a")
    # Once it holds them, it needs no more.
    mine = held("MIG-1", "MIG-2", owner="a")
    assert users([mine], {"a": pod("a", 2)}, gpus) == dict.fromkeys(("MIG-1", "MIG-2"), "default/a")


def test_a_pod_that_shares_memory_needs_an_uncut_gpu() -> None:
    whole = Gpu(0, "GPU-0", "A100", 39936, shut("being partitioned"))
    shares = {"a": pod("a", 5, kind=SHARES)}
    assert users([], shares, [whole, device(1)]) == {"GPU-0": "default/a"}
    assert users([], shares, [whole, Gpu(1, "GPU-1", "A100", 39936)]) == {}


def test_a_pod_that_has_ended_uses_nothing() -> None:
    over = pod("a", planned=("MIG-0",))
    assert users([], {"a": NodePod(**{**_fields(over), "alive": False})}, [device(0)]) == {}


def _fields(one: NodePod) -> dict[str, object]:
    return {name: getattr(one, name) for name in ("uid", "namespace", "name", "request", "planned")}
