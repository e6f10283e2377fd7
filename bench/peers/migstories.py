"""What is compared with mig-parted: its commands, one after the other, and files that are wrong."""

from __future__ import annotations

from dataclasses import dataclass

from scenarios import T4, a100s, mixed


@dataclass(frozen=True)
class MigStory:
    """Commands of mig-parted on a machine, one after the other, and the layout after each."""

    name: str
    machine: str
    commands: tuple[tuple[str, ...], ...]
    now: tuple[str, ...] = ()


STATE = "STATE"
"""In a command: the file of a checkpoint."""
CONFIG = """
version: v1
mig-configs:
  all-disabled: [{devices: all, mig-enabled: false}]
  all-enabled: [{devices: all, mig-enabled: true, mig-devices: {}}]
  all-1g.5gb: [{devices: all, mig-enabled: true, mig-devices: {1g.5gb: 7}}]
  all-balanced: [{devices: all, mig-enabled: true, mig-devices: {1g.5gb: 2, 2g.10gb: 1, 3g.20gb: 1}}]
  all-3g.20gb: [{devices: all, mig-enabled: true, mig-devices: {3g.20gb: 2}}]
  custom:
  - {devices: [0], mig-enabled: true, mig-devices: {1g.5gb: 2, 2g.10gb: 1, 3g.20gb: 1}}
  - {devices: [1], mig-enabled: false}
  first-only: [{devices: [0], mig-enabled: true, mig-devices: {3g.20gb: 1}}]
  filtered: [{device-filter: '0x20B010DE', devices: all, mig-enabled: true, mig-devices: {7g.40gb: 1}}]
  overlapping:
  - {devices: all, mig-enabled: true, mig-devices: {1g.5gb: 7}}
  - {devices: [1], mig-enabled: true, mig-devices: {3g.20gb: 2}}
  decimal: [{device-filter: '548409566', devices: all, mig-enabled: true, mig-devices: {7g.40gb: 1}}]
  parts: [{devices: all, mig-enabled: true, mig-devices: {1c.4g.20gb: 2, 2c.4g.20gb: 1}}]
  eight: [{devices: all, mig-enabled: true, mig-devices: {1g.5gb: 8}}]
  too-much: [{devices: all, mig-enabled: true, mig-devices: {4g.20gb: 1, 3g.20gb: 1, 1g.5gb: 1}}]
  unknown-profile: [{devices: all, mig-enabled: true, mig-devices: {1g.24gb: 1}}]
  beside-unknown: [{devices: all, mig-enabled: true, mig-devices: {1g.10gb+gfx: 1, 1g.5gb: 2}}]
  device-7: [{devices: [7], mig-enabled: true, mig-devices: {1g.5gb: 1}}]
  foreign: [{device-filter: '0x233010DE', devices: all, mig-enabled: true, mig-devices: {1g.10gb: 1}}]
"""


def _one(entry: str, version: str = "v1", name: str = "x") -> str:
    return f"{{version: {version}, mig-configs: {{{name}: [{{devices: all, {entry}}}]}}}}"


WRONG_FILES = {
    "mig-enabled without mig-devices": _one("mig-enabled: true"),
    "mig-devices with mig off": _one("mig-enabled: false, mig-devices: {1g.5gb: 1}"),
    "no profile": _one("mig-enabled: true, mig-devices: {foo: 1}"),
    "a count of -1": _one("mig-enabled: true, mig-devices: {1g.5gb: -1}"),
    "a count of 0": _one("mig-enabled: true, mig-devices: {1g.5gb: 0}"),
    "an unknown key": _one("mig-enabled: false, colour: red"),
    "another version": _one("mig-enabled: false", version="v2"),
    "no such name": _one("mig-enabled: false", name="y"),
}


def _story(name: str, *words: str, machine: str | None = None, now: tuple[str, ...] = ()) -> MigStory:
    return MigStory(name, machine or a100s(2), tuple(tuple(word.split()) for word in words), now)


