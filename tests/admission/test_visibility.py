"""What a container sees after admission: the GPUs that it is given, and none if it asks for none."""

from __future__ import annotations

import base64
import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.admission.mutate import review
from gpuslice.admission.visibility import FEATURES, PROTECTED, RULES, EnvFrom, Rules
from gpuslice.local.apiserver.schema.patches import json_patch

Object = dict[str, Any]
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
LIBRARIES = "gpuslice.io/driver-libraries"


def admitted(pod: Object, rules: Rules = RULES, **request: object) -> tuple[Object, list[str]]:
    """The pod as it is stored, and the warnings."""
    body = {"request": {"uid": "u", "kind": {"kind": "Pod"}, "object": pod, **request}}
    response = json.loads(review(json.dumps(body).encode(), rules))["response"]
    assert response["allowed"] is True, response
    steps = json.loads(base64.b64decode(response.get("patch", base64.b64encode(b"[]"))))
    return json_patch(copy.deepcopy(pod), steps), response.get("warnings", [])


def refused(pod: Object, rules: Rules = RULES) -> str:
    body = {"request": {"uid": "u", "kind": {"kind": "Pod"}, "object": pod}}
    response = json.loads(review(json.dumps(body).encode(), rules))["response"]
    assert response["allowed"] is False
    assert "patch" not in response
    return str(response["status"]["message"])


def container(name: str = "c", **more: Any) -> Object:
    return {"name": name, "image": "nvidia/cuda:12.4.1-base-ubuntu22.04", **more}


def env(**values: str) -> list[Object]:
    return [{"name": name, "value": value} for name, value in values.items()]


def asking(resource: str = "aliyun.com/gpu-mem", amount: object = "2") -> Object:
    return {"limits": {resource: amount}}


def pod(*containers: Object, annotations: Object | None = None, **spec: Any) -> Object:
    return {"metadata": {"annotations": annotations or {}}, "spec": {"containers": list(containers), **spec}}


def environment(one: Object) -> dict[str, str]:
    """As kubelet reads it: the last of equal names counts."""
    return {variable["name"]: variable.get("value", "") for variable in one.get("env") or ()}


def only(pod: Object, rules: Rules = RULES) -> dict[str, str]:
    """The environment of a pod's one container once it is stored."""
    return environment(admitted(pod, rules)[0]["spec"]["containers"][0])


# --- containers without a GPU -------------------------------------------------------------------------
def test_a_container_that_asks_for_no_gpu_sees_none_whatever_its_image_says() -> None:
    """And nobody is bothered with a warning: its author said nothing wrong."""
    stored, warnings = admitted(pod(container(), container("d", env=env(A="b"))))
    assert [environment(one) for one in stored["spec"]["containers"]] == [
        {VISIBLE: "void"},
        {"A": "b", VISIBLE: "void"},
    ]
    assert warnings == []


def test_so_do_the_containers_of_a_gpu_pod_that_ask_for_none() -> None:
    """Init containers and sidecars, too; the one that asks is left to the device plugin."""
    stored, warnings = admitted(
        pod(
            container("gpu", resources=asking()),
            container("log"),
            initContainers=[container("fetch"), container("mesh", restartPolicy="Always")],
        )
    )
    gpu, log = stored["spec"]["containers"]
    assert VISIBLE not in environment(gpu)
    assert [environment(one) for one in (log, *stored["spec"]["initContainers"])] == [{VISIBLE: "void"}] * 3
    assert warnings == []


@pytest.mark.parametrize("value", ["all", "0", "GPU-1", "none,all", "runtime.nvidia.com/gpu=all"])
def test_who_says_otherwise_is_told(value: str) -> None:
    stored, (warning,) = admitted(pod(container("web", env=env(**{VISIBLE: value}))))
    assert environment(stored["spec"]["containers"][0]) == {VISIBLE: "void"}
    assert warning.startswith(
        "container 'web': env NVIDIA_VISIBLE_DEVICES was set to 'void'; the container asks"
    )


def test_a_value_from_elsewhere_is_no_way_round() -> None:
    source = {"name": VISIBLE, "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}}
    stored, warnings = admitted(pod(container(env=[source, {"name": VISIBLE, "value": "void"}, source])))
    assert stored["spec"]["containers"][0]["env"] == [{"name": VISIBLE, "value": "void"}]
    assert len(warnings) == 2


def test_nor_is_it_for_a_feature_where_the_drivers_libraries_are_asked_for() -> None:
    told = env(**{VISIBLE: "none"}, **dict.fromkeys(FEATURES - {"NVIDIA_GDS"}, ""))
    source = {"name": "NVIDIA_GDS", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}}
    stored, (warning,) = admitted(pod(container(env=[*told, source])))
    assert source not in stored["spec"]["containers"][0]["env"]
    assert "env NVIDIA_GDS was set to ''" in warning


