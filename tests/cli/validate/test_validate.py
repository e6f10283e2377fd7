"""`gpuslice validate`: the API server's words for manifests of every kind, exit codes, JSON."""

from __future__ import annotations

import json
from pathlib import Path

import click.testing
import pytest

from gpuslice.cli.validate.command import validate

POD = """
apiVersion: v1
kind: Pod
metadata: {name: trainer, namespace: research}
spec:
  containers:
  - {name: a, resources: {limits: {%s}}}
"""
JOB = """
apiVersion: batch/v1
kind: CronJob
metadata: {name: nightly}
spec:
  jobTemplate: {spec: {template: {spec: {containers: [
    {name: a, resources: {limits: {nvidia.com/gpu: 1}, requests: {nvidia.com/gpu: 2}}}]}}}}
"""
RAY = """
apiVersion: ray.io/v1
kind: RayCluster
metadata: {name: ray}
spec:
  headGroupSpec: {template: {spec: {containers: [{name: head}]}}}
  workerGroupSpecs:
  - template: {spec: {containers: [{name: w, resources: {requests: {nvidia.com/gpu: 1}}}]}}
"""
LIST = """
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: ConfigMap, metadata: {name: c}, data: {spec: x}}
- {apiVersion: v1, kind: Pod, metadata: {generateName: p-},
   spec: {containers: [{name: a, resources: {limits: {aliyun.com/gpu-mem: 2, nvidia.com/gpu: 1}}}]}}
"""


def run(tmp_path: Path, text: str, *options: str) -> click.testing.Result:
    path = tmp_path / "m.yaml"
    path.write_text(text)
    result = click.testing.CliRunner().invoke(validate, [str(path), *options])
    return click.testing.Result(
        result.runner,
        result.stdout_bytes,
        result.stderr_bytes.replace(str(path).encode(), b"m.yaml"),
        result.output_bytes,
        result.return_value,
        result.exit_code,
        result.exception,
    )


def test_what_is_right_is_said_to_be(tmp_path: Path) -> None:
    result = run(tmp_path, POD % "nvidia.com/gpu: 1" + "---\n" + POD % "aliyun.com/gpu-mem: '5'" + "---\n")
    assert (result.exit_code, result.stdout, result.stderr) == (
        0,
        "2 pods: nothing is wrong\n",
        "",
    )


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            POD % "nvidia.com/gpu: 1500m",
            "m.yaml: Pod research/trainer: error: spec.containers[0].resources.limits[nvidia.com/gpu]: "
            'Invalid value: "1500m": must be an integer',
        ),
        (
            JOB,
            "m.yaml: CronJob nightly: error: spec.jobTemplate.spec.template.spec.containers[0].resources.requests: "
            'Invalid value: "2": must be equal to nvidia.com/gpu limit of 1',
        ),
        (
            RAY,
            "m.yaml: RayCluster ray: error: "
            "spec.workerGroupSpecs[0].template.spec.containers[0].resources.limits: Required value: "
            "Limit must be set for non overcommitable resources",
        ),
        (
            LIST,
            "m.yaml: Pod p-*: error: spec.containers[0].resources: container 'a' asks for aliyun.com/gpu-mem and "
            "nvidia.com/gpu; a container gets GPUs of one kind, ask for one of them",
        ),
        (
            POD % "nvidia.com/gpu: [1]",
            "m.yaml: Pod research/trainer: error: spec.containers[0].resources.limits[...]: expected a whole number or "
            "a number or text (in quotes, if it looks like something else), not a list",
        ),
        (
            POD % "alpha.kubernetes.io/nvidia-gpu: 1, nvidia.com/gpu: 2",
            "m.yaml: Pod research/trainer: error: "
            "spec.containers[0].resources.limits[alpha.kubernetes.io/nvidia-gpu]: is 1, but nvidia.com/gpu beside it "
            "is 2; remove the former",
        ),
    ],
)  # fmt: skip
def test_an_error_is_a_line_on_stderr_and_exit_code_1(tmp_path: Path, text: str, line: str) -> None:
    result = run(tmp_path, text)
    assert result.stderr == f"{line}\n"
    assert result.exit_code == 1
    assert result.stdout.endswith(": 1 error\n")


def test_old_spellings_are_warnings_that_say_what_to_write_today(tmp_path: Path) -> None:
    result = run(tmp_path, POD % "alpha.kubernetes.io/nvidia-gpu: 1")
    assert result.exit_code == 0
    assert result.stderr == (
        "m.yaml: Pod research/trainer: warning: spec.containers[0].resources.limits[alpha.kubernetes.io/nvidia-gpu]: "
        "no node has had this resource since Kubernetes 1.11; write nvidia.com/gpu: 1\n"
    )
    assert result.stdout == "1 pod: 1 warning\n"


