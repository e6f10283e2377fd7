"""Bursts, swaps, races, restarts and deletions in any order: no slice is wrong, double or leaked."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from node_world import NodeWorld, Part, app

from gpuslice.names import ALLOCATION, GPU_MEM, GPUSHARE_ALLOCATION, MIG_PREFIX, SHARES_ACROSS
from gpuslice.node.grants.held import Owner
from gpuslice.node.grants.identity import Identity
from gpuslice.node.grants.ledger import SETTLED_SECONDS, STRANGER_SECONDS

SMALL, LARGE = f"{MIG_PREFIX}1g.5gb", f"{MIG_PREFIX}2g.10gb"
SHAPES = [
    app(2),
    app(2),
    app(3),
    app(5),
    app(8),
    app(2, 3),
    app(2, 2),
    (Part("i", 2, init=True), Part("c0", 2)),
    (Part("i", 2, init=True), Part("c0", 5)),
    (Part("i", 5, init=True), Part("c0", 2), Part("c1", 2)),
    (Part("i", 3, init=True), Part("j", 2, init=True), Part("c0", 3)),
    (Part("i", 6, init=True), Part("j", 1, init=True), Part("c0", 1)),
    (Part("i", 2, init=True), Part("s", 2, sidecar=True), Part("j", 3, init=True), Part("c0", 1)),
    (Part("i", 2, init=True), Part("c0")),
    (Part("i", 5, init=True), Part("c0")),
    (Part("s", 2, sidecar=True), Part("c0", 3)),
    (Part("c0", whole=1),),
    (Part("c0", whole=1), Part("c1", 2)),
    (Part("c0", whole=1, resource=SMALL),),
    (Part("c0", whole=1, resource=SMALL), Part("c1", 2), Part("c2", whole=1, resource=LARGE)),
    (Part("i", whole=1, init=True, resource=SMALL), Part("c0", whole=2, resource=SMALL)),
]
SPREAD = app(4)
LIES = [
    (SHARES_ACROSS, "0"),
    (SHARES_ACROSS, "-1"),
    (SHARES_ACROSS, "2"),
    (SHARES_ACROSS, "9" * 4301),
    (ALLOCATION, ""),
    (ALLOCATION, '{"c0":{"GPU-of-another-node":1}}'),
    (ALLOCATION, '{"c0":{"GPU-n1-0":1},"c0":{"GPU-n1-1":1}}'),
    (GPUSHARE_ALLOCATION, '{"' + "9" * 4301 + '":{"0":1}}'),
]
"""What a pod's owner may write into its annotations when it has been placed; none of it can be believed."""
JUST_CAUSES = (
    "kubelet gave ids of this container to",  # kubelet itself has them twice
    "GPU(s), but its ids lie on",  # kubelet took all that was left before we knew of the pod
    "another pod has; it starts when that one has ended",
)
"""Why a start may be refused here; everybody else must start at the first attempt."""


