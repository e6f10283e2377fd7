"""NVIDIA's device plugin file: what it means, what is wrong with it, and which setting wins."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuslice.config.nvidia import NvidiaConfig
from gpuslice.config.nvidiaflags import DeviceIdStrategy, DeviceListStrategy, Discovery, Flags, effective
from gpuslice.devices.sharing import (
    AllocationPolicy,
    MigStrategy,
    Replicated,
    Selection,
    Sharing,
    SharingStrategy,
)
from gpuslice.errors import InputError

EVERYTHING = """
version: v1
flags:
  migStrategy: mixed
  failOnInitError: false
  mpsRoot: /run/nvidia/mps
  nvidiaDriverRoot: /run/nvidia/driver
  nvidiaDevRoot: /
  gdrcopyEnabled: true
  gdsEnabled: true
  mofedEnabled: true
  useNodeFeatureAPI: true
  deviceDiscoveryStrategy: nvml
  plugin:
    passDeviceSpecs: true
    deviceListStrategy: [envvar, cdi-cri]
    deviceIDStrategy: index
    cdiAnnotationPrefix: x/
    nvidiaCTKPath: /opt/nvidia-ctk
    containerDriverRoot: /host
    sharedDevicesAllocationPolicy: packed
  gfd:
    oneshot: true
    noTimestamp: true
    sleepInterval: 1m30s
    outputFile: /out
    machineTypeFile: /type
resources:
  gpus: [{pattern: "*", name: nvidia.com/gpu}]
sharing:
  timeSlicing:
    renameByDefault: true
    failRequestsGreaterThanOne: true
    allowSameGPU: true
    resources:
    - {name: nvidia.com/gpu, replicas: 4, devices: [0, "2", GPU-b1028956-cfa2-0990-bf4a-5da9abb51763]}
    - {name: gpu, replicas: 2, devices: [1]}
    - {name: nvidia.com/mig-1g.5gb, replicas: 8, devices: [1:1, "0:1"], rename: nvidia.com/mig-1g.5gb.shared}
    - {name: nvidia.com/mig-2g.10gb, replicas: 3, devices: 2}
