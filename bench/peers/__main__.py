"""NVIDIA's device plugin, GPU feature discovery and mig-parted beside ours, on the same described machines.

    python bench/peers [--peers FOLDER] [--only WORDS] [--verbose]

Both sides load one library in the place of NVML, which the tests' machine descriptions drive, and register
with a kubelet that records. What they say is compared one by one; what differs and is not in
`differences.py` makes the exit code 1. Root is needed (each process gets a mount namespace), and for the
first run git, Go and a C compiler: the tools are built from their sources. Results: bench/results/peers.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent / "tests/nvml")]

from build import binaries, versions  # noqa: E402
from differences import why  # noqa: E402
from migstories import CONFIG, STATE, STORIES, WRONG_FILES, MigStory  # noqa: E402
from place import Place, library  # noqa: E402
from scenarios import SCENARIOS, Scenario  # noqa: E402
from sides import Ours, Running, Side, Theirs  # noqa: E402

from gpuslice.devices.preferred import pair_score  # noqa: E402
from gpuslice.devices.sharing import device_of  # noqa: E402
from machine import facts as machine_facts  # noqa: E402

HEALTH_SECONDS = 5.0
ENDED = ("runs", "registers", "says", "resources", "label error")
"""What says that a side has ended; all else of that scenario has nobody to be compared with."""

TIMESTAMP = "nvidia.com/gfd.timestamp"

Facts = dict[str, Any]


class Comparison:
    """Everything that was asked, what the two said, and whether that was meant to differ."""

    def __init__(self) -> None:
        self.rows: list[Facts] = []

    def compare(self, scenario: str, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
        for what in dict.fromkeys([*theirs, *ours]):
            one, other = theirs.get(what), ours.get(what)
            row: Facts = {"scenario": scenario, "what": what, "same": one == other, "theirs": one}
            if what not in ENDED and _ended(what, theirs) != _ended(what, ours):
                row |= {"same": False, "ours": other, "alone": True}
            elif one != other:
                row |= {"ours": other, "why": why(scenario, what)}
            self.rows.append(row)

    def summary(self) -> Facts:
        """Numbers by scenario, and everything that differs."""
        scenarios: dict[str, Facts] = {}
        for row in self.rows:
            one = scenarios.setdefault(
                row["scenario"], {"compared": 0, "same": 0, "alone": 0, "different": []}
            )
            if row.get("alone"):
                one["alone"] += 1
                continue
            one["compared"] += 1
            one["same"] += row["same"]
            if not row["same"]:
                one["different"].append({key: row[key] for key in ("what", "theirs", "ours", "why")})
        return {"scenarios": scenarios}

    def told(self, verbose: bool) -> bool:
        """Print what differs; False if something does that should not."""
        rows = [row for row in self.rows if not row.get("alone")]
        for row in rows:
            if row["same"] or (row["why"] and not verbose):
                continue
            print(f"\n{row['scenario']}: {row['what']}" + (f" ({row['why']})" if row["why"] else ""))
            print(f"  theirs: {json.dumps(row['theirs'])}\n  ours:   {json.dumps(row['ours'])}")
        same = sum(row["same"] for row in rows)
        meant = sum(not row["same"] and bool(row["why"]) for row in rows)
        alone = len(self.rows) - len(rows)
        print(f"\n{len(rows)} compared: {same} the same, {meant} differ on purpose, ", end="")
        print(f"{len(rows) - same - meant} differ; {alone} more where one of the two had ended")
        return same + meant == len(rows)


def _ended(what: str, facts: Mapping[str, Any]) -> bool:
    """True if the program that would have said this had ended: of labels it is feature discovery."""
    return "label error" in facts if what.startswith("label ") else not facts.get("runs", True)


async def lived(side: Side, scenario: Scenario, place: Place) -> Facts:
    """What one side says on a machine from its start to the end."""
    facts: Facts = {}
    place.hardware.now(*scenario.now)
    if scenario.kept:
        place.kept.write_text("\n".join(scenario.kept) + "\n")
    env = dict(scenario.env)
    if scenario.config:
        env["CONFIG_FILE"] = str(place.folder / "config.yaml")
        (place.folder / "config.yaml").write_text(scenario.config)
    async with side.plugin(place, env) as running:
        await running.settled(scenario.resources)
        facts["runs"] = not running.ended
        facts["registers"] = bool(running.recorder.plugins)
        if running.ended:
            facts["says"] = running.outcome().words()
        else:
            facts |= announced(running)
            facts |= await asked(running, scenario)
            facts |= await sickened(running, scenario, place)
        if scenario.labels:
            labels = await side.labels(place, env, running)
            stamp = labels.pop(TIMESTAMP, None)
            facts |= {f"label {key}": value for key, value in labels.items()}
            if "error" not in labels:
                facts[f"label {TIMESTAMP} is there"] = stamp is not None
    return facts


def announced(running: Running) -> Facts:
    recorder = running.recorder
    facts: Facts = {"resources": {name: len(ids) for name, ids in recorder.announced().items()}}
    for name, ids in recorder.announced().items():
        facts[f"{name}: ids, health, NUMA nodes"] = ids
        facts[f"{name}: offers GetPreferredAllocation"] = recorder.plugins[
            name
        ].registration.options.preferred_allocation
        facts[f"{name}: socket"] = recorder.plugins[name].registration.endpoint
    return facts


async def asked(running: Running, scenario: Scenario) -> Facts:
    facts: Facts = {}
    for resource, free, size, *must in scenario.prefers:
        if resource not in running.recorder.plugins:
            continue
        ids = list(running.recorder.announced().get(resource, {}))[-free:]
        included = [ids[place] for place in must]
        chosen = await running.recorder.prefer(resource, ids, included, size)
        name = f"GetPreferredAllocation {resource}: {size} of {free}"
        name += f", with {', '.join(map(str, must))}" if must else ""
        facts[name] = nearness(chosen, running.place)
        facts[f"{name}: of which devices"] = sorted(map(device_of, chosen))
        facts[f"{name}: has what it must"] = set(included) <= set(chosen)
    for resource, places in scenario.asks:
        ids = list(running.recorder.announced().get(resource, {}))
        wanted = [ids[one] if one < len(ids) else "GPU-nope" for one in places]
        if resource not in running.recorder.plugins:
            continue
        answer = await running.recorder.allocate(resource, wanted)
        answer["devices"] = [
            one.replace(str(running.place.root), "ROOT") for one in answer.get("devices", ())
        ]
        facts[f"Allocate {resource} {list(places)}"] = answer
    if scenario.asks and "cdi" in str(scenario.env):
        facts |= specification(running.place.cdi)
    return facts


def nearness(chosen: list[str] | dict[str, str], place: Place) -> object:
    """How many ids, and how near their GPUs are to each other: many choices are equally good."""
    if isinstance(chosen, dict):
        return chosen
    gpus = [one.gpu for one in place.hardware.paper.gpus if one.gpu.uuid in chosen]
    score = sum(pair_score(one, other) for one, other in combinations(gpus, 2))
    return {"ids": len(chosen), "sum of pair scores": score}


def specification(folder: Path) -> Facts:
    """The CDI files: which devices they name, and the device files of each."""
    facts: Facts = {}
    for path in sorted(folder.iterdir()):
        spec = json.loads(path.read_text())
        for device in spec["devices"]:
            nodes = sorted(node["path"] for node in device["containerEdits"].get("deviceNodes", []))
            facts[f"CDI {path.name}: {spec['kind']}={device['name']}"] = nodes
        edits = spec.get("containerEdits", {})
        facts[f"CDI {path.name}: env"] = edits.get("env")
        facts[f"CDI {path.name}: mounts"] = sorted(one["containerPath"] for one in edits.get("mounts", []))
        facts[f"CDI {path.name}: device files of all"] = sorted(
            node["path"] for node in edits.get("deviceNodes", [])
        )
    return facts


async def sickened(running: Running, scenario: Scenario, place: Place) -> Facts:
    facts: Facts = {}
    if scenario.xids:
        await asyncio.sleep(1)  # the events are registered after the devices are told
    for number, gpu, *instance in scenario.xids:
        before = running.recorder.sick()
        place.hardware.happens("xid", gpu, number, *instance)
        await running.recorder.until(lambda before=before: running.recorder.sick() != before, HEALTH_SECONDS)
        await asyncio.sleep(0.3)
        where = f"GPU {gpu}" + (f", instance {instance[0]}" if instance else "")
        facts[f"sick after XID {number} on {where}"] = running.recorder.sick()
    if scenario.later:
        await asyncio.sleep(1)
        place.hardware.now(*scenario.later)
        await running.recorder.until(lambda: bool(running.recorder.sick()), HEALTH_SECONDS)
        await asyncio.sleep(1)
        facts[f"sick after {', '.join(scenario.later)}"] = running.recorder.sick()
    return facts


def told(side: Side, story: MigStory, place: Place) -> Facts:
    """What mig-parted's commands do, one after the other."""
    facts: Facts = {}
    place.hardware.now(*story.now)
    for number, words in enumerate(story.commands, 1):
        file = place.folder / "state.json"
        command = [str(file) if word == STATE else word for word in words]
        done = side.mig(place, *command, stdin=CONFIG if "-" in words else "")
        name = f"{number}. {' '.join(words)}"
        facts[f"{name}: succeeds"] = not done.code
        if words[0] in ("export", "generate-config"):
            facts[f"{name}: printed"] = plain(yaml.safe_load(done.out)) if not done.code else done.words()
        elif words[0] == "checkpoint" and not done.code:
            facts[f"{name}: written"] = json.loads(file.read_text())
        elif done.code or words[0] == "assert":
            facts[f"{name}: says"] = done.words()
        facts[f"{name}: layout"] = layout(place)
    return facts


