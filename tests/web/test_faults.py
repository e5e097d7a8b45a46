"""Whatever is asked, and whatever breaks: an answer in JSON, and the node goes on."""

from __future__ import annotations

import asyncio
import http.client
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchment.errors import OurFault
from catchment.web import limits
from catchment.web.streamr_rest import ROUTES
from catchment.wire.streamr import admin

from ..net.processes import NodeProcess, node_process, run
from .resthelp import of, rest_node

NAMES = st.one_of(
    st.sampled_from(["s", "a/b", "me", "0x" + "ab" * 20, "SYSTEM/keyexchange/0x" + "ab" * 20, "..", "%", "0", "-1"]),
    st.text(max_size=20),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=10,
)
WORDS = st.sampled_from(
    [
        *("id", "name", "partitions", "config", "operation", "user", "anonymous", "address"),
        *("apiKey", "username", "password", "challenge", "signature"),
    ]
)
BODIES = st.one_of(
    st.binary(max_size=100),
    JSON.map(msgspec.json.encode),
    st.dictionaries(WORDS, JSON, max_size=5).map(msgspec.json.encode),
)
QUERY_WORDS = st.sampled_from(
    [
        *("ts", "seq", "prev_ts", "prev_seq", "pkey", "address", "msgChainId", "signatureType", "signature"),
        *("count", "format", "version", "fromTimestamp", "toTimestamp", "fromSequenceNumber", "publisherId"),
        *("name", "search", "public", "max", "offset", "operation"),
    ]
)
QUERIES = st.dictionaries(QUERY_WORDS, st.one_of(st.text(max_size=10), st.integers().map(str)), max_size=5)
HEADERS = st.sampled_from(
    [{}, {"Authorization": "Bearer x"}, {"Authorization": "token x"}, {"Authorization": "Basic x"}]
)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[NodeProcess]]:
    folder = tmp_path_factory.mktemp("asked")
    with node_process(folder / "open") as first, node_process(folder / "closed", "--access", "closed") as second:
        yield [first, second]


@settings(max_examples=400)
@given(
    closed=st.integers(0, 1),
    route=st.sampled_from(ROUTES),
    method=st.sampled_from(["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"]),
    names=st.lists(NAMES, min_size=3, max_size=3),
    query=QUERIES,
    body=BODIES,
    headers=HEADERS,
)
def test_no_request_breaks_a_page(
    nodes: list[NodeProcess],
    closed: int,
    route: object,
    method: str,
    names: list[str],
    query: dict[str, str],
    body: bytes,
    headers: dict[str, str],
) -> None:
    path: str = route.path  # type: ignore[attr-defined]
    for name, parameter in zip(names, ("{id}", "{partition}", "{address}"), strict=True):
        path = path.replace(parameter, quote(name.encode("utf-8", "surrogatepass"), safe=""))
    for parameter in ("{permission}", "{key}"):
        path = path.replace(parameter, quote(names[0].encode("utf-8", "surrogatepass"), safe=""))
    asked = "&".join(f"{key}={quote(value.encode('utf-8', 'surrogatepass'))}" for key, value in query.items())
    connection = http.client.HTTPConnection(nodes[closed].url.partition("//")[2], timeout=30)
    try:
        connection.request(method, f"/api/v1{path}?{asked}", body, headers)
        answer = connection.getresponse()
        content = answer.read()
    finally:
        connection.close()
    assert answer.status < 500
    if answer.status >= 400 and method not in ("HEAD", "OPTIONS"):
        told = msgspec.json.decode(content)
        assert told["code"]
        assert told["error"] == told["message"]


def test_a_page_that_breaks_says_nothing_of_our_insides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with rest_node(tmp_path) as (node, rest):
            monkeypatch.setattr(node.access, "publishers", lambda *_: 1 / 0)
            broken = await rest.get(of("s") + "/publishers")
            assert (broken.status, broken.code) == (500, "INTERNAL_ERROR")
            assert b"division" not in broken.body
            assert (await rest.get(of("s"))).status == 200

    asyncio.run(main())
    assert "division by zero" in caplog.text