imex: {channelIDs: [0], required: true}
"""


def shared(text: str) -> str:
    return "sharing: {timeSlicing: {" + text + "}}"


def test_everything_that_can_be_written_is_read() -> None:
    config = NvidiaConfig.parse(EVERYTHING)
    assert effective(config.flags, cli={}, env={}) == Flags(
        MigStrategy.MIXED, False, "/run/nvidia/mps", "/run/nvidia/driver", "/", True, True, True, True,
        device_discovery_strategy=Discovery.NVML,
        pass_device_specs=True,
        device_list_strategy=(DeviceListStrategy.ENVVAR, DeviceListStrategy.CDI_CRI),
        device_id_strategy=DeviceIdStrategy.INDEX,
        cdi_annotation_prefix="x/",
        nvidia_ctk_path="/opt/nvidia-ctk",
        container_driver_root="/host",
        shared_devices_allocation_policy=AllocationPolicy.PACKED,
        oneshot=True,
        no_timestamp=True,
        sleep_interval_ms=90_000,
        output_file="/out",
        machine_type_file="/type",
        imex_channel_ids=(0,),
        imex_required=True,
    )  # fmt: skip
    assert config.sharing == Sharing(
        SharingStrategy.TIME_SLICING,
        (
            Replicated(
                "nvidia.com/gpu",
                4,
                "nvidia.com/gpu.shared",
                Selection(refs=("0", "2", "GPU-b1028956-cfa2-0990-bf4a-5da9abb51763")),
            ),
            Replicated("nvidia.com/gpu", 2, "nvidia.com/gpu.shared", Selection(refs=("1",))),
            Replicated(
                "nvidia.com/mig-1g.5gb", 8, "nvidia.com/mig-1g.5gb.shared", Selection(refs=("1:1", "0:1"))
            ),
            Replicated("nvidia.com/mig-2g.10gb", 3, "nvidia.com/mig-2g.10gb.shared", Selection(count=2)),
        ),
        fail_requests_greater_than_one=True,
        allow_same_gpu=True,
    )
    assert config.warnings == (
        "resources: not used, as in NVIDIA's plugin; resources are named after flags.migStrategy",
    )


@pytest.mark.parametrize("text", ["", "{}", '{"version": "v1"}', "version: v1\nflags:\nsharing:\n"])
def test_what_is_not_written_is_nvidias_default(text: str) -> None:
    config = NvidiaConfig.parse(text)
    assert config == NvidiaConfig({})
    flags = effective(config.flags, cli={}, env={})
    assert flags.mig_strategy is MigStrategy.NONE
    assert flags.fail_on_init_error
    assert flags.nvidia_dev_root == flags.nvidia_driver_root == "/"
    assert flags.device_list_strategy == (DeviceListStrategy.ENVVAR,)
    assert flags.sleep_interval_ms == 60_000
    assert flags.kubelet_socket == "/var/lib/kubelet/device-plugins/kubelet.sock"


def test_the_usual_file_in_json() -> None:
    config = NvidiaConfig.parse(
        '{"sharing": {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": 10}]}}}'
    )
    assert config.sharing == Sharing(SharingStrategy.TIME_SLICING, (Replicated("nvidia.com/gpu", 10),))


def test_a_rename_is_not_used_and_a_sentence_says_so() -> None:
    config = NvidiaConfig.parse(shared("resources: [{name: gpu, replicas: 2, rename: fast}]"))
    assert config.sharing.resources[0].announced == "nvidia.com/gpu"
    assert config.warnings == (
        "sharing.timeSlicing.resources[0].rename: not used, as in NVIDIA's plugin; renameByDefault: true makes "
        "it nvidia.com/gpu.shared",
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[]", "expected a mapping with version, flags and sharing"),
        ("version: v2", "version: unknown version: v2; write v1"),
        ("flag: {}", "unknown key 'flag'; write flags?"),
        ("plugin: {}", "unknown key 'plugin': it belongs under flags"),
        ("flags: {passDeviceSpecs: true}", "flags: unknown key 'passDeviceSpecs': it belongs under flags.plugin"),
        ("flags: {plugin: {migStrategy: single}}", "flags.plugin: unknown key 'migStrategy': it belongs under flags"),
        ("flags: {plugin: {sleepInterval: 1s}}", "unknown key 'sleepInterval': it belongs under flags.gfd"),
        ("flags: {migstrategy: single}", "flags: unknown key 'migstrategy'; write migStrategy?"),
        ("flags: {nonsense: 1}", "flags: unknown key 'nonsense'; remove it or mend its spelling"),
        ("flags: {migStrategy: both}", "flags.migStrategy: 'both' is not understood; write one of none, single, mixed"),
        ("flags: {failOnInitError: 'yes'}", "flags.failOnInitError: expected true or false"),
        ("flags: {plugin: {deviceListStrategy: cdi}}", "flags.plugin.deviceListStrategy: 'cdi' is not understood"),
        ("flags: {plugin: {deviceListStrategy: []}}", "flags.plugin.deviceListStrategy: () is not understood"),
        ("flags: {gfd: {sleepInterval: 60}}", "flags.gfd.sleepInterval: 60 is not understood; write a duration"),
        ("imex: {channelIDs: [1]}", "imex.channelIDs: (1,) is not understood; write [] or [0], the only channel"),
        ("sharing: {renameByDefault: true}", "sharing: unknown key 'renameByDefault': it belongs under sharing.timeSlicing"),
        ("sharing: {resources: []}", "it belongs at the top or under sharing.timeSlicing"),
        (shared(""), "sharing.timeSlicing: no resources specified"),
        (shared("resources: []"), "sharing.timeSlicing: no resources specified"),
        (shared("resources: [{replicas: 2}]"), "sharing.timeSlicing.resources[0]: no resource name specified"),
        (shared("resources: [{name: gpu}]"), "sharing.timeSlicing.resources[0]: no replicas specified"),
        (shared("resources: [{name: gpu, replicas: 1}]"), "resources[0].replicas: number of replicas must be >= 2"),
        (shared("resources: [{name: gpu, replicas: two}]"), "resources[0].replicas: expected a whole number"),
        (shared("resources: [{name: GPU, replicas: 2}]"), "incorrect format for resource name 'nvidia.com/GPU'"),
        (shared("resources: [{name: " + "x" * 60 + ", replicas: 2}]"), "must be 63 characters or less"),
        (shared("resources: [{name: gpus, replicas: 2}]"), "no device is announced as nvidia.com/gpus"),
        (shared("resources: [{name: gpu, replicas: 2, devices: some}]"), "the only valid string input is 'all'"),
        (shared("resources: [{name: gpu, replicas: 2, devices: 0}]"), "a count of devices must be > 0"),
        (shared("resources: [{name: gpu, replicas: 2, devices: []}]"), "the list is empty"),
        (shared("resources: [{name: gpu, replicas: 2, devices: [-1]}]"), "devices[0]: '-1' is no device"),
        (shared("resources: [{name: gpu, replicas: 2, devices: [1, '1']}]"), "devices[1]: '1' is there twice"),
        (
            shared("resources: [{name: gpu, replicas: 2}, {name: gpu, replicas: 3, devices: [1]}]"),
            "resources[1]: nvidia.com/gpu is shared twice, once for all its devices",
        ),
        (
            shared("resources: [{name: gpu, replicas: 2, devices: [1]}, {name: gpu, replicas: 3, devices: [1]}]"),
            "resources[1].devices: device 1 of nvidia.com/gpu is in an entry before",
        ),
        (
            "sharing: {mps: {resources: [{name: gpu, replicas: 2}]}}",
            "sharing.mps: MPS is not supported yet; use sharing.timeSlicing",
        ),
        ("sharing: {mps: {resources: [{name: gpu, replicas: 1}]}}", "number of replicas must be >= 2"),
        ("sharing: {mps: {allowSameGPU: true}}", "it belongs under sharing.timeSlicing"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_one_sentence_that_names_the_place(text: str, sentence: str) -> None:
    """NVIDIA's device plugin, issue 1433: a key one level too high is ignored in silence."""
    with pytest.raises(InputError) as caught:
        NvidiaConfig.parse(text)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("version: v3")
    with pytest.raises(InputError, match=r"config\.yaml: version: unknown version: v3"):
        NvidiaConfig.load(path)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("0", 0), ("60s", 60_000), ("1m30s", 90_000), (".5s", 500), ("1.s", 1000), ("+2h", 7_200_000), ("1500us", 1),
        ("2500000ns", 2), ("3000\u00b5s", 3), ("3000\u03bcs", 3), ("1h.5m2ms", 3_630_002), ("infinite", None),
    ],
)  # fmt: skip
def test_durations_are_read_as_go_reads_them(text: str, milliseconds: int | None) -> None:
    assert effective({"flags.gfd.sleepInterval": text}, cli={}, env={}).sleep_interval_ms == milliseconds


