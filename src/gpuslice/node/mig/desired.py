"""What a node object asks of its GPUs: a configuration by its name, or layouts made for waiting pods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gpuslice import names
from gpuslice.cluster.migrecords import MigPolicy, Target, decode_wanted, target_layout
from gpuslice.config.migparted import MigPartedFile
from gpuslice.devices.miglayout import MigLayout
from gpuslice.devices.sharing import MigStrategy
from gpuslice.errors import InputError
from gpuslice.kube.wire import Node
from gpuslice.node.mig.executor import MigGoal, goals_of
from gpuslice.node.mig.survey import MigMachine
from gpuslice.placement.migrestore import plan_restore
from gpuslice.placement.migsteps import MigPlan
from gpuslice.placement.verdict import Verdict


@dataclass(frozen=True, slots=True)
class DesiredMig:
    """`config` is the name in the node's label; on demand `wanted`, the annotation's text, counts instead.

    False if nobody asks for anything, or if NVIDIA's own manager follows the label.
    """

    policy: str = MigPolicy.STATIC
    config: str = ""
    wanted: str = ""

    @classmethod
    def of(cls, node: Node) -> DesiredMig:
        """What the node asks for. Text that cannot be read is reported only when it is used."""
        labels = node.metadata.labels or {}
        if labels.get(names.NVIDIA_MIG_MANAGER, "false") != "false":
            return cls()
        policy = labels.get(names.MIG_POLICY, MigPolicy.STATIC)
        if policy == MigPolicy.STATIC:
            return cls(policy, labels.get(names.MIG_CONFIG, ""))
        return cls(policy, wanted=node.annotations.get(names.MIG_WANTED, ""))

    def __str__(self) -> str:
        return f"{names.MIG_POLICY}={self.policy}" if self.on_demand else f"{names.MIG_CONFIG}={self.config}"

    def __bool__(self) -> bool:
        return self.on_demand or bool(self.config)

    @property
    def on_demand(self) -> bool:
        """True if the waiting pods decide."""
        return self.policy != MigPolicy.STATIC

    def goals(
        self, machine: MigMachine, configs: Path | None, strategy: MigStrategy
    ) -> Mapping[str, MigGoal]:
        """The goals of the GPUs, by UUID. `configs`: mig-parted's file, None for the standard configurations.

        Raises InputError for what cannot be read, is not known, or is impossible on these GPUs.
        """
        if not self.on_demand:
            file = MigPartedFile.load(configs) if configs is not None else machine.standard
            return goals_of(machine.specs(file, self.config))
        MigPolicy.of({names.MIG_POLICY: self.policy})
        if strategy is not MigStrategy.MIXED:
            raise InputError(
                "GPUs are partitioned on demand only where MIG devices are counted by their profile; this "
                f"node's agent has the strategy {strategy}, start it with --mig-strategy mixed",
                field=f"label {names.MIG_POLICY}",
            )
        targets = decode_wanted({names.MIG_WANTED: self.wanted} if self.wanted else {})
        there = {one.gpu.uuid for one in machine.gpus if one.layout is not None}
        return {
            uuid: MigGoal(target is not None, partial(_towards, target=target))
            for uuid, target in targets.items()
            if uuid in there
        }


def _towards(now: MigLayout, target: Target) -> MigPlan | Verdict:
    return plan_restore(now, target_layout(now.geometry, target))