def plain(document: Any) -> Any:
    """A file of mig-parted's without the choices of its writer: a filter or a list of one, none or {}."""
    for entries in document["mig-configs"].values():
        for entry in entries:
            entry["mig-devices"] = entry.get("mig-devices") or {}
            if isinstance(entry.get("device-filter"), str):
                entry["device-filter"] = [entry["device-filter"]]
    return document


def layout(place: Place) -> list[str]:
    return [" ".join(line.split()[1:]) for line in sorted(place.layout() or place.at_first())]


def refused(side: Side, text: str, place: Place) -> Facts:
    done = side.mig(place, "assert", "--valid-config", "-f", "-", "-c", "x", stdin=text)
    return {"succeeds": not done.code, "says": done.words()}


async def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--peers", type=Path, default=Path.home() / ".cache/gpuslice/peers")
    parser.add_argument("--only", default="", help="only scenarios whose names have this")
    parser.add_argument("--verbose", action="store_true", help="show what differs on purpose, too")
    options = parser.parse_args()
    sides: tuple[Theirs, Ours] = (Theirs(binaries(options.peers)), Ours())
    found = Comparison()
    with tempfile.TemporaryDirectory(prefix="peers") as name:
        folder = Path(name)
        new, old = library(folder / "new"), library(folder / "old", "-DOLD_DRIVER")
        number = 0

        def place(description: str, side: Side, built: Path | None) -> Place:
            nonlocal number
            number += 1
            return Place(folder / f"{number}{side.name}", description, built)

        for scenario in SCENARIOS:
            if options.only not in scenario.name:
                continue
            built = None if scenario.no_library else old if scenario.old_driver else new
            here = [place(scenario.machine, side, built) for side in sides]
            facts = await asyncio.gather(
                *(lived(side, scenario, one) for side, one in zip(sides, here, strict=True))
            )
            found.compare(scenario.name, *facts)
            for one in here:
                one.remove()
        for story in STORIES:
            if options.only in story.name:
                both = await asyncio.gather(
                    *(asyncio.to_thread(told, s, story, place(story.machine, s, new)) for s in sides)
                )
                found.compare(f"mig-parted, {story.name}", *both)
        for what, text in WRONG_FILES.items():
            if options.only in what:
                both = await asyncio.gather(
                    *(asyncio.to_thread(refused, s, text, place("2xT4", s, new)) for s in sides)
                )
                found.compare(f"mig-parted, a file with {what}", *both)
    whole = not options.only
    right = found.told(options.verbose)
    if whole:
        result = {"benchmark": "peers", "machine": machine_facts(), "versions": versions(), **found.summary()}
        (HERE.parent / "results/peers.json").write_text(json.dumps(result, indent=1) + "\n")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
