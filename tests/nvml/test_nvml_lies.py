"""NVML that lacks what it should have, or whose GPUs vanish while they are asked."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pynvml
import pytest
from nvml_world import Opened

from gpuslice.node.discovery.driver import DriverError, Trouble, Xid

MACHINE = "{gpus: [{model: A100-40, mig: [3g.20gb@4]}, {model: A100-40}], nvlinks: 2}"
OPTIONAL = (
    "nvmlSystemGetDriverVersion",
    "nvmlSystemGetCudaDriverVersion_v2",
    "nvmlEventSetCreate",
    "nvmlDeviceGetSupportedEventTypes",
    "nvmlDeviceRegisterEvents",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetBrand",
    "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetTopologyCommonAncestor",
    "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetNvLinkRemoteDeviceType",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetGpuFabricInfo",
    "nvmlDeviceGetMigMode",
)
SERIOUS = ("nvmlDeviceGetMigMode", "nvmlDeviceGetMemoryInfo_v2")
"""A driver may be too old for these, but must not fail to answer."""
NEEDED = (
    "nvmlInitWithFlags",
    "nvmlDeviceGetCount_v2",
)
NEEDED_PER_GPU = (
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetName",
)


class Failing:
    """A library one of whose functions answers with an error, whatever it is asked."""

    def __init__(self, library: Any, name: str, code: int) -> None:
        self._library = library
        self._name = name
        self._code = code

    def __getattr__(self, name: str) -> Any:
        if name == self._name:
            return lambda *_: self._code
        return getattr(self._library, name)


class Lacking:
    """A library without one of its functions."""

    def __init__(self, library: Any, name: str) -> None:
        self._library = library
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name == self._name:
            raise AttributeError(name)
        return getattr(self._library, name)


@pytest.fixture
def lacking(monkeypatch: pytest.MonkeyPatch) -> Any:
    def lack(name: str) -> None:
        monkeypatch.setattr(pynvml, "nvmlLib", Lacking(pynvml.nvmlLib, name))
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})

    return lack


@pytest.mark.parametrize("name", OPTIONAL)
def test_a_function_that_is_not_needed_may_be_absent(name: str, switched_on: Opened, lacking: Any) -> None:
    driver, hardware = switched_on(MACHINE)
    lacking(name)
    driver.open()
    found = driver.query()
    assert [gpu.uuid for gpu in found.gpus] == [hardware.uuid(0), hardware.uuid(1)]
    assert all(gpu.healthy for gpu in found.gpus)


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_UNKNOWN, pynvml.NVML_ERROR_TIMEOUT])
@pytest.mark.parametrize("name", [name for name in OPTIONAL if name not in SERIOUS])
def test_a_fact_that_is_not_needed_may_fail(
    name: str, code: int, switched_on: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One label less, and no GPU that is given to nobody."""
    driver, hardware = switched_on(MACHINE)
    monkeypatch.setattr(pynvml, "nvmlLib", Failing(pynvml.nvmlLib, name, code))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    driver.open()
    found = driver.query()
    assert [gpu.uuid for gpu in found.gpus] == [hardware.uuid(0), hardware.uuid(1)]
    assert all(gpu.healthy for gpu in found.gpus)


@pytest.mark.parametrize("name", SERIOUS)
def test_a_gpu_of_which_the_mode_or_the_memory_is_unknown_is_left_out(
    name: str, switched_on: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise one that is partitioned could be given out whole."""
    driver, _ = switched_on(MACHINE)
    monkeypatch.setattr(pynvml, "nvmlLib", Failing(pynvml.nvmlLib, name, pynvml.NVML_ERROR_UNKNOWN))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    driver.open()
    assert driver.query().gpus == ()


@pytest.mark.parametrize("name", NEEDED)
def test_a_function_that_is_needed_is_named(name: str, switched_on: Opened, lacking: Any) -> None:
    driver, _ = switched_on(MACHINE)
    lacking(name)
    with pytest.raises(
        DriverError, match=f"too old: its library has no {name.removesuffix('_v2')}"
    ) as caught:
        driver.open()
    assert caught.value.trouble is Trouble.NO_FUNCTION


@pytest.mark.parametrize("name", NEEDED_PER_GPU)
def test_without_what_every_gpu_needs_each_says_so(name: str, switched_on: Opened, lacking: Any) -> None:
    driver, _ = switched_on(MACHINE)
    lacking(name)
    driver.open()
    found = driver.query()
    assert found.gpus == ()
    assert [name.removesuffix("_v2") in reason for _, reason in found.silent] == [True, True]


@pytest.mark.parametrize("answers", range(60))
def test_a_gpu_may_vanish_at_any_moment(answers: int, switched_on: Opened) -> None:
    """Between any two calls, while the library is opened or the machine looked at: the other GPU is listed."""
    driver, hardware = switched_on(MACHINE)
    hardware.now(f"vanishes 0 {answers}")
    driver.open()
    found = driver.query()
    assert hardware.uuid(1) in {gpu.uuid for gpu in found.gpus}
    assert len(found.gpus) + len(found.silent) == 2


def test_the_library_may_be_opened_anew_while_a_thread_waits(switched_on: Opened) -> None:
    """The set of events that it waits on is freed only once it has returned: no crash, and the next XID comes."""
    driver, hardware = switched_on(MACHINE)
    with ThreadPoolExecutor(4) as waiters:
        waiting = [waiters.submit(driver.wait, 20) for _ in range(4)]
        for _ in range(10):
            driver.open()
        assert [one.result() for one in waiting] == [None] * 4
    hardware.happens("xid", 1, 48)
    assert driver.wait(1000) == Xid(hardware.uuid(1), 48)


@pytest.mark.parametrize("answers", range(40))
def test_a_gpu_that_vanishes_while_it_is_cut_is_lost(answers: int, switched_on: Opened) -> None:
    driver, hardware = switched_on(MACHINE)
    hardware.now(f"vanishes 0 {answers}")
    try:
        driver.create_gpu_instance(hardware.uuid(0), 19, 0)
    except DriverError as error:
        assert error.trouble in (Trouble.LOST, Trouble.NOT_FOUND)
