"""The option --policy of the commands that choose; apart, because the policies need numpy."""

from __future__ import annotations

from typing import Any

import click

from gpuslice.errors import InputError
from gpuslice.placement.policies import KNOWN, find
from gpuslice.placement.policies.policy import Policy


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
    default="binpack",
    show_default=True,
    metavar=f"[{'|'.join(KNOWN)}]",
    help="How to choose among the nodes and GPUs that fit. "
    + "; ".join(f"{one.name}: {one.summary}" for one in KNOWN.values())
    + ".",
)