def test_env_from_cannot_show_a_gpu_to_who_asks_for_none() -> None:
    """kubelet lets `env` beat it, so it need not be refused."""
    assert only(pod(container(envFrom=[{"configMapRef": {"name": "m"}}]))) == {VISIBLE: "void"}


def test_images_that_need_the_drivers_libraries_get_them_without_a_gpu() -> None:
    """And without the features that NVIDIA's runtime adds where it is not told to leave a container alone."""
    expected = {VISIBLE: "none", **dict.fromkeys(FEATURES, "")}
    asked = pod(container(env=env(NVIDIA_GDS="enabled")), annotations={LIBRARIES: "true"})
    stored, (warning,) = admitted(asked)
    assert environment(stored["spec"]["containers"][0]) == expected
    assert "env NVIDIA_GDS was set to ''" in warning
    assert only(pod(container(env=env(**{VISIBLE: "none"})))) == expected, "said by the container itself"
    stored, (warning,) = admitted(pod(container(), annotations={LIBRARIES: "yes"}))
    assert environment(stored["spec"]["containers"][0]) == {VISIBLE: "void"}
    assert "'yes' is neither" in warning


@pytest.mark.parametrize(
    "resource",
    [
        "amd.com/gpu",
        "volcano.sh/vgpu-number",
        "nvidia.com/gpumem",
        "tencent.com/vcuda-core",
        "nvidia.com/GA102GL_A10",
    ],
)
def test_what_another_device_plugin_gives_is_not_hidden(resource: str) -> None:
    """Its environment would be beaten by ours."""
    assert only(pod(container(resources=asking(resource)))) == {}


@pytest.mark.parametrize(
    ("resource", "amount"),
    [("aliyun.com/gpu-count", 1), ("cpu", "1"), ("rdma/hca", 1), ("nvidia.com/gpu", 0), ("amd.com/gpu", "0")],
)
def test_what_no_device_plugin_gives_a_gpu_for_opens_nothing(resource: str, amount: object) -> None:
    assert only(pod(container(resources=asking(resource, amount)))) == {VISIBLE: "void"}


def host(path: str) -> Object:
    return {"volumes": [{"name": "h", "hostPath": {"path": path}}]}


