"""A node that allows only what was permitted."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from catchment.client.streamr import Chain, now_ms

from ..net.processes import NodeProcess, node_process, run
from . import wire
from .cases import CALLBACKS, NO_PUBLISH, case, lacking, numbered
from .clients import Client
from .conftest import OpenClient, address
from .rest import OWNER, Owner

pytestmark = pytest.mark.clients

WITHOUT_LOGIN = CALLBACKS[:2]
NO_ERRORS = lacking("0.9.3 knows no error answer.", "0.9.3")


@pytest.fixture(scope="module")
def closed(packages: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    folder = tmp_path_factory.mktemp("closed")
    added = run("users", "add", OWNER.address, "--data", str(folder / "data"))
    assert added.returncode == 0, added.stderr
    with node_process(folder, "--access", "closed") as running:
        yield running


@pytest.fixture(scope="module")
def owner(closed: NodeProcess) -> Owner:
    return Owner(closed)


@pytest.fixture
def visitor(version: str, closed: NodeProcess, open_client: OpenClient) -> Iterator[Callable[..., Client]]:
    """Opens a client at the closed node; the oldest have a key to a stream instead of a login."""
    opened: list[Client] = []

    def make(key: str | None = None) -> Client:
        options = {"apiKey": key} if version in WITHOUT_LOGIN else {}
        opened.append(open_client(version, at=closed, **options))
        return opened[-1]

    yield make
    for client in opened:
        client.close()


def says_not_allowed(text: str) -> bool:
    # 0.12.2 makes an Error of the whole payload, which JavaScript then words.
    return "not allowed" in text or text == "[object Object]"


@case("may not subscribe on a closed node without permission", NO_ERRORS)
def test_a_subscription_without_permission_is_refused(
    visitor: Callable[..., Client], owner: Owner, stream: str
) -> None:
    owner.create(stream)
    assert says_not_allowed(visitor().refusal("subscribe", sub="refused", stream=stream))


@case("may not publish on a closed node without permission", NO_PUBLISH)
def test_a_publish_without_permission_is_refused(
    version: str, visitor: Callable[..., Client], owner: Owner, stream: str
) -> None:
    owner.create(stream)
    if version in WITHOUT_LOGIN:
        client = visitor(owner.stream_key(stream, "read"))
    else:
        owner.grant(stream, address(version), "stream_get", "stream_subscribe")
        client = visitor()
    assert says_not_allowed(client.refusal("publish", stream=stream, content={"n": 0}))


@case("subscribes and publishes on a closed node with permission")
def test_what_was_permitted_is_done(
    version: str, visitor: Callable[..., Client], owner: Owner, closed: NodeProcess, stream: str
) -> None:
    owner.create(stream)
    keys: dict[str, str] = {}
    if version in WITHOUT_LOGIN:
        keys = {permission: owner.stream_key(stream, permission) for permission in ("read", "write")}
    else:
        owner.grant(stream, address(version), "stream_get", "stream_publish", "stream_subscribe")
    client = visitor(keys.get("read"))
    inbox = client.subscribe(stream)
    if version in NO_PUBLISH:
        chain = Chain(stream, 0, signer=OWNER)
        wire.publish(closed, *(chain.make(f'{{"n":{number}}}', now_ms()) for number in range(2)))
    else:
        client.publish(stream, *numbered(2), key=keys.get("write"))
    assert inbox.contents_until({"n": 1}) == numbered(2)