def _apply(name: str) -> str:
    return f"apply -f - -c {name}"


def _assert(name: str, *more: str) -> str:
    return " ".join(("assert -f - -c", name, *more))


STORIES = (
    _story("as it is: export", "export"),
    _story(
        "all-balanced", _apply("all-balanced"), _assert("all-balanced"), "export", "export -o json -l mine"
    ),
    _story("all-1g.5gb, then all-3g.20gb", _apply("all-1g.5gb"), _apply("all-3g.20gb"), "export"),
    _story(
        "all-enabled, then all-disabled", _apply("all-enabled"), "export", _apply("all-disabled"), "export"
    ),
    _story("custom, GPU by GPU", _apply("custom"), _assert("custom"), "export"),
    _story("filtered", _apply("filtered"), _assert("filtered")),
    _story("H100: no reset", _apply("all-disabled"), "export", machine="8xH100-80"),
    _story("parts of an instance", _apply("parts"), _assert("parts"), "export"),
    _story("assert what is not so", _assert("all-balanced")),
    _story(
        "assert the mode only",
        _assert("all-balanced", "--mode-only"),
        _apply("all-enabled"),
        _assert("all-balanced", "--mode-only"),
    ),
    _story("apply the mode only", "apply -f - -c all-balanced --mode-only", "export"),
    _story("skip the reset", "apply -f - -c all-enabled --skip-reset"),
    _story(
        "checkpoint, then restore",
        _apply("all-balanced"),
        f"checkpoint -f {STATE}",
        _apply("all-enabled"),
        f"restore -f {STATE}",
        "export",
    ),
    _story(
        "checkpoint of divided instances",
        _apply("parts"),
        f"checkpoint -f {STATE}",
        _apply("all-enabled"),
        f"restore -f {STATE}",
    ),
    _story("restore of nothing", f"restore -f {STATE}"),
    _story("generate-config: A100", "generate-config", "generate-config -o json"),
    _story("generate-config: H100", "generate-config", machine="8xH100-80"),
    _story("generate-config: A30", "generate-config", machine="4xA30"),
    _story(
        "generate-config: A100 beside A30",
        "generate-config",
        machine=mixed("{model: A100-40}", "{model: A30}"),
    ),
    _story("generate-config: RTX PRO 6000", "generate-config", machine="RTX-PRO-6000"),
    _story("all, then one otherwise", _apply("overlapping"), "export"),
    _story("a decimal filter", _apply("decimal"), "export"),
    _story("hooks that do nothing", "apply -f - -c all-balanced -k /dev/null", "export"),
    _story("only the first", _apply("first-only"), _assert("first-only")),
    _story("impossible: 8 x 1g.5gb", _apply("all-1g.5gb"), _apply("eight")),
    _story("impossible: 4g + 3g + 1g", _apply("all-balanced"), _apply("too-much")),
    _story("a profile that the GPU has not", _apply("all-balanced"), _apply("unknown-profile")),
    _story("beside a profile that the GPU has not", _apply("all-balanced"), _apply("beside-unknown")),
    _story("GPU 7 of 2", _apply("device-7")),
    _story("another model's filter", _apply("foreign")),
    *(
        _story(f"--valid-config: {name}", _assert(name, "--valid-config"))
        for name in ("all-balanced", "eight", "too-much", "unknown-profile", "device-7", "foreign")
    ),
    _story("no such configuration", _apply("nosuch")),
    _story(
        "in use",
        _apply("all-3g.20gb"),
        machine=a100s(2, "1g.5gb", "1g.5gb"),
        now=("busy 1 7", "busy 1 13", "busy 1 11"),
    ),
    _story("no GPU that can be cut", _apply("all-balanced"), "export", machine=mixed(T4, T4)),
    _story("A100 beside T4", _apply("all-balanced"), "export", machine=mixed("{model: A100-40}", T4)),
)