@pytest.mark.parametrize(
    ("one", "spec"),
    [
        ({"securityContext": {"privileged": True}}, {}),
        ({"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}, {}),
        ({}, host("/var/lib/kubelet/device-plugins")),
        ({}, host("/data/kubelet/pod-resources/")),
        ({}, host("/")),
        ({}, host("/dev/nvidia0")),
        ({}, host("//run/./nvidia/driver")),
    ],
)
def test_whoever_looks_after_gpus_sees_them(one: Object, spec: Object) -> None:
    """DCGM's exporter, NVIDIA's device plugin and such: Pod Security's level baseline forbids all of these."""
    assert only(pod(container(env=env(**{VISIBLE: "all"}), **one), **spec)) == {VISIBLE: "all"}


@pytest.mark.parametrize(
    ("one", "spec"),
    [
        ({"securityContext": {"privileged": False, "capabilities": {"add": ["NET_ADMIN"]}}}, {}),
        ({}, host("/data")),
        ({}, host("/dev/shm")),
        ({}, host("/devices")),
        ({}, {"volumes": [{"name": "e", "emptyDir": {}}]}),
    ],
)
def test_others_do_not(one: Object, spec: Object) -> None:
    assert only(pod(container(env=env(**{VISIBLE: "all"}), **one), **spec)) == {VISIBLE: "void"}


def test_where_an_administrator_says_so_pods_without_a_gpu_are_left_alone() -> None:
    """But not the containers of those that have one."""
    rules = Rules(hide=False)
    assert only(pod(container(env=env(**{VISIBLE: "all"}))), rules) == {VISIBLE: "all"}
    stored, _ = admitted(pod(container(resources=asking()), container("b")), rules)
    assert environment(stored["spec"]["containers"][1]) == {VISIBLE: "void"}


# --- debug containers -----------------------------------------------------------------------------------
def debug(name: str, **values: str) -> Object:
    return container(name, env=env(**values))


def test_a_debug_container_sees_no_gpu_and_older_ones_are_not_touched() -> None:
    """The API server refuses any change of a container that is there."""
    old = pod(container("gpu", resources=asking()), ephemeralContainers=[debug("first", **{VISIBLE: "all"})])
    new = copy.deepcopy(old)
    new["spec"]["ephemeralContainers"].append(debug("second", **{VISIBLE: "all"}))
    stored, (warning,) = admitted(new, subResource="ephemeralcontainers", operation="UPDATE", oldObject=old)
    first, second = stored["spec"]["ephemeralContainers"]
    assert first == old["spec"]["ephemeralContainers"][0]
    assert environment(second) == {VISIBLE: "void"}
    assert "container 'second'" in warning
    assert stored["spec"]["containers"] == old["spec"]["containers"]


def test_annotations_of_a_pod_that_runs_are_not_touched() -> None:
    old = pod(container(), annotations={"gpuslice.io/allocation": "{}", "cdi.k8s.io/x": "nvidia.com/gpu=all"})
    stored, warnings = admitted(old, subResource="ephemeralcontainers", operation="UPDATE", oldObject=old)
    assert (stored, warnings) == (old, [])


# --- containers with a GPU ------------------------------------------------------------------------------
@pytest.mark.parametrize("variable", sorted(PROTECTED))
def test_what_the_device_plugin_says_is_not_said_by_the_pod(variable: str) -> None:
    asked = container(
        "gpu", env=env(**{variable: "enabled", "NVIDIA_DRIVER_CAPABILITIES": "all"}), resources=asking()
    )
    stored, (warning,) = admitted(pod(asked))
    assert environment(stored["spec"]["containers"][0]) == {"NVIDIA_DRIVER_CAPABILITIES": "all"}
    assert warning.startswith(f"container 'gpu': env {variable} was removed; ")


def test_tens_of_thousands_of_them_are_not_taken_out_one_by_one() -> None:
    """The API server's work for that grows with the square of their number."""
    many = [{"name": VISIBLE, "value": "all"}] * 101
    said = "container 'c' sets variables of the device plugin more than 100 times; leave them out"
    assert refused(pod(container(env=many))) == f"spec.containers[0].env: {said}"
    assert refused(pod(container(env=many, resources=asking()))) == f"spec.containers[0].env: {said}"
    assert only(pod(container(env=many[1:]))) == {VISIBLE: "void"}


FROM = {"configMapRef": {"name": "settings"}}


@pytest.mark.parametrize("prefix", ["", "N", "NVIDIA_", "ALIYUN_COM_GPU_MEM_"])
def test_env_from_that_could_show_more_gpus_is_refused(prefix: str) -> None:
    asked = container(
        "gpu", envFrom=[{**FROM, "prefix": "APP_"}, {**FROM, "prefix": prefix}], resources=asking()
    )
    assert refused(pod(container("a"), asked)) == (
        "spec.containers[1].envFrom[1]: container 'gpu' asks for a GPU, and what this brings could set "
        "NVIDIA_VISIBLE_DEVICES, which would show it every GPU of the node; name the variables in env "
        "(valueFrom), or give it a prefix; an administrator can allow it by webhook.envFrom in gpuslice's chart"
    )


def test_env_from_whose_prefix_rules_that_out_is_let_through() -> None:
    asked = container(
        envFrom=[{**FROM, "prefix": "APP_"}, {**FROM, "prefix": "NVIDIA_X"}], resources=asking()
    )
    assert only(pod(asked)) == {}


def test_env_from_by_an_administrators_choice() -> None:
    asked = pod(container(envFrom=[FROM], env=env(**{VISIBLE: "all"}), resources=asking()))
    assert only(asked, Rules(EnvFrom.ALLOW)) == {}
    stored, warnings = admitted(asked, Rules(EnvFrom.RESOLVE))
    assert environment(stored["spec"]["containers"][0]) == {VISIBLE: "void"}
    assert len(warnings) == 1
    assert admitted(stored, Rules(EnvFrom.RESOLVE)) == (stored, []), "asked again, nothing is new"
    assert only(pod(container(resources=asking())), Rules(EnvFrom.RESOLVE)) == {}


# --- annotations ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "value",
    [
        "nvidia.com/gpu=all",
        "k8s.device-plugin.nvidia.com/gpu=GPU-1",
        "all",
        "x.example/nic=1, runtime.nvidia.com/gpu=0",
    ],
)
@pytest.mark.parametrize("key", ["cdi.k8s.io/mine", "nvidia.cdi.k8s.io/mine"])
def test_an_annotation_that_names_gpus_to_the_runtime_is_taken_out_of_any_pod(key: str, value: str) -> None:
    for rules in (Rules(), Rules(hide=False)):
        stored, (warning,) = admitted(pod(container(), annotations={key: value, "a": "b"}), rules)
        assert stored["metadata"]["annotations"] == {"a": "b"}
        assert warning.startswith(f"metadata.annotations[{key}] was removed: ")


@pytest.mark.parametrize("value", ["vendor.example/nic=eth1", "a.example/x=1,b.example/y=2"])
def test_an_annotation_that_names_other_devices_stays(value: str) -> None:
    annotations = {"cdi.k8s.io/mine": value, "cdi.k8s.iox/other": "nvidia.com/gpu=all"}
    stored, warnings = admitted(pod(container(), annotations=annotations))
    assert stored["metadata"]["annotations"] == annotations
    assert warnings == []


def test_a_new_pod_has_no_gpu_by_its_own_word() -> None:
    """As in a copy of what `kubectl get -o yaml` printed: it stays usable."""
    copied = {
        "gpuslice.io/allocation": '{"c": {"GPU-1": 2048}}',
        "ALIYUN_COM_GPU_MEM_IDX": "0",
        "ALIYUN_COM_GPU_MEM_POD": "2",
        "ALIYUN_COM_GPU_MEM_DEV": "15",
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1",
        "scheduler.framework.gpushare.allocation": "{}",
        "gpuslice.io/gpus-per-container": "2",
    }
    stored, (warning,) = admitted(pod(container(resources=asking()), annotations=copied))
    assert stored["metadata"]["annotations"] == {"gpuslice.io/gpus-per-container": "2"}
    assert all(key in warning for key in copied if key != "gpuslice.io/gpus-per-container")


# --- any pod ----------------------------------------------------------------------------------------------
VALUES = st.sampled_from(["", "void", "none", "all", "0", "enabled"])
VARIABLES = st.builds(
    lambda name, value, elsewhere: {
        "name": name,
        **({"valueFrom": {"x": {}}} if elsewhere else {"value": value}),
    },
    st.sampled_from([VISIBLE, "NVIDIA_GDS", "NVIDIA_IMEX_CHANNELS", "PATH"]),
    VALUES,
    st.booleans(),
)
CONTAINERS = st.builds(
    lambda variables, resource, prefixes: container(
        env=variables,
        resources=asking(resource, 1) if resource else {},
        envFrom=[{**FROM, "prefix": prefix} for prefix in prefixes],
    ),
    st.lists(VARIABLES, max_size=4),
    st.sampled_from(["", "aliyun.com/gpu-mem", "nvidia.com/gpu", "aliyun.com/gpu-count"]),
    st.lists(st.sampled_from(["", "A_", "NVIDIA_"]), max_size=1),
)


def seen(one: Object) -> tuple[str, set[str]]:
    """What NVIDIA's runtime would give, if image and `envFrom` say the worst: GPUs, and features."""
    worst = {VISIBLE: "all", "NVIDIA_GDS": "enabled", "NVIDIA_IMEX_CHANNELS": "0"}
    for variable in one["env"]:
        worst[variable["name"]] = "all" if "valueFrom" in variable else variable["value"]
    if worst[VISIBLE] in ("", "void"):
        return "nothing", set()
    return worst[VISIBLE], {name for name in FEATURES if worst.get(name)}


@given(st.lists(CONTAINERS, min_size=1, max_size=3), st.booleans())
def test_no_container_without_a_gpu_sees_one_and_asking_again_changes_nothing(
    containers: list[Object], libraries: bool
) -> None:
    asked = pod(*containers, annotations={LIBRARIES: "true"} if libraries else {})
    stored, _ = admitted(asked, Rules(EnvFrom.RESOLVE))
    for one in stored["spec"]["containers"]:
        if set(one["resources"].get("limits", ())) & {"aliyun.com/gpu-mem", "nvidia.com/gpu"}:
            said = [variable for variable in one["env"] if variable["name"] in PROTECTED]
            assert all(variable == {"name": VISIBLE, "value": "void"} for variable in said)
        else:
            assert seen(one) in (("nothing", set()), ("none", set()))
    assert admitted(stored, Rules(EnvFrom.RESOLVE)) == (stored, [])
