"""What the chart renders, word by word, and that any Kubernetes would take it.

A change of the chart changes these files: `UPDATE_GOLDEN=1 make test` writes them anew, for the eyes of whoever
reviews the change.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import msgspec
import pytest
from chart_world import CASES, GOLDEN, ROOT, find, objects, render
from foreign import program

from gpuslice.clock import SystemClock
from gpuslice.local.apiserver.api.app import ApiServer
from gpuslice.local.apiserver.api.http import Reply, Request
from gpuslice.local.apiserver.schema.kinds import BUILT_IN

FOREIGN = {"cert-manager.io", "monitoring.coreos.com"}
"""Groups of other projects, whose types no Kubernetes knows by itself."""


@pytest.mark.parametrize("name", CASES)
def test_the_chart_renders_what_was_reviewed(name: str) -> None:
    text, file = render(CASES[name]), GOLDEN / f"{name}.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(text)
    assert text == file.read_text()


def test_there_is_no_golden_file_of_nothing() -> None:
    assert {file.stem for file in GOLDEN.iterdir()} == set(CASES)


@pytest.mark.parametrize("name", CASES)
async def test_every_object_passes_strict_validation(name: str) -> None:
    """Unknown fields and wrong types are refused, for templates of pods as for pods themselves."""
    server = ApiServer(clock=SystemClock(), new_uid=iter(map(str, range(1000))).__next__)
    await server.start()
    try:
        await _create(server, _namespace(CASES[name].namespace))
        for one in objects(render(CASES[name])):
            if one["apiVersion"].partition("/")[0] in FOREIGN:
                continue
            await _create(server, one)
            if one["kind"] in ("Deployment", "DaemonSet", "Job"):
                await _create(server, _pod_of(one))
    finally:
        await server.stop()


async def test_a_wrong_field_would_be_noticed() -> None:
    """The check above is one."""
    server = ApiServer(clock=SystemClock(), new_uid=iter(map(str, range(1000))).__next__)
    await server.start()
    try:
        await _create(server, _namespace("gpuslice-system"))
        deployment = find(render(CASES["bundled"]), "Deployment", "gpuslice-scheduler")
        deployment["spec"]["template"]["spec"]["containers"][0]["imagePullPolice"] = "Always"
        with pytest.raises(AssertionError, match="imagePullPolice"):
            await _create(server, deployment)
    finally:
        await server.stop()


@pytest.mark.parametrize("wiring", ["bundled", "extender", "own"])
def test_the_manifests_are_in_step_with_the_chart(wiring: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    monkeypatch.delitem(sys.modules, "manifests", raising=False)
    import manifests

    assert (manifests.FOLDER / f"{wiring}.yaml").read_text() == manifests.render(program("helm"), wiring), (
        "run `make manifests`"
    )
    assert set(manifests.WIRINGS) == {file.stem for file in manifests.FOLDER.iterdir()}


def _namespace(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def _pod_of(workload: dict[str, Any]) -> dict[str, Any]:
    template = workload["spec"]["template"]
    meta = template["metadata"] | {k: workload["metadata"][k] for k in ("name", "namespace")}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": template["spec"]}


async def _create(server: ApiServer, one: dict[str, Any]) -> None:
    kind = next(k for k in BUILT_IN if (k.api_version, k.kind) == (one["apiVersion"], one["kind"]))
    space = one["metadata"].get("namespace")
    assert kind.namespaced == (space is not None), f"{one['kind']} and namespace {space}"
    path = f"/apis/{kind.api_version}" if kind.group else "/api/v1"
    path += f"/namespaces/{space}/{kind.plural}" if space else f"/{kind.plural}"
    request = Request(
        "POST", path, {"fieldValidation": "Strict"}, msgspec.json.encode(one), "application/json"
    )
    answer = await server.handle(request)
    assert isinstance(answer, Reply)
    assert answer.status == 201, answer.body.decode()
