"""The catalogue, inventories, units and quantities."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.devices.catalogue import MODELS, find_model
from gpuslice.devices.inventory import Gpu, NodeGpus
from gpuslice.errors import InputError
from gpuslice.units import GIB, MemoryUnit, parse_quantity


@pytest.mark.parametrize(
    ("model", "mib", "gib"),
    [
        ("T4", 15109, 14),
        ("V100", 16160, 15),
        ("V100-32", 32510, 31),
        ("A100-80", 81251, 79),
        ("K80", 11441, 11),
    ],
)
def test_memory_is_what_gpushare_counts(model: str, mib: int, gib: int) -> None:
    """Golden values of gpushare's documents: MiB as NVML reported, GiB rounded down."""
    assert find_model(model).usable_mib == mib
    assert GIB.units_in(mib) == gib


PROMISED = (
    "K80, M60, P100-12, P100-16, V100-16, V100-32, T4, A10, A30, A100-40, A100-80, L4, L40S, H100-80, H100-94, "
    "H200, B200, RTX PRO 6000, tesla t4, NVIDIA A100-SXM4-80GB"
)


@pytest.mark.parametrize("name", PROMISED.split(", "))
def test_the_promised_models_are_known(name: str) -> None:
    model = find_model(name)
    assert 0 < model.usable_mib < model.memory_mib


def test_only_ampere_and_later_datacentre_gpus_have_mig() -> None:
    with_mig = {model.aliases[0] for model in MODELS if model.mig_family}
    assert with_mig == {"A30", "A100", "A100-80", "H100", "H100-94", "H200", "B200", "RTX PRO 6000"}


def test_an_unknown_model_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"'Voodoo 2' is unknown; use one of K80, .* or give memoryMiB"):
        find_model("Voodoo 2")


def test_mixed_models_keep_their_own_sizes() -> None:
    """Defect 9.B.4/9.B.7: gpushare gave every GPU the size of the first."""
    node = NodeGpus((Gpu(1, "b", "", 16 * 1024), Gpu(0, "a", "", 12 * 1024)), GIB)
    assert [(gpu.index, node.units_of(gpu)) for gpu in node.gpus] == [(0, 12), (1, 16)]


@pytest.mark.parametrize(
    ("gpus", "words"),
    [
        ((Gpu(0, "a", "", 1), Gpu(1, "a", "", 1)), "'a' appears 2 times; every GPU needs its own uuid"),
        ((Gpu(0, "a", "", 1), Gpu(0, "b", "", 1)), "0 appears 2 times; every GPU needs its own index"),
        ((Gpu(0, "a", "", -1),), "both must be 0 or more"),
    ],
)
def test_impossible_inventories_are_refused(gpus: tuple[Gpu, ...], words: str) -> None:
    with pytest.raises(InputError, match=words):
        NodeGpus(gpus)


@pytest.mark.parametrize(("text", "mib"), [("GiB", 1024), ("MiB", 1), ("256MiB", 256), ("2GiB", 2048)])
def test_units_are_read_and_written(text: str, mib: int) -> None:
    assert MemoryUnit.parse(text) == MemoryUnit(mib)
    assert str(MemoryUnit(mib)) == text


@pytest.mark.parametrize("text", ["", "GB", "gib", "0MiB", "-1GiB", "1.5GiB", "99999999MiB"])
def test_unknown_units_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="use GiB, MiB, or a chunk"):
        MemoryUnit.parse(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [("5", 5), (7, 7), ("1k", 1000), ("2Ki", 2048), ("1e3", 1000), ("0.5", 0.5), ("250m", 0.25), ("5.", 5)],
)
def test_quantities_as_kubernetes_writes_them(text: object, value: float) -> None:
    assert parse_quantity(text, field="f") == value


@given(st.text(max_size=10) | st.floats() | st.none() | st.booleans() | st.binary(max_size=3))
def test_what_is_no_quantity_is_named(value: object) -> None:
    try:
        parse_quantity(value, field="spec.x")
    except InputError as error:
        assert str(error).startswith("spec.x: ")
