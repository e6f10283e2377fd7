"""Each test runs against the cluster in this process, or with `--real` against the real programs of tests/e2e.

pytest tests/contract           # embedded; so does `make test`
pytest tests/contract --real    # real; as root, the programs are built once (see tests/e2e/README.md)
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from gpuslice.kube.client import Client

from .backend import Backend, embedded, real
from .kit import Api, Kit, Kubectl, connected, until

HERE = Path(__file__).parent


def pytest_addoption(parser: pytest.Parser) -> None:
    """Known only where this folder is named on the command line."""
    parser.addoption("--real", action="store_true", help="run tests/contract against a real Kubernetes")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The test's name says which cluster it saw."""
    if "backend" in metafunc.fixturenames:
        chosen = "real" if metafunc.config.getoption("--real", default=False) else "embedded"
        metafunc.parametrize("backend", [chosen], indirect=True, scope="session")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One event loop for all, since they share a cluster; and patience for a machine with much to do."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)
            if not item.get_closest_marker("timeout"):
                item.add_marker(pytest.mark.timeout(180, func_only=True))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def backend(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Backend]:
    folder = tmp_path_factory.mktemp("contract")
    if request.param == "real":
        with real(folder) as cluster:
            yield cluster
    else:
        async with embedded(folder) as here:
            yield here


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def connection(backend: Backend) -> AsyncIterator[tuple[Api, Client]]:
    async with connected(backend) as clients:
        yield clients


@pytest_asyncio.fixture(loop_scope="session")
async def k8s(
    request: pytest.FixtureRequest, backend: Backend, connection: tuple[Api, Client], tmp_path: Path
) -> AsyncIterator[Kit]:
    """A namespace to work in. It is deleted afterwards, with all that is in it; nobody waits for that."""
    api, client = connection
    metadata = {"generateName": "contract-"}
    made = await api.make(
        "/api/v1/namespaces", {"kind": "Namespace", "apiVersion": "v1", "metadata": metadata}
    )
    kit = Kit(
        backend,
        api,
        client,
        made["metadata"]["name"],
        lambda: Kubectl(backend.kubectl, backend.kubeconfig, tmp_path),
    )

    async def account() -> bool:
        """Pods are refused before there is one."""
        return (await api("GET", kit.path("serviceaccounts", "default"))).status == 200

    await until(account, "the default service account")
    yield kit
    for path in [*reversed(kit.made), f"/api/v1/namespaces/{kit.ns}"]:
        await api("DELETE", path)
