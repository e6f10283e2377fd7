"""Values as JSON or YAML."""

from __future__ import annotations

import click
import msgspec
import yaml


class Report(msgspec.Struct, frozen=True, rename="camel"):
    """Base of what `-o` prints: camelCase keys."""


def print_as(value: msgspec.Struct, form: str) -> None:
    """Print as `json` or `yaml`."""
    if form == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2))
    else:
        click.echo(yaml.safe_dump(msgspec.to_builtins(value), sort_keys=False, width=1000), nl=False)