def test_a_full_store_refuses_changes_and_publishes_and_changes_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with rest_node(tmp_path, store_bytes=1) as (node, rest):
            for answer in (
                await rest.post("/streams", {"id": "s", "partitions": 2}),
                await rest.ask("POST", of("s") + "/data", raw=b"{}"),
                await rest.put(of("s"), {"partitions": 3}),
            ):
                assert (answer.status, answer.code) == (503, "UNAVAILABLE")
            assert node.access.created("s") is None
            assert (await rest.ok("GET", of("s")))["partitions"] == 1

    asyncio.run(main())


def test_history_that_cannot_be_read_is_our_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with rest_node(tmp_path) as (node, rest):

            def lost(*_: object, **__: object) -> None:
                raise OurFault("the disk is gone")

            monkeypatch.setattr(node.resender._history, "range", lost)
            answer = await rest.get(of("s") + "/data/partitions/0/from?fromTimestamp=0")
            assert (answer.status, answer.code) == (503, "UNAVAILABLE")
            assert b"disk" not in answer.body

    asyncio.run(main())


def test_one_sender_reads_so_many_histories_at_once_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_ANSWERS", 1)

    async def main() -> None:
        async with rest_node(tmp_path) as (node, rest):
            with node.limits.reading("127.0.0.1"):
                for page in ("/data/partitions/0/last", "/metadata/partitions/0"):
                    refused = await rest.get(of("s") + page)
                    assert (refused.status, refused.code) == (429, "TOO_MANY_ANSWERS")
            assert (await rest.get(of("s") + "/data/partitions/0/last")).status == 200
            assert node.limits.may_read("127.0.0.1")

    asyncio.run(main())


def test_a_history_counts_while_its_first_page_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_ANSWERS", 1)

    async def main() -> None:
        async with rest_node(tmp_path) as (node, rest):
            reading, go_on = threading.Event(), threading.Event()
            read = node.resender._history.range

            def slow(*arguments: Any, **options: Any) -> Any:
                reading.set()
                assert go_on.wait(30)
                return read(*arguments, **options)

            monkeypatch.setattr(node.resender._history, "range", slow)
            page = of("s") + "/data/partitions/0/from?fromTimestamp=0"
            first = asyncio.ensure_future(rest.get(page))
            try:
                assert await asyncio.to_thread(reading.wait, 30)
                assert not node.limits.may_read("127.0.0.1")
                assert (await rest.get(page)).status == 429
            finally:
                go_on.set()
            assert (await first).status == 200
            assert node.limits.may_read("127.0.0.1")

    asyncio.run(main())


def test_a_head_request_is_answered_without_a_body(tmp_path: Path) -> None:
    async def main() -> None:
        async with rest_node(tmp_path) as (_, rest):
            for path in (of("s"), of("s") + "/data/partitions/0/last"):
                answer = await rest.ask("HEAD", path)
                assert (answer.status, answer.body) == (200, b"")

    asyncio.run(main())


def test_an_admin_entry_of_a_newer_version_is_not_passed_over(tmp_path: Path) -> None:
    async def main() -> None:
        async with rest_node(tmp_path) as (node, rest):
            await rest.ok("POST", "/streams", {"id": "s"})
            change = admin.StreamDeleted(stream="s", at=1)
            entry = admin.to_entry(change, by="", ref=admin.next_ref(node.registrar._last, 0), received_at=1)
            newer = msgspec.structs.replace(entry, raw=b'{"change":"stream_moved","stream":"s","at":1}')
            node.store.append([newer])

    asyncio.run(main())
    ran = run("serve", "--port", "0", "--data", str(tmp_path))
    assert ran.returncode == 1
    assert "offset 1 cannot be read" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_two_nodes_share_no_limits(tmp_path: Path) -> None:
    async def main() -> None:
        async with rest_node(tmp_path / "1") as (one, _), rest_node(tmp_path / "2") as (two, _):
            for _ in range(20):
                assert one.limits.passwords.allows("x", 0, 0)
            assert not one.limits.passwords.allows("x", 0, 0)
            assert two.limits.passwords.allows("x", 0, 0)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("host", "access", "told"), [("0.0.0.0", "open", True), ("0.0.0.0", "closed", False), ("127.0.0.1", "open", False)]
)
def test_an_open_node_that_others_can_reach_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, host: str, access: str, told: bool
) -> None:
    async def main() -> None:
        async with rest_node(tmp_path, host=host, access=access):
            assert ("with open access" in caplog.text) is told

    asyncio.run(main())
