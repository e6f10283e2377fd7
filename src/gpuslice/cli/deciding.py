"""Options of the commands that choose among nodes and GPUs; apart, because the policies need numpy."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from gpuslice.errors import InputError
from gpuslice.placement.policies import KNOWN, find
from gpuslice.placement.policies.policy import Policy
from gpuslice.scheduler.core import DEFAULTS, CoreSettings


class _PolicyName(click.ParamType[Policy]):
    name = "policy"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Policy:
        try:
            return find(value) if isinstance(value, str) else value
        except InputError as error:
            self.fail(str(error), param, ctx)


policy = click.option(
    "--policy",
    type=_PolicyName(),
    default=DEFAULTS.policy.name,
    show_default=True,
    metavar=f"[{'|'.join(KNOWN)}]",
    help="How to choose among the nodes and GPUs that fit. "
    + "; ".join(f"{one.name}: {one.summary}" for one in KNOWN.values())
    + ".",
)


def core_options(command: Callable[..., None]) -> Callable[..., None]:
    """Click options that arrive as one argument, `core`: CoreSettings."""

    @policy
    @click.option(
        "--mig-idle",
        type=click.IntRange(min=1),
        default=int(DEFAULTS.mig_idle_seconds),
        show_default=True,
        metavar="SECONDS",
        help="On nodes with the label gpuslice.io/mig-policy=on-demand: how long a MIG instance may be idle.",
    )
    @wraps(command)
    def collecting(*args: Any, policy: Policy, mig_idle: int, **others: Any) -> None:
        command(*args, core=CoreSettings(policy, mig_idle_seconds=mig_idle), **others)

    return collecting
