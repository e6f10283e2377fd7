"""The kubelet's pure parts: environment, admission, checkpoint, logs, command lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuslice.local.kubelet.admission import Need, check_affinity, check_resources, need_of
from gpuslice.local.kubelet.checkpoint import FILE_NAME, CheckpointFile
from gpuslice.local.kubelet.devicemanager import Holding
from gpuslice.local.kubelet.environment import (
    ConfigError,
    WaitingPod,
    command_line,
    decode_secret,
    environment,
    expand,
    on_the_host,
    sources,
)
from gpuslice.local.kubelet.logs import LIMIT, Log
from gpuslice.local.kubelet.node import PodAddresses
from gpuslice.local.kubelet.podspec import RunPod
from gpuslice.local.kubelet.runtime import sleeping_time
from gpuslice.local.streams import LogOptions
from gpuslice.node.kubelet.messages import ContainerAllocation, Mount

FACTS = WaitingPod("10.128.1.1", "10.0.0.1", {"cpu": "8", "memory": "16777216Ki"})


def pod(container: dict[str, Any], **spec: Any) -> RunPod:
    metadata = {
        "name": "p",
        "namespace": "ns",
        "uid": "u",
        "labels": {"app": "x"},
        "annotations": {"a/b": "c"},
    }
    body = {
        "metadata": metadata,
        "spec": {"nodeName": "n", "containers": [{"name": "c", **container}], **spec},
    }
    return msgspec.convert(body, RunPod)


def env_of(*env: dict[str, Any], plugin: dict[str, str] | None = None, **more: Any) -> dict[str, str]:
    one = pod({"env": list(env), **more.pop("container", {})})
    answers = [ContainerAllocation(envs=plugin or {})]
    return environment(one, one.spec.containers[0], answers, more.pop("values", {}), FACTS)


# --- environment ------------------------------------------------------------------------------------
def test_the_pods_own_value_wins_over_the_plugins() -> None:
    """Why admission must take NVIDIA_VISIBLE_DEVICES=all out of pods."""
    env = env_of(
        {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}, plugin={"NVIDIA_VISIBLE_DEVICES": "GPU-1"}
    )
    assert env == {"NVIDIA_VISIBLE_DEVICES": "all"}


def test_references_name_earlier_variables_of_the_pod() -> None:
    env = env_of(
        {"name": "A", "value": "1"},
        {"name": "B", "value": "$(A)-$(C)-$$(A)"},
        {"name": "C", "value": "$(B)"},
    )
    assert env == {"A": "1", "B": "1-$(C)-$(A)", "C": "1-$(C)-$(A)"}


@pytest.mark.parametrize(
    ("text", "expanded"),
    [("$(A)", "1"), ("$(NO)", "$(NO)"), ("$$(A)", "$(A)"), ("$$", "$"), ("$A", "$A"), ("x$(A", "x$(A")],
)
def test_expansion_as_in_the_kubelet(text: str, expanded: str) -> None:
    assert expand(text, {"A": "1"}) == expanded


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "p"),
        ("metadata.namespace", "ns"),
        ("metadata.uid", "u"),
        ("metadata.labels['app']", "x"),
        ("metadata.annotations['a/b']", "c"),
        ("spec.nodeName", "n"),
        ("status.podIP", "10.128.1.1"),
        ("status.hostIP", "10.0.0.1"),
    ],
)
def test_field_references(path: str, value: str) -> None:
    assert env_of({"name": "V", "valueFrom": {"fieldRef": {"fieldPath": path}}}) == {"V": value}


def test_resource_references_round_up_and_default_to_the_node() -> None:
    def reference(resource: str, divisor: str = "") -> dict[str, Any]:
        source = {"resource": resource, "divisor": divisor} if divisor else {"resource": resource}
        return {"name": resource, "valueFrom": {"resourceFieldRef": source}}

    env = env_of(
        reference("limits.cpu"),
        reference("requests.cpu"),
        reference("limits.memory", "1Gi"),
        container={"resources": {"limits": {"cpu": "1500m"}, "requests": {"cpu": "100m"}}},
    )
    assert env == {"limits.cpu": "2", "requests.cpu": "1", "limits.memory": "16"}


def test_whole_objects_come_before_single_variables() -> None:
    container = {"envFrom": [{"prefix": "P_", "configMapRef": {"name": "m"}}, {"secretRef": {"name": "s"}}]}
    values = {("configmap", "m"): {"k": "1"}, ("secret", "s"): {"t": "2"}}
    env = env_of({"name": "t", "value": "own $(P_k)"}, container=container, values=values)
    assert env == {"P_k": "1", "t": "own 1"}
    assert sources(pod(container).spec.containers[0]) == set(values)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({("configmap", "m"): None}, 'configmap "m" not found'),
        ({("configmap", "m"): {"other": ""}}, "couldn't find key k in ConfigMap ns/m"),
    ],
)
def test_what_is_missing_is_told_in_the_kubelets_words(values: Any, text: str) -> None:
    reference = {"name": "m", "key": "k"}
    with pytest.raises(ConfigError) as failure:
        env_of({"name": "V", "valueFrom": {"configMapKeyRef": reference}}, values=values)
    assert str(failure.value) == text
    optional = {"name": "V", "valueFrom": {"configMapKeyRef": reference | {"optional": True}}}
    assert env_of(optional, values=values) == {}


def test_a_secret_is_base64() -> None:
    assert decode_secret({"k": "aGk="}) == {"k": "hi"}
    with pytest.raises(ConfigError, match="not base64"):
        decode_secret({"k": "a"})


def test_the_command_line_is_expanded_with_the_plugins_variables_too() -> None:
    one = pod({"command": ["run", "$(GPU)"], "args": ["$(NO)"]})
    assert command_line(one.spec.containers[0], {"GPU": "g"}) == ("run", "g", "$(NO)")
    assert command_line(pod({"args": ["x"]}).spec.containers[0], {}) == ()


def test_only_mounted_paths_are_rewritten() -> None:
    answers = [ContainerAllocation(mounts=(Mount("/run/gpuslice", "/host/s"),))]
    words = ["cat", "/run/gpuslice/slice.json", "/run/gpuslice", "/run/gpuslicer", "x/run/gpuslice"]
    assert on_the_host(words, answers) == ("cat", "/host/s/slice.json", "/host/s", "/run/gpuslicer", words[4])


# --- admission --------------------------------------------------------------------------------------
def test_a_pods_need_counts_the_larger_of_init_and_app_containers() -> None:
    def asks(name: str, cpu: str, **more: str) -> dict[str, Any]:
        return {"name": name, "resources": {"requests": {"cpu": cpu}}, **more}

    inits = [asks("big", "3"), asks("side", "500m", restartPolicy="Always"), asks("late", "1")]
    assert need_of(pod(asks("c", "1"), initContainers=inits)).cpu_milli == 3000
    assert need_of(pod(asks("c", "4"), initContainers=inits)).cpu_milli == 4500
    limits = {"resources": {"limits": {"memory": "1Gi"}}}
    assert need_of(pod(limits, overhead={"memory": "1Mi"})).memory == 2**30 + 2**20


def test_the_first_scarce_resource_is_named() -> None:
    refusal = check_resources(Need(1, 10), [Need(0, 95)], cpu_milli=100, memory=100, pods=5)
    assert refusal is not None
    assert refusal.reason == "OutOfmemory"
    assert check_resources(Need(0, 5), [Need(0, 95)], cpu_milli=0, memory=100, pods=2) is None


@pytest.mark.parametrize(
    ("operator", "values", "fits"),
    [
        ("In", ["a", "t4"], True),
        ("NotIn", ["t4"], False),
        ("Exists", None, True),
        ("DoesNotExist", None, False),
        ("Gt", ["3"], False),
    ],
)
def test_required_node_affinity(operator: str, values: list[str] | None, fits: bool) -> None:
    term = {"matchExpressions": [{"key": "gpu", "operator": operator, "values": values}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    one = pod({}, affinity={"nodeAffinity": required})
    assert (check_affinity(one, "n", {"gpu": "t4"}) is None) == fits


# --- checkpoint -------------------------------------------------------------------------------------
ANSWER = ContainerAllocation(envs={"A": "1"}, mounts=(Mount("/a", "/b"),))


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    held = [Holding("u", "c", "r/x", frozenset({"1", "2"}), ANSWER)]
    CheckpointFile(tmp_path).save({"r/x": frozenset({"1", "2", "3"})}, held)
    checkpoint = CheckpointFile(tmp_path).load()
    assert (checkpoint.resources, list(checkpoint.holdings)) == (("r/x",), held)


def test_the_file_has_the_kubelets_layout(tmp_path: Path) -> None:
    CheckpointFile(tmp_path).save(
        {"r/x": frozenset({"1"})}, [Holding("u", "c", "r/x", frozenset({"1"}), ANSWER)]
    )
    data = msgspec.json.decode((tmp_path / FILE_NAME).read_bytes())["Data"]
    assert data["RegisteredDevices"] == {"r/x": ["1"]}
    (entry,) = data["PodDeviceEntries"]
    assert (entry["PodUID"], entry["ContainerName"], entry["DeviceIDs"]) == ("u", "c", {"-1": ["1"]})


@pytest.mark.parametrize("damage", [b"", b"{", b'{"Data":{},"Checksum":1}'])
def test_a_damaged_file_is_as_good_as_none(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(damage)
    assert CheckpointFile(tmp_path).load().holdings == ()


# --- logs and commands ------------------------------------------------------------------------------
async def test_a_log_drops_its_oldest_lines() -> None:
    log = Log(lambda: 0)
    for number in range(3):
        log.write(bytes([65 + number]) * (LIMIT // 2) + b"\n")
    log.close()
    kept = b"".join([line async for line in log.read(LogOptions())])
    assert kept[:1] == b"C"
    assert len(kept) <= LIMIT


async def test_an_unfinished_line_is_kept_to_the_end() -> None:
    log = Log(lambda: 0)
    log.write(b"a\nb")
    assert [line async for line in log.read(LogOptions())] == [b"a\n"]
    log.close()
    assert [line async for line in log.read(LogOptions())] == [b"a\n", b"b"]


async def test_only_lines_since_then_are_shown() -> None:
    now = [0]
    log = Log(lambda: now[0])
    log.write(b"old\n")
    now[0] = 100 * 10**9
    log.write(b"new\n")
    assert [line async for line in log.read(LogOptions(since_seconds=50))] == [b"new\n"]


@pytest.mark.parametrize(
    ("command", "seconds"),
    [
        (["sleep", "30"], 30),
        (["/bin/sleep", "1.5m"], 90),
        (["sh", "-c", "echo a && sleep 5; sleep 2"], 7),
        (["sh", "-c", "while true; do sleep 5; done"], None),
        (["sleep", "infinity"], None),
        (["python", "sleep", "3"], None),
        ([], None),
    ],
)
def test_how_long_a_command_sleeps(command: list[str], seconds: float | None) -> None:
    assert sleeping_time(command) == seconds


def test_pod_addresses_are_unique_and_come_back() -> None:
    one, two = PodAddresses("10.0.0.1"), PodAddresses("10.0.0.2")
    given = {one.of(f"a{number}") for number in range(254)} | {two.of(f"b{number}") for number in range(254)}
    assert len(given) == 508
    assert one.of("a7") in given
    assert one.of("too many") == ""
    one.release("a7")
    assert one.of("next") != ""
