"""`kubectl inspect gpushare`, byte for byte: the texts that gpushare's own binary printed, nodes by name."""

from __future__ import annotations

from cli_world import Json, node, old_node, pod, remember

from gpuslice import names
from gpuslice.cli.inspect.gpushare import details, summary
from gpuslice.cli.inspect.report import report
from gpuslice.units import MemoryUnit


def gpushare_cluster() -> list[Json]:
    def at(index: str) -> Json:
        return {"annotations": {names.MEM_IDX: index}}

    return [
        old_node("node-00001", "10.0.0.1", 30, 2),
        old_node("node-00000", "10.0.0.0", 30, 2),
        old_node("onegpu", None, 44, 1),
        pod("binpack-1-0", 3, on="node-00000", **at("0")),
        pod("binpack-1-1", 3, on="node-00000", **at("0")),
        pod("pend", 4, on="node-00000"),
        pod("jupyter-7d9", 8, on="node-00001", **at("1")),
        pod(
            "multi",
            {"a": 3, "b": 3},
            on="node-00001",
            annotations={names.GPUSHARE_ALLOCATION: '{"0":{"0":3},"1":{"1":3}}'},
        ),
        pod("ended", 9, on="node-00001", phase="Succeeded", **at("1")),
        pod("waiting", 9),
    ]


def test_the_summary_is_gpushares() -> None:
    assert summary(remember(gpushare_cluster()).snapshots()) == (
        "NAME        IPADDRESS  GPU0(Allocated/Total)  GPU1(Allocated/Total)  PENDING(Allocated)  GPU Memory(GiB)\n"
        "node-00000  10.0.0.0   6/15                   0/15                   4                   10/30\n"
        "node-00001  10.0.0.1   3/15                   11/15                                      14/30\n"
        "onegpu      unknown    0/44                   0/0                                        0/44\n"
        "----------------------------------------------------------\n"
        "Allocated/Total GPU Memory In Cluster:\n"
        "24/104 (23%)  \n"
    )


def test_the_details_are_gpushares() -> None:
    views = [view for view in remember(gpushare_cluster()).snapshots() if view.name != "onegpu"]
    text = details(views)
    assert text == (
        "\n"
        "NAME:       node-00000\n"
        "IPADDRESS:  10.0.0.0\n"
        "\n"
        "NAME         NAMESPACE  GPU0(Allocated)  GPU1(Allocated)  Pending(Allocated)  \n"
        "pend         default    0                0                4                   \n"
        "binpack-1-0  default    3                0                0                   \n"
        "binpack-1-1  default    3                0                0                   \n"
        "Allocated :  10 (33%)   \n"
        "Total :      30         \n"
        "------------------------------------------------------------------------------------\n"
        "\n"
        "NAME:       node-00001\n"
        "IPADDRESS:  10.0.0.1\n"
        "\n"
        "NAME         NAMESPACE  GPU0(Allocated)  GPU1(Allocated)  \n"
        "multi        default    3                3                \n"
        "jupyter-7d9  default    0                8                \n"
        "Allocated :  14 (46%)   \n"
        "Total :      30         \n"
        "------------------------------------------------------------------------------------\n"
        "\n"
        "\n"
        "Allocated/Total GPU Memory In Cluster:  24/60 (40%)  \n"
    )


def test_what_the_number_of_gpus_does_not_divide_is_in_the_totals_of_gpushares_tables() -> None:
    """31 GiB on 2 GPUs are 15 each and 31 in all, as gpushare's tool says; our own table shows what can be had."""
    views = remember(
        [old_node("n", "10.0.0.1", 31, 2), pod("a", 3, on="n", annotations={names.MEM_IDX: "0"})]
    ).snapshots()
    assert "n     10.0.0.1   3/15                   0/15                   3/31\n" in summary(views)
    assert "3/31 (9%)" in summary(views)
    assert "Total :      31 " in details(views)
    assert report(views).total_mib == 30 * 1024
    assert "0/31" in summary(remember([node("n", 15 * 1024, 16 * 1024 + 773)]).snapshots())


def test_a_cluster_without_gpus_has_gpushares_empty_table() -> None:
    assert summary([]) == (
        "NAME  IPADDRESS  GPU Memory()\n\nAllocated/Total GPU Memory In Cluster:\n0/0 (0%)  \n"
    )


def test_the_unit_is_the_one_that_the_nodes_publish() -> None:
    """141 GiB is more than gpushare's threshold of 100, after which it would have said MiB."""
    views = remember(
        [node("h200", 144384), pod("p", 141, on="h200", annotations={names.MEM_IDX: "0"})]
    ).snapshots()
    assert "GPU Memory(GiB)\n" in summary(views)
    assert "141/141" in summary(views)


def test_nodes_that_disagree_about_the_unit_are_shown_in_mib() -> None:
    views = remember(
        [
            node("a", 15109),
            node("b", 15109, unit=MemoryUnit(256)),
            pod("p", 3, on="b", annotations={names.MEM_IDX: "0"}),
        ]
    ).snapshots()
    lines = summary(views).splitlines()
    assert lines[0].endswith("GPU Memory(MiB)")
    assert lines[1].split() == ["a", "10.0.0.1", "0/14336", "0/14336"]
    assert lines[2].split() == ["b", "10.0.0.1", "768/15104", "768/15104"]


def test_every_gpu_counts_with_its_own_size() -> None:
    lines = summary(remember([node("mixed", 15109, 32510)]).snapshots()).splitlines()
    assert lines[1].split() == ["mixed", "10.0.0.1", "0/14", "0/31", "0/45"]