@pytest.mark.parametrize("text", ["", "s", ".s", "60", "-5s", "1d", "1m 30s", "9" * 5000 + "s", "\u0661s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="write a duration"):
        effective({"flags.gfd.sleepInterval": text}, cli={}, env={})


def test_command_line_beats_environment_beats_file_beats_default() -> None:
    file = {"flags.migStrategy": "single", "flags.gdsEnabled": True, "flags.gfd.sleepInterval": "5s"}
    env = {
        "MIG_STRATEGY": "mixed",
        "GDS_ENABLED": "0",
        "DEVICE_LIST_STRATEGY": "envvar, cdi-cri",
        "MPS_ROOT": "",
    }
    flags = effective(file, cli={"mig-strategy": "none", "driver-root": "/d"}, env=env)
    assert flags.mig_strategy is MigStrategy.NONE
    assert flags.gds_enabled is False
    assert flags.device_list_strategy == (DeviceListStrategy.ENVVAR, DeviceListStrategy.CDI_CRI)
    assert flags.sleep_interval_ms == 5000
    assert flags.nvidia_dev_root == "/d"
    assert effective(file, cli={}, env=env).mig_strategy is MigStrategy.MIXED
    assert effective(file, cli={}, env={}).mig_strategy is MigStrategy.SINGLE


def test_an_empty_kubelet_socket_is_a_choice_and_other_empty_variables_are_none() -> None:
    flags = effective(
        {}, cli={}, env={"KUBELET_SOCKET": "", "MIG_STRATEGY": "", "GFD_SLEEP_INTERVAL": "infinite"}
    )
    assert flags.kubelet_socket == ""
    assert flags.mig_strategy is MigStrategy.NONE
    assert flags.sleep_interval_ms is None


@pytest.mark.parametrize(
    ("cli", "env", "sentence"),
    [
        ({"mig-strategie": "none"}, {}, "--mig-strategie: there is no such option"),
        (
            {"mig-strategy": "x"},
            {},
            "--mig-strategy: 'x' is not understood; write one of none, single, mixed",
        ),
        (
            {},
            {"FAIL_ON_INIT_ERROR": "maybe"},
            "FAIL_ON_INIT_ERROR: 'maybe' is not understood; write true or false",
        ),
        ({}, {"IMEX_CHANNEL_IDS": "0,1"}, "IMEX_CHANNEL_IDS: '0,1' is not understood"),
    ],
)
def test_a_wrong_setting_names_where_it_was_given(
    cli: dict[str, object], env: dict[str, str], sentence: str
) -> None:
    with pytest.raises(InputError) as caught:
        effective({}, cli=cli, env=env)
    assert str(caught.value).startswith(sentence)


def test_the_documented_file_is_right() -> None:
    document = (Path(__file__).parents[2] / "docs/nvidia-config.md").read_text()
    config = NvidiaConfig.parse(document.partition("```yaml\n")[2].partition("```")[0])
    assert [entry.replicas for entry in config.sharing.resources] == [2, 8]
    assert config.warnings == ()