def test_an_old_spelling_does_not_hide_what_is_wrong(tmp_path: Path) -> None:
    result = run(tmp_path, POD % "alpha.kubernetes.io/nvidia-gpu: 0.5")
    assert result.exit_code == 1
    assert 'limits[nvidia.com/gpu]: Invalid value: "500m": must be an integer' in result.stderr


def test_json_for_programs(tmp_path: Path) -> None:
    result = run(tmp_path, JOB, "-o", "json")
    assert result.exit_code == 1
    assert result.stderr == ""
    report = json.loads(result.stdout)
    assert report["pods"] == 1
    (finding,) = report["findings"]
    assert finding["level"] == "error"
    assert finding["object"] == "CronJob nightly"
    assert finding["field"] == "spec.jobTemplate.spec.template.spec.containers[0].resources.requests"
    assert finding["sentence"] == 'Invalid value: "2": must be equal to nvidia.com/gpu limit of 1'


@pytest.mark.parametrize(
    ("text", "exit_code", "stderr", "stdout"),
    [
        (
            "sharing: {renameByDefault: true}\n",
            1,
            "m.yaml: device plugin configuration: error: sharing: unknown key 'renameByDefault': it belongs under "
            "sharing.timeSlicing or under sharing.mps\n",
            "1 configuration: 1 error\n",
        ),
        (
            "version: v1\nresources: {gpus: [{pattern: '*', name: gpu}]}\n---\n" + POD % "nvidia.com/gpu: 1",
            0,
            "m.yaml: device plugin configuration: warning: resources: not used, as in NVIDIA's plugin; resources are "
            "named after flags.migStrategy\n",
            "1 pod, 1 configuration: 1 warning\n",
        ),
        (
            "version: v1\nmig-configs: {x: [{devices: all, mig-enabled: true}]}\n",
            1,
            "m.yaml: mig-parted configuration: error: mig-configs.x[0]: missing required field 'mig-devices' when "
            "'mig-enabled' is true\n",
            "1 configuration: 1 error\n",
        ),
        (
            "version: v1\nmig-configs: {x: [{devices: all, mig-enabled: false}]}\n",
            0,
            "",
            "1 configuration: nothing is wrong\n",
        ),
        (
            "kind: ConfigMap\nmetadata: {name: plugin}\ndata:\n"
            "  a100: 'version: v1\n\n    sharing: {timeSlicing: {}}'\n"
            "  compose: 'version: v1'\n  other: '{'\n  mig: '{version: v1, mig-configs: {x: []}}'\n",
            1,
            "m.yaml: ConfigMap plugin, data[a100]: device plugin configuration: error: sharing.timeSlicing: no resources "
            "specified\n"
            "m.yaml: ConfigMap plugin, data[mig]: mig-parted configuration: error: mig-configs.x: at least one entry in "
            "'x' is required\n",
            "2 configurations: 2 errors\n",
        ),
    ],
)
def test_nvidias_own_files_are_read_as_on_a_node(
    tmp_path: Path, text: str, exit_code: int, stderr: str, stdout: str
) -> None:
    result = run(tmp_path, text)
    assert (result.exit_code, result.stderr, result.stdout) == (exit_code, stderr, stdout)


def test_standard_input_is_a_file_too() -> None:
    result = click.testing.CliRunner().invoke(validate, ["-"], input=POD % "nvidia.com/gpu: 0.5")
    assert result.exit_code == 1
    assert result.stderr.startswith("standard input: Pod research/trainer: error: ")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: [", "error: m.yaml: line 1, column 5"),
        ("a: 1", "error: m.yaml: document 1: expected a Kubernetes object with apiVersion and kind\n"),
        (
            "---\nkind: List\nitems: [1]\n",
            "error: m.yaml: document 1, items[0]: expected a Kubernetes object",
        ),
        ("kind: Pod\nkind: Pod\n", "error: m.yaml: line 2, column 1: key 'kind' appears twice\n"),
        ("[" * 5000, "error: m.yaml: nested too deeply\n"),
        ("? [a]\n: 1\n", "error: m.yaml: line 1, column 3: a key must be text\n"),
        ("a: 2026-13-45\n", "error: m.yaml: not YAML: month must be in 1..12"),
    ],
)
def test_what_is_no_manifest_is_exit_code_2(tmp_path: Path, text: str, sentence: str) -> None:
    result = run(tmp_path, text)
    assert result.exit_code == 2
    assert result.stderr.startswith(sentence)
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_a_file_that_is_not_there_is_exit_code_2(tmp_path: Path) -> None:
    result = click.testing.CliRunner().invoke(validate, [str(tmp_path / "none.yaml")])
    assert result.exit_code == 2
    assert result.stderr.endswith("none.yaml: there is no such file\n")


@pytest.mark.parametrize(
    "path",
    sorted((Path(__file__).parents[3] / "examples/gpushare").glob("*.yaml")),
    ids=lambda path: path.stem,
)
def test_the_examples_are_right(path: Path) -> None:
    result = click.testing.CliRunner().invoke(validate, [str(path)])
    assert result.exit_code == 0, result.output
