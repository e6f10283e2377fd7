"""Which XIDs make a GPU unhealthy: NVIDIA's rules."""

from __future__ import annotations

import pytest

from gpuslice.devices.xids import XidPolicy, describe, read_policy
from gpuslice.errors import InputError

APPLICATIONS = [13, 31, 43, 45, 68, 109]


@pytest.mark.parametrize(
    ("disable", "enable", "counts", "ignored"),
    [
        ("", "", [48, 79, 119], APPLICATIONS),
        ("48, 74", "", [79], [48, 74, *APPLICATIONS]),
        ("", "43", [43, 48], [13, 31, 45, 68, 109]),
        ("all", "", [], [48, 79, *APPLICATIONS]),
        ("xids", "79", [79], [48, *APPLICATIONS]),
        ("", "all", [48, *APPLICATIONS], []),
        ("48", "48", [48], APPLICATIONS),
        (",ALL,", "", [], [48]),
    ],
)
def test_the_policy_of_the_environment(
    disable: str, enable: str, counts: list[int], ignored: list[int]
) -> None:
    policy = read_policy({"DP_DISABLE_HEALTHCHECKS": disable, "DP_ENABLE_HEALTHCHECKS": enable})
    assert [xid for xid in counts + ignored if policy.counts(xid)] == counts


def test_without_variables_it_is_the_default() -> None:
    assert read_policy({}) == XidPolicy()


@pytest.mark.parametrize("text", ["foo", "48;79", "-1", "²"])
def test_what_is_no_number_names_the_variable(text: str) -> None:
    with pytest.raises(InputError, match=r"DP_ENABLE_HEALTHCHECKS: .* is no XID; write numbers"):
        read_policy({"DP_ENABLE_HEALTHCHECKS": text})


def test_an_xid_is_described_as_far_as_it_is_known() -> None:
    assert describe(48) == "XID 48: double-bit ECC error"
    assert describe(7777) == "XID 7777"
