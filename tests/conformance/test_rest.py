"""The published clients' own REST calls: streams, permissions, publishers, publishing over HTTP; open and closed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..net.processes import NodeProcess, node_process, run
from .clients import Client, DriverError
from .conftest import OpenClient, address

pytestmark = pytest.mark.clients

ABLE = ("1.0.2", "2.2.7", "3.2.1", "4.1.6", "5.2.1", "5.4.1")
"""Those that log in."""
GRANTS = ABLE[1:]
ASKS_WHO_SUBSCRIBES = ("4.1.6", "5.2.1", "5.4.1")
READER = "0x" + "ab" * 20


@pytest.fixture(scope="module")
def closed(packages: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    folder = tmp_path_factory.mktemp("closed")
    for version in ABLE:
        added = run("users", "add", address(version, "owner"), "--data", str(folder / "data"))
        assert added.returncode == 0, added.stderr
    with node_process(folder, "--access", "closed") as node:
        yield node


@pytest.fixture(params=["open", "closed"])
def at(request: pytest.FixtureRequest, node: NodeProcess, closed: NodeProcess) -> NodeProcess:
    return node if request.param == "open" else closed


@pytest.fixture
def owner(version: str, at: NodeProcess, open_client: OpenClient) -> Iterator[Client]:
    """A client whose address may create streams."""
    client = open_client(version, name="owner", at=at)
    client.ask("login")
    yield client
    client.close()


every_version = pytest.mark.parametrize("version", ABLE)


@every_version
def test_a_client_manages_its_streams(owner: Client, at: NodeProcess, version: str) -> None:
    name = f"managed by {version}"
    made = owner.ask("call", method="createStream", args=[{"name": name, "partitions": 2}], keep="s")
    found = owner.ask("call", method="getOrCreateStream", args=[{"name": name}])
    assert found["id"] == made["id"]
    assert owner.ask("call", method="getStreamByName", args=[name])["id"] == made["id"]
    assert owner.ask("call", method="getStream", args=[made["id"]])["partitions"] == 2
    assert made["id"] in str(owner.ask("call", method="listStreams", args=[{}]))
    owner.ask("call", on="s", method="update", values={"description": "changed"})
    assert owner.ask("call", method="getStream", args=[made["id"]])["description"] == "changed"
    assert len(owner.ask("call", on="s", method="getPermissions")) == 6
    assert len(owner.ask("call", method="getStreamPublishers", args=[made["id"]])) >= 1
    owner.ask("call", on="s", method="delete")
    assert owner.ask("call", method="listStreams", args=[{"name": name}]) == []
    if version.startswith("5") and at.folder.name.startswith("closed"):
        with pytest.raises(DriverError, match="NOT_FOUND"):
            owner.ask("call", method="getStream", args=[made["id"]])


@pytest.mark.parametrize("version", GRANTS)
def test_a_client_grants_and_takes_back(owner: Client, version: str) -> None:
    owner.ask("call", method="createStream", args=[{"name": f"granted by {version}"}], keep="s")
    granted = owner.ask("call", on="s", method="grantPermission", args=["stream_subscribe", READER])
    assert owner.ask("call", on="s", method="hasPermission", args=["stream_subscribe", READER])["id"] == granted["id"]
    owner.ask("call", on="s", method="revokePermission", args=[granted["id"]])
    assert not owner.ask("call", on="s", method="hasPermission", args=["stream_subscribe", READER])
    owner.ask("call", on="s", method="grantPermission", args=["stream_subscribe", None])
    assert owner.ask("call", on="s", method="hasPermission", args=["stream_subscribe", None])["anonymous"] is True


@pytest.mark.parametrize("version", ASKS_WHO_SUBSCRIBES)
def test_a_client_is_told_who_may_do_what(owner: Client, at: NodeProcess, version: str) -> None:
    made = owner.ask("call", method="createStream", args=[{"name": f"asked by {version}"}])
    everyone = not at.folder.name.startswith("closed")
    assert owner.ask("call", method="isStreamPublisher", args=[made["id"], READER]) is everyone
    assert owner.ask("call", method="isStreamSubscriber", args=[made["id"], READER]) is everyone
    rules = owner.ask("call", method="getStreamValidationInfo", args=[made["id"]])
    assert rules == {"partitions": 1, "requireSignedData": False, "requireEncryptedData": False}
    assert owner.ask("call", method="getUserInfo")["username"] in str(
        owner.ask("call", method="getStreamPublishers", args=[made["id"]])
    )


@every_version
def test_a_client_publishes_over_http_and_finds_the_fields(owner: Client, version: str) -> None:
    made = owner.ask("call", method="createStream", args=[{"name": f"published to by {version}"}], keep="s")
    owner.ask("call", method="publishHttp", args=[made["id"], {"level": 3}])
    if version.startswith("5"):
        (last,) = owner.ask("call", method="getStreamLast", args=[made["id"]])
        assert last["content"] == {"level": 3}
    else:
        found = owner.ask("call", on="s", method="detectFields")
        assert found["config"]["fields"] == [{"name": "level", "type": "number"}]
