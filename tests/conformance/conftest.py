"""A node, the published clients, and a record of what came of each case."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from catchment.crypto.ethereum import Signer

from ..net.processes import NodeProcess, node_process
from . import table
from .cases import CALLBACKS, VERSIONS
from .clients import Client, Driver, install, missing_tools
from .door import Door

RESULTS = pytest.StashKey[table.Results]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-table", action="store_true", help="write what came of the cases into the document")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[RESULTS] = table.Results()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Iterator[Any]:
    report = yield
    marker = item.get_closest_marker("case")
    if marker is not None:
        version = item.callspec.params["version"]  # type: ignore[attr-defined]
        item.config.stash[RESULTS].note(marker.args[0], version, report.when, report.outcome)
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.getoption("--write-table", default=False):
        session.config.stash[RESULTS].write()


@pytest.fixture(scope="session")
def results(pytestconfig: pytest.Config) -> table.Results:
    return pytestconfig.stash[RESULTS]


@pytest.fixture(scope="session")
def packages(pytestconfig: pytest.Config) -> None:
    """The published clients, installed. Without node and npm there is no run; with them, a failed install fails."""
    required = pytestconfig.getoption("--write-table", default=False)
    missing = missing_tools()
    if missing and not required:
        pytest.skip(f"the published clients were not run: this machine has no {' and no '.join(missing)}")
    install()


@pytest.fixture(scope="session")
def node(packages: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with node_process(tmp_path_factory.mktemp("node")) as running:
        yield running


@pytest.fixture(scope="session")
def drivers(packages: None) -> Iterator[Callable[[str], Driver]]:
    """A process for each client, started when first asked for."""
    running: dict[str, Driver] = {}

    def of(version: str) -> Driver:
        if version not in running:
            running[version] = Driver(version)
        return running[version]

    yield of
    for driver in running.values():
        driver.close()


@pytest.fixture(scope="session")
def key_pair() -> dict[str, str]:
    """An RSA pair for clients that would otherwise make one each time they are built."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return {"privateKey": private.decode(), "publicKey": public.decode()}


def private_key(version: str, name: str = "a") -> bytes:
    """A key for each client of the suite, always the same."""
    return bytes([1 + VERSIONS.index(version)]) + name.encode().rjust(31, b"\x07")


def address(version: str, name: str = "a") -> str:
    return Signer(private_key(version, name)).address


OpenClient = Callable[..., Client]


@pytest.fixture(scope="session")
def open_client(node: NodeProcess, drivers: Callable[[str], Driver], key_pair: dict[str, str]) -> OpenClient:
    """Opens clients of a version: connected, with a key to sign with, checking all signatures where they can."""
    numbers = itertools.count(1)

    def make(
        version: str,
        *,
        name: str = "a",
        at: NodeProcess | Door | None = None,
        query: str | None = None,
        settings: dict[str, object] | None = None,
        **options: object,
    ) -> Client:
        where = (at or node).url.removesuffix("/")
        # 1.0.2 does not add its versions to an address; its default one has them.
        usual = "?controlLayerVersion=0&messageLayerVersion=29" if version == "1.0.2" else ""
        url = where + "/api/v1/ws" + (usual if query is None else query)
        chosen: dict[str, object] = {}
        if version not in CALLBACKS:
            chosen = {"keyExchange": key_pair, "verifySignatures": "always", "gapFillTimeout": 200}
        if version not in CALLBACKS[:2]:
            options = {"privateKey": "0x" + private_key(version, name).hex(), **options}
        return Client(
            drivers(version),
            f"{name}{next(numbers)}",
            url=url,
            restUrl=where.replace("ws:", "http:", 1) + "/api/v1",
            settings={**chosen, **(settings or {})},
            **options,
        )

    return make


@pytest.fixture(scope="session")
def client_of(open_client: OpenClient) -> Callable[[str], Client]:
    """One connected client of each version, shared by the cases that leave it as it was."""
    known: dict[str, Client] = {}

    def of(version: str) -> Client:
        if version not in known:
            known[version] = open_client(version)
        return known[version]

    return of


@pytest.fixture
def client(version: str, client_of: Callable[[str], Client]) -> Client:
    return client_of(version)


@pytest.fixture
def stream(request: pytest.FixtureRequest) -> str:
    """A stream of the test's own."""
    return re.sub(r"[^a-z0-9]+", "-", request.node.name).strip("-")
