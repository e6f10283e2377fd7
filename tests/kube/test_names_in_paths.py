"""A name is one part of a path: whatever is in it, no request goes to anything else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
import pytest

from gpuslice.errors import InputError
from gpuslice.kube.client import Client, Response
from gpuslice.kube.wire import Node, Pod, name_problem

WRONG = [
    "",
    ".",
    "..",
    "../../../nodes/n1",
    "a/b",
    "a%2fb",
    "a?dryRun=All",
    "a#b",
    "a\\b",
    "a\r\nX: y",
    "a\x00",
    "a" * 254,
]
"""`PodName: "../../../nodes/n1"` fetched a node in the place of a pod; "" is the whole collection."""


class Recorder:
    """A transport that remembers the paths that it was asked for."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    async def request(self, _method: str, path: str, **_more: object) -> Response:
        self.paths.append(path)
        return Response(200, msgspec.json.encode({"metadata": {"name": "x"}}))


Verb = Callable[[Client, str, str], Awaitable[object]]
VERBS: dict[str, Verb] = {
    "get": lambda c, ns, name: c.get(Pod, name, ns),
    "create": lambda c, ns, name: c.create(Pod.resource, {}, ns, name=name, subresource="binding"),
    "replace": lambda c, ns, name: c.replace(Pod.resource, name, {}, ns),
    "patch": lambda c, ns, name: c.patch(Pod, name, {}, ns),
    "delete": lambda c, ns, name: c.delete(Pod.resource, name, ns),
    "evict": lambda c, ns, name: c.evict(ns, name, "u"),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("wrong", WRONG)
async def test_a_name_that_none_can_have_is_refused_before_anything_is_asked(verb: str, wrong: str) -> None:
    transport = Recorder()
    client = Client(transport)  # type: ignore[arg-type]
    for namespace, name in (("default", wrong), (wrong, "p")):
        with pytest.raises(InputError, match=r"is no name of a (Pod|Namespace): it |without its namespace"):
            await VERBS[verb](client, namespace, name)
    with pytest.raises(InputError):
        await client.get(Node, wrong)
    assert transport.paths == []


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("p-1.x", "p-1.x"),
        ("system:node-admins", "system:node-admins"),
        ("a b", "a%20b"),
        ("ä", "%C3%A4"),
        ("a;b=c&d", "a;b=c&d"),
    ],
)
def test_other_names_are_one_part_of_the_path(name: str, path: str) -> None:
    assert name_problem(name) == ""
    assert Pod.resource.path("ns", name, "log") == f"/api/v1/namespaces/ns/pods/{path}/log"