class Node(RuleBasedStateMachine):
    """kubelet, API server and agent, each at its own pace."""

    @initialize(seed=st.integers(0, 2**16))
    def begin(self, seed: int) -> None:
        self.world = NodeWorld(8, 8, 16, 10, mig=("1g.5gb",) * 3 + ("2g.10gb",), seed=seed)

    # --- users and scheduler ----------------------------------------------------------------------
    @rule(
        shape=st.sampled_from(SHAPES), placed=st.booleans(), name=st.sampled_from(["", "", "same", "again"])
    )
    def create(self, shape: tuple[Part, ...], placed: bool, name: str) -> None:
        if name and any(body["metadata"]["name"] == name for body in self.world.api.values()):
            return
        self.world.create(shape, placed=placed, name=name)

    @rule(count=st.integers(2, 4), shape=st.sampled_from(SHAPES))
    def burst(self, count: int, shape: tuple[Part, ...]) -> None:
        for _ in range(count):
            self.world.create(shape)

    @rule()
    def create_spread(self) -> None:
        self.world.create(SPREAD, across=2)

    @rule(data=st.data(), lie=st.sampled_from(LIES))
    def edit(self, data: st.DataObject, lie: tuple[str, str]) -> None:
        """After its placement: it moves nothing and frees nothing, neither of the pod nor of another."""
        records = {uid: self.world.cluster.pod(uid) for uid in self.world.api}
        uid = self._any(data, sorted(uid for uid, record in records.items() if record and record.allocation))
        if uid is None:
            return
        self.world.edit(uid, *lie)
        for one, record in records.items():
            now = self.world.cluster.pod(one)
            assert (record and record.charges) == (now and now.charges), (uid, one, lie)

    @rule(data=st.data(), gracefully=st.booleans())
    def delete(self, data: st.DataObject, gracefully: bool) -> None:
        uid = self._any(data, sorted(self.world.api))
        if uid is None:
            return
        if gracefully:
            self.world.runs.pop(uid, None)
        self.world.remove(uid)

    @rule(data=st.data())
    def kubelet_forgets_a_forced_deletion(self, data: st.DataObject) -> None:
        uid = self._any(data, sorted(set(self.world.runs) - set(self.world.api)))
        if uid is not None:
            del self.world.runs[uid]

    # --- kubelet ----------------------------------------------------------------------------------
    @rule(
        data=st.data(),
        restart=st.sampled_from([-1, -1, -1, 1]),
        crash=st.sampled_from([-1, -1, -1, 0, 1]),
        forgotten=st.sampled_from([False, False, True]),
    )
    def admit(self, data: st.DataObject, restart: int, crash: int, forgotten: bool) -> None:
        """One pod, perhaps with a restart of the agent or of kubelet in the middle.

        Perhaps kubelet makes its table of ids in use anew while the pod gets its own: it then lacks these,
        and offers them to others, until it makes the table anew once more.
        """
        uid = self._any(data, self._waiting())
        if uid is None:
            return
        if restart >= 0:
            self.world.manager.rollback()
        if self.world.admit(uid, restart_agent_at=restart, crash_at=crash) and forgotten:
            self.world.manager.rollback()
            self.world.manager.lose_track_of(uid)

    @rule(data=st.data(), told=st.booleans())
    def admit_all(self, data: st.DataObject, told: bool) -> None:
        """A burst, in any order."""
        if told:
            self.world.tell()
        for uid in data.draw(st.permutations(self._waiting())):
            self.world.admit(uid)

    @rule(data=st.data())
    def start_all(self, data: st.DataObject) -> None:
        for uid in data.draw(st.permutations(self._ready())):
            self._start(uid)

    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        uid = self._any(data, self._ready())
        if uid is not None:
            self._start(uid)

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        uid = self._any(data, self._started())
        if uid is not None:
            self.world.end(uid)

    @rule(data=st.data())
    def end_some(self, data: st.DataObject) -> None:
        for uid in self._started():
            if data.draw(st.booleans()):
                self.world.end(uid)

    @rule()
    def restart_kubelet(self) -> None:
        self.world.restart_kubelet()

    @rule(index=st.integers(0, 3), healthy=st.booleans())
    def health(self, index: int, healthy: bool) -> None:
        self.world.set_health(index, healthy)

    # --- agent ------------------------------------------------------------------------------------
    @rule()
    def restart_agent(self) -> None:
        """It takes long enough for kubelet to have made its table of ids in use anew.

        If not, and if it lacks a pod that is listed nowhere, that pod's ids would be known to nobody.
        """
        self.world.manager.rollback()
        self.world.restart_agent()

    @rule(count=st.integers(1, 3))
    def tell(self, count: int) -> None:
        self.world.tell(count)

    @rule(seconds=st.sampled_from([0.0, 1.0, 20.0]))
    def reconcile(self, seconds: float) -> None:
        self.world.now += seconds
        self.world.tell()
        self.world.reconcile()

    @rule()
    def publish(self) -> None:
        self.world.publish()

    # --- what must hold ---------------------------------------------------------------------------
    @invariant()
    def nothing_is_double(self) -> None:
        """No id serves two pods that run, and no GPU is held whole and otherwise.

        But for a pod that was deleted by force and is listed nowhere: only kubelet knows that it still runs.
        """
        seen: dict[str, str] = {}
        modes: dict[str, set[tuple[str, str]]] = {}
        for uid, run in self.world.runs.items():
            if uid not in self.world.api and all(part.init for part in run.order):
                continue
            held = self.world.held(uid)
            for name in run.started:
                for device in held.get(name, ()):
                    assert seen.setdefault(device, uid) == uid, f"{device} in {seen[device]} and {uid}"
                resource = self._resource(uid, name)
                for gpu in self.world.gpus_of(uid).get(name, ()):
                    modes.setdefault(gpu, set()).add((resource, uid))
        for users in modes.values():
            whole = {user for user in users if user[0] != GPU_MEM}
            assert not whole or len(users) == 1

    @invariant()
    def nothing_is_wrong(self) -> None:
        """What the ledger is certain of, about a container that has started, is what kubelet gave it."""
        owned = {held.owner: held for held in self.world.ledger.held() if held.certain}
        for uid, run in self.world.runs.items():
            given = self.world.held(uid)
            for name in run.started if not self._nameless(uid, uid) else ():
                held = owned.get(Owner(uid, name))
                if held is not None:
                    assert held.ids == given[name], (uid, name)

    @invariant()
    def containers_of_a_pod_with_init_containers_share_a_gpu(self) -> None:
        """But for a pod whose sidecar keeps what the init container before it left: the next gets ids of its own."""
        for uid, run in self.world.runs.items():
            if any(part.sidecar for part in run.parts):
                continue
            if run.admitted and any(part.init and part.units for part in run.parts):
                gpus = self.world.gpus_of(uid)
                if len(run.started) == len(run.order):
                    assert len(set().union(*gpus.values())) == 1

    def teardown(self) -> None:
        """Everything ends: nothing is left in the ledger, and one look is enough for it."""
        if not hasattr(self, "world"):
            return
        for uid in sorted(self.world.runs):
            self.world.end(uid)
        for uid in sorted(self.world.api):
            self.world.remove(uid)
        self.world.tell()
        self.world.now += SETTLED_SECONDS + STRANGER_SECONDS
        self.world.reconcile()
        assert self.world.ledger.held() == []

    def _start(self, uid: str) -> None:
        for answer in self.world.start(uid):
            if isinstance(answer, Identity):
                assert answer.pod.uid == uid or self._nameless(uid, answer.pod.uid)
            else:
                assert any(cause in answer.message for cause in JUST_CAUSES), answer.message
        run = self.world.runs[uid]
        for name, gpus in self.world.gpus_of(uid).items():
            part = next(p for p in run.parts if p.name == name)
            if name in run.started:
                assert len(gpus) == (part.whole or run.across) or (run.misread and len(gpus) == 1)

    def _nameless(self, uid: str, other: str) -> bool:
        """True for pods of which kubelet says nothing that tells them apart.

        Only init containers of one shape ask; or they have several, of equal sizes, and the agent has restarted.
        """
        runs = [run for run in map(self.world.runs.get, (uid, other)) if run is not None]
        if all(part.init for part in self.world.runs[uid].order) and len({run.parts for run in runs}) == 1:
            return True
        sizes = [{part.units for part in run.order if part.init} for run in runs]
        several = any(sum(part.init for part in run.order) > 1 for run in runs)
        return several and any(run.forgotten for run in runs) and bool(set.intersection(*sizes))

    def _waiting(self) -> list[str]:
        return sorted(u for u, run in self.world.runs.items() if not run.admitted and u in self.world.api)

    def _ready(self) -> list[str]:
        return sorted(u for u, run in self.world.runs.items() if run.admitted and u in self.world.api)

    def _started(self) -> list[str]:
        return sorted(u for u, run in self.world.runs.items() if run.started)

    def _any(self, data: st.DataObject, choices: list[str]) -> str | None:
        return data.draw(st.sampled_from(choices)) if choices else None

    def _resource(self, uid: str, name: str) -> str:
        part = next(part for part in self.world.runs[uid].parts if part.name == name)
        return GPU_MEM if part.units else part.resource


TestNode = Node.TestCase
TestNode.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
