"""Conversations with Mosaic clients, in both layouts: who asks what, who hears what, and every refusal."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchment.core import mosaic_search
from catchment.core.bans import Bans
from catchment.core.bootstraps import KnownBootstraps
from catchment.crypto import ed25519, mosaic
from catchment.errors import OurFault, PeerFault, StoreFull, UserError
from catchment.model import Kind
from catchment.sessions import mosaic as sessions
from catchment.sessions import mosaic_queries
from catchment.sessions.mosaic import MosaicSession, open_websocket
from catchment.wire.mosaic import bootstrap, frames, keys, record, tags, timestamp
from catchment.wire.mosaic import filter as filters
from catchment.wire.mosaic.filter import Filter
from catchment.wire.mosaic.frames import LAYOUT_A, LAYOUT_B, LAYOUTS, Layout, Message, MessageType
from catchment.wire.mosaic.results import Result

from .mosaichelp import (
    ALICE,
    BOB,
    CAROL,
    EPHEMERAL,
    NOW,
    REPLACEABLE,
    SERVER,
    START,
    UNIQUE,
    VERSIONED,
    Peer,
    Room,
    by,
    make,
    split,
)

RECORD, COMPLETE, CLOSED = MessageType.RECORD, MessageType.LOCALLY_COMPLETE, MessageType.QUERY_CLOSED


@pytest.fixture(params=LAYOUTS, ids=repr)
def layout(request: pytest.FixtureRequest) -> Layout:
    return request.param


@pytest.fixture
def room() -> Room:
    return Room()


@pytest.fixture
def peer(room: Room, layout: Layout) -> Iterator[Peer]:
    made = room.peer(layout=layout)
    yield made
    # Whatever was said, the conversation goes on.
    if not made.closed:
        assert made.submit(make(424_242)) is Result.ACCEPTED


def subscribe(peer: Peer, question: bytes, query_id: bytes = b"s1", limit: int = 0) -> list[bytes]:
    """Subscribe and return the stored records."""
    *stored, last = peer.say(MessageType.SUBSCRIBE, query_id=query_id, limit=limit, body=question)
    assert (last.type, last.query_id) == (COMPLETE, query_id)
    assert {each.type for each in stored} <= {RECORD}
    return [each.body for each in stored]


def live(peer: Peer, query_id: bytes = b"s1") -> list[bytes]:
    """The live records heard since."""
    heard = peer.take()
    assert {(each.type, each.query_id) for each in heard} <= {(RECORD, query_id)}
    return [each.body for each in heard]


# Submissions.


def test_a_record_is_accepted_once_and_then_a_duplicate(room: Room, peer: Peer) -> None:
    assert peer.submit(make(1)) is Result.ACCEPTED
    assert peer.submit(make(1)) is Result.DUPLICATE
    rows = room.store.read(0, 10)
    assert [(row.entry.kind, row.entry.raw) for row in rows] == [(Kind.RECORD, make(1))]


def test_an_older_replaceable_record_is_accepted_and_not_served(peer: Peer) -> None:
    assert peer.submit(make(2, kind=REPLACEABLE)) is Result.ACCEPTED
    assert peer.submit(make(1, kind=REPLACEABLE)) is Result.ACCEPTED
    assert peer.submit(make(1, kind=REPLACEABLE)) is Result.DUPLICATE
    assert peer.query(by(ALICE)) == ([make(2, kind=REPLACEABLE)], Result.SUCCESS)


def test_an_ephemeral_record_is_delivered_and_never_kept(room: Room, peer: Peer) -> None:
    assert peer.submit(make(1, kind=EPHEMERAL)) is Result.NO_CONSUMERS
    other = room.peer()
    assert subscribe(other, by(ALICE)) == []
    assert peer.submit(make(2, kind=EPHEMERAL)) is Result.ACCEPTED
    assert live(other) == [make(2, kind=EPHEMERAL)]
    assert room.store.next_offset == 0
    assert peer.query(by(ALICE)) == ([], Result.SUCCESS)
    other.leave()
    assert peer.submit(make(3, kind=EPHEMERAL)) is Result.NO_CONSUMERS


def test_an_ephemeral_record_nobody_may_read_has_no_consumers(room: Room, peer: Peer) -> None:
    stranger, author = room.peer(key=CAROL.public), room.peer(key=ALICE.public)
    subscribe(stranger, by(ALICE))
    secret = make(1, kind=EPHEMERAL & ~0xC)
    assert peer.submit(secret) is Result.NO_CONSUMERS
    subscribe(author, by(ALICE))
    assert peer.submit(secret) is Result.ACCEPTED
    assert (live(stranger), live(author)) == ([], [secret])


@pytest.mark.parametrize("at", [20, 153, -40], ids=["hash", "payload", "signature"])
def test_an_altered_record_is_invalid_and_noted(room: Room, peer: Peer, at: int) -> None:
    raw = bytearray(make(1))
    raw[at] ^= 1
    assert peer.submit(bytes(raw)) is Result.INVALID
    note = room.store.read(0, 1) or room.broker._notes
    assert room.store.postings.weigh(record._MOSAIC, mosaic_search.plan(filters.decode(by(ALICE)))) == 0
    assert note


@pytest.mark.parametrize("size", [0, 1, 7, 31, 48, 152, 215, 223])
def test_a_record_cut_short_is_invalid(peer: Peer, size: int) -> None:
    assert peer.submit(make(1)[:size]) is Result.INVALID


def test_a_record_from_its_author_only(room: Room, peer: Peer) -> None:
    raw = make(1, flags=record.Flag.FROM_AUTHOR)
    assert peer.submit(raw) is Result.REQUIRES_AUTHENTICATION
    assert room.peer(key=BOB.public).submit(raw) is Result.UNAUTHORIZED
    spoofed = make(1, flags=record.Flag.FROM_AUTHOR, signer=BOB, author=ALICE.public)
    assert room.peer(key=BOB.public).submit(spoofed) is Result.UNAUTHORIZED, "a signing key proves no author"
    assert room.peer(key=ALICE.public).submit(raw) is Result.ACCEPTED


def test_a_full_disk_is_a_temporary_error(room: Room, peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(entries: object) -> list[int]:
        raise StoreFull("no room")

    with monkeypatch.context() as patch:
        patch.setattr(room.store, "append", full)
        assert peer.submit(make(1)) is Result.TEMPORARY_ERROR
    assert peer.submit(make(1)) is Result.ACCEPTED


def test_too_large(peer: Peer) -> None:
    head = frames.encode(Message(MessageType.SUBMISSION, body=make(1)), peer.layout)
    size = 3_000_000
    start, end, _ = peer.layout.rows[MessageType.SUBMISSION].length
    head = head[:start] + size.to_bytes(end - start, "little") + head[end:]
    [answer] = peer.carry_out(peer.session.frame_too_large(size, head[:100]))
    assert (answer.type, answer.result) == (MessageType.SUBMISSION_RESULT, Result.TOO_LARGE)
    assert answer.subject == make(1)[:32]


# Get, Query, Subscribe.


def test_get_by_ids_and_addresses(peer: Peer) -> None:
    raws = [make(time, kind=VERSIONED) for time in (1, 2)]
    for raw in raws:
        peer.submit(raw)
    address = raws[0][48:96]
    assert peer.get(raws[0][:48], address) == ([raws[0], raws[1]], Result.SUCCESS)
    assert peer.get(b"\1" * 48) == ([], Result.NOT_FOUND)
    assert peer.get() == ([], Result.NOT_FOUND)


def test_a_get_may_not_name_too_many(peer: Peer) -> None:
    assert peer.get(*[bytes(48)] * (sessions.MAX_REFERENCES + 1)) == ([], Result.TOO_LARGE)


def test_a_query_is_answered_newest_first_up_to_its_limit(peer: Peer) -> None:
    raws = [make(time) for time in (3, 1, 2)]
    for raw in raws:
        peer.submit(raw)
    assert peer.query(by(ALICE)) == (sorted(raws, reverse=True), Result.SUCCESS)
    assert peer.query(by(ALICE), limit=2) == (sorted(raws, reverse=True)[:2], Result.SUCCESS)
    assert peer.query(by(BOB)) == ([], Result.SUCCESS)
    assert peer.session.open_queries == 0


def test_a_subscription_goes_on_with_live_records(room: Room, peer: Peer) -> None:
    peer.submit(make(1))
    other = room.peer()
    assert subscribe(other, by(ALICE)) == [make(1)]
    for raw in (make(2), make(0), make(3, signer=BOB)):
        assert peer.submit(raw) is Result.ACCEPTED
    assert live(other) == [make(2), make(0)], "as they come, not sorted"


def test_the_limit_counts_stored_records_only(room: Room, peer: Peer) -> None:
    for time in range(5):
        peer.submit(make(time))
    other = room.peer()
    assert subscribe(other, by(ALICE), limit=2) == [make(4), make(3)]
    peer.submit(make(7))
    peer.submit(make(8))
    peer.submit(make(9))
    assert live(other) == [make(7), make(8), make(9)]


def test_a_client_hears_its_own_records_too(peer: Peer) -> None:
    assert subscribe(peer, by(ALICE)) == []
    heard = peer.say(MessageType.SUBMISSION, body=make(1))
    assert [each.type for each in heard] == [RECORD, MessageType.SUBMISSION_RESULT]
    peer.take()
    peer.say(MessageType.UNSUBSCRIBE, query_id=b"s1")


def test_a_repeat_is_not_delivered_again(room: Room, peer: Peer) -> None:
    other = room.peer()
    subscribe(other, by(ALICE))
    peer.submit(make(1))
    peer.submit(make(1))
    assert live(other) == [make(1)]


def test_live_records_wait_for_locally_complete(room: Room, peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mosaic_search, "PAGE_RECORDS", 1)
    for time in range(3):
        peer.submit(make(time))
    other = room.peer()
    other.hold = True
    other.say(MessageType.SUBSCRIBE, query_id=b"s1", body=by(ALICE))
    pages = other.pages()
    next(pages)
    peer.submit(make(50))
    next(pages)
    peer.submit(make(1))  # a repeat of a stored one
    heard = other.serve()
    assert [each.type for each in heard] == [RECORD, RECORD, RECORD, COMPLETE, RECORD]
    assert [each.body for each in heard if each.body] == [make(2), make(1), make(0), make(50)]
    peer.submit(make(51))
    assert live(other) == [make(51)]


def test_what_is_committed_but_not_delivered_when_a_subscription_opens_comes_once(room: Room, peer: Peer) -> None:
    other = room.peer()
    [publish] = peer.session.receive(
        frames.encode(Message(MessageType.SUBMISSION, body=make(1)), peer.layout), text=False, now=NOW
    )
    publish.origin = peer
    room.broker.judge([publish])
    room.broker.commit([publish], NOW)
    assert subscribe(other, by(ALICE)) == [make(1)]
    room.broker.deliver([publish])
    assert live(other) == []
    peer.take()


def test_too_many_live_records_while_stored_ones_are_sent_close_the_query(
    room: Room, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mosaic_queries, "MAX_HELD", 600)
    other = room.peer()
    other.hold = True
    other.say(MessageType.SUBSCRIBE, query_id=b"s1", body=by(ALICE))
    for time in range(5):
        peer.submit(make(time))
    [closed] = other.take()
    assert (closed.type, closed.result) == (CLOSED, Result.TEMPORARY_ERROR)
    assert other.serve() == []
    assert len(room.house.watches) == 0


def test_unsubscribing(room: Room, peer: Peer) -> None:
    other = room.peer()
    subscribe(other, by(ALICE))
    [closed] = other.say(MessageType.UNSUBSCRIBE, query_id=b"s1")
    assert (closed.type, closed.query_id, closed.result) == (CLOSED, b"s1", Result.SUCCESS)
    peer.submit(make(1))
    assert live(other) == []
    assert len(room.house.watches) == 0
    [again] = other.say(MessageType.UNSUBSCRIBE, query_id=b"s1")
    assert (again.type, again.result) == (CLOSED, Result.NOT_FOUND)


def test_unsubscribing_while_stored_records_are_sent_ends_them(room: Room, peer: Peer) -> None:
    for time in range(3):
        peer.submit(make(time))
    other = room.peer()
    other.hold = True
    other.say(MessageType.SUBSCRIBE, query_id=b"s1", body=by(ALICE))
    [closed] = other.say(MessageType.UNSUBSCRIBE, query_id=b"s1")
    assert closed.type is CLOSED
    assert other.serve() == []


def test_many_queries_are_told_apart_by_their_ids(room: Room, peer: Peer) -> None:
    other = room.peer()
    subscribe(other, by(ALICE), b"aa")
    subscribe(other, by(BOB), b"bb")
    subscribe(other, by(ALICE, BOB), b"cc")
    peer.submit(make(1))
    assert sorted(each.query_id for each in other.take()) == [b"aa", b"cc"]
    peer.submit(make(2, signer=BOB))
    assert sorted(each.query_id for each in other.take()) == [b"bb", b"cc"]
    third = room.peer()
    subscribe(third, by(CAROL), b"aa")
    assert other.session.open_queries == 3, "ids belong to one connection"


def test_a_reused_open_id_closes_the_older_query_first(room: Room, peer: Peer) -> None:
    other = room.peer()
    subscribe(other, by(ALICE))
    heard = other.say(MessageType.SUBSCRIBE, query_id=b"s1", body=by(BOB))
    assert [each.type for each in heard] == [CLOSED, COMPLETE]
    assert heard[0].result is Result.SUCCESS
    peer.submit(make(1))
    peer.submit(make(2, signer=BOB))
    assert live(other) == [make(2, signer=BOB)]
    heard = other.say(MessageType.QUERY, query_id=b"s1", body=b"nonsense")
    assert [(each.type, each.result) for each in heard] == [(CLOSED, Result.SUCCESS), (CLOSED, Result.INVALID)]
    assert other.session.open_queries == 0


def test_too_many_open_queries(room: Room, peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_QUERIES", 2)
    subscribe(peer, by(BOB), b"aa")
    subscribe(peer, by(BOB), b"bb")
    [closed] = peer.say(MessageType.SUBSCRIBE, query_id=b"cc", body=by(BOB))
    assert (closed.type, closed.query_id, closed.result) == (CLOSED, b"cc", Result.TOO_FAST)


@pytest.mark.parametrize("kind", [MessageType.QUERY, MessageType.SUBSCRIBE])
def test_a_filter_that_nothing_narrows_is_too_open(peer: Peer, kind: MessageType) -> None:
    for question in (Filter(), Filter(since=START), Filter(excluded_tags=frozenset({tags.notify(ALICE.public)}))):
        [closed] = peer.say(kind, query_id=b"q1", body=filters.encode(question))
        assert (closed.type, closed.result) == (CLOSED, Result.TOO_OPEN)


@pytest.mark.parametrize("kind", [MessageType.QUERY, MessageType.SUBSCRIBE])
@pytest.mark.parametrize("body", [b"", b"x", bytes(8), b"\x10\0" + bytes(6) + b"\1\0" + bytes(6)])
def test_a_filter_that_is_none_is_invalid(peer: Peer, kind: MessageType, body: bytes) -> None:
    [closed] = peer.say(kind, query_id=b"q1", body=body)
    assert (closed.type, closed.query_id, closed.result) == (CLOSED, b"q1", Result.INVALID)


def test_an_answer_that_breaks_is_closed_as_our_fault(room: Room, peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    peer.hold = True
    peer.say(MessageType.QUERY, query_id=b"q1", body=by(ALICE))
    source = peer.waiting.pop().source
    monkeypatch.setattr(room.store.postings, "search", lambda *_, **__: (_ for _ in ()).throw(OurFault("broken")))
    with pytest.raises(OurFault):
        source.page()
    closed = frames.decode(source.failed(), peer.layout)
    assert (closed.type, closed.result) == (CLOSED, Result.TEMPORARY_ERROR)
    assert peer.session.open_queries == 0


def test_received_time_is_asked_on_mosaics_scale(peer: Peer) -> None:
    peer.send(frames.encode(Message(MessageType.SUBMISSION, body=make(1)), peer.layout), now=NOW)
    peer.send(frames.encode(Message(MessageType.SUBMISSION, body=make(2)), peer.layout), now=NOW + 5)
    since = timestamp.from_microseconds(NOW + 5)
    assert peer.query(by(ALICE, received_since=since))[0] == [make(2)]
    assert peer.query(by(ALICE, received_until=since - 1))[0] == [make(1)]


# Who may read.


def test_secret_records_reach_the_entitled_only(room: Room, peer: Peer) -> None:
    secret = make(1, kind=UNIQUE & ~0xC | 4, tag_list=[tags.notify(BOB.public)])
    nobody, tagged, stranger, author = (room.peer(key=key) for key in (None, BOB.public, CAROL.public, ALICE.public))
    for each in (nobody, tagged, stranger, author):
        subscribe(each, by(ALICE))
    assert peer.submit(secret) is Result.ACCEPTED
    assert [live(each) for each in (nobody, tagged, stranger, author)] == [[], [secret], [], [secret]]
    assert [each.query(by(ALICE))[0] for each in (nobody, tagged, stranger, author)] == [[], [secret], [], [secret]]
    assert nobody.get(secret[:48]) == ([], Result.NOT_FOUND)
    assert tagged.get(secret[:48]) == ([secret], Result.SUCCESS)


# Authentication over a WebSocket.


def upgraded(room: Room, layout: Layout = LAYOUT_A, **headers: str) -> Peer:
    named = {f"x-mosaic-{name.replace('_', '-')}": value for name, value in headers.items()}
    return room.peer(layout=layout, session=open_websocket(named, room.house, b"\xab" * 32))


@pytest.mark.parametrize("scheme", [mosaic.Signer, ed25519.Signer])
def test_hello_auth_proves_a_key(room: Room, layout: Layout, scheme: Any) -> None:
    secret = make(1, kind=UNIQUE & ~0xC)
    assert room.peer().submit(secret) is Result.ACCEPTED
    peer = upgraded(room, layout, authenticate_as=keys.encode(keys.Printable.USER_KEY, ALICE.public))
    nonce = peer.session.upgrade_headers["X-Mosaic-Client-Authenticate-Nonce"]
    assert peer.query(by(ALICE))[0] == [], "a claim is no proof"
    assert peer.say(MessageType.HELLO_AUTH, body=scheme(ALICE.secret).sign(nonce.encode())) == []
    assert peer.query(by(ALICE))[0] == [secret]


def test_a_wrong_signature_ends_the_conversation(room: Room, layout: Layout) -> None:
    peer = upgraded(room, layout, authenticate_as=keys.encode(keys.Printable.USER_KEY, ALICE.public))
    nonce = peer.session.upgrade_headers["X-Mosaic-Client-Authenticate-Nonce"].encode()
    [closing] = peer.say(MessageType.HELLO_AUTH, body=BOB.sign(nonce))
    assert (closing.type, closing.result, peer.closed) == (MessageType.CLOSING, Result.UNAUTHORIZED, True)


def test_a_nonce_is_good_once_and_hello_auth_unasked_is_not_recognized(room: Room, layout: Layout) -> None:
    peer = upgraded(room, layout, authenticate_as=keys.encode(keys.Printable.USER_KEY, ALICE.public))
    signature = ALICE.sign(peer.session.upgrade_headers["X-Mosaic-Client-Authenticate-Nonce"].encode())
    assert peer.say(MessageType.HELLO_AUTH, body=signature) == []
    for each in (peer, room.peer(layout=layout)):
        assert [answer.type for answer in each.say(MessageType.HELLO_AUTH, body=signature)] == [
            MessageType.UNRECOGNIZED
        ]


def test_headers_of_the_upgrade(room: Room) -> None:
    headers = upgraded(room).session.upgrade_headers
    assert headers == {"Sec-WebSocket-Protocol": "mosaic2025", "X-Mosaic-Version": "0"}
    headers = upgraded(
        room, versions="3, 0", features="x,y", server_authenticate_nonce="abc", extensions="sync"
    ).session.upgrade_headers
    assert headers["X-Mosaic-Features-Accepted"] == ""
    signature = base64.b64decode(headers["X-Mosaic-Server-Authentication"])
    assert mosaic.verify(SERVER.public, b"abc", signature)


@pytest.mark.parametrize(
    "headers",
    [
        {"versions": "1,2"},
        {"authenticate_as": "mopub0nonsense"},
        {"authenticate_as": "mosrv0" + "y" * 52},
        {"server_authenticate_nonce": ""},
        {"server_authenticate_nonce": "é"},
        {"server_authenticate_nonce": "x" * 1000},
    ],
)
def test_upgrades_that_are_refused(room: Room, headers: dict[str, str]) -> None:
    with pytest.raises(PeerFault):
        upgraded(room, **headers)


# Hello, on streams.


def test_hello_comes_first_and_tells_version_and_applications(room: Room) -> None:
    peer = room.peer(hello=True)
    assert peer.query(by(ALICE)) == ([], Result.INVALID)
    assert peer.submit(make(1)) is Result.INVALID
    [ack] = peer.say(MessageType.HELLO, version=7, applications=(5, 0, 99))
    assert ack == Message(MessageType.HELLO_ACK, result=Result.SUCCESS, version=0, applications=(0, 99))
    assert peer.query(by(ALICE)) == ([], Result.SUCCESS)
    [again] = peer.say(MessageType.HELLO, version=0, applications=(1,))
    assert (again.type, again.result, again.applications) == (MessageType.HELLO_ACK, Result.DUPLICATE, (1,))


def test_hello_over_a_websocket_is_not_recognized(peer: Peer) -> None:
    assert [each.type for each in peer.say(MessageType.HELLO)] == [MessageType.UNRECOGNIZED]


# Bans, limits, silence, the end.


def test_bans_by_address(layout: Layout) -> None:
    for text, result in (
        ("192.0.2.7", Result.IP_PERM_BANNED),
        ("192.0.2.0/24@2100-01-01", Result.IP_TEMP_BANNED),
    ):
        peer = Room(bans=Bans(text)).peer(layout=layout)
        [closing] = peer.say(MessageType.QUERY, body=by(ALICE))
        assert (closing.type, closing.result, peer.closed) == (MessageType.CLOSING, result, True)
    for text in ("192.0.2.8", "2001:db8::/32", "192.0.2.7@2020-01-01"):
        assert Room(bans=Bans(text)).peer(layout=layout).query(by(ALICE)) == ([], Result.SUCCESS)


def test_bans_by_key(layout: Layout) -> None:
    alice = keys.encode(keys.Printable.USER_KEY, ALICE.public)
    for text, result in ((alice, Result.PUBKEY_PERM_BANNED), (f"{alice}@2100-01-01", Result.PUBKEY_TEMP_BANNED)):
        room = Room(bans=Bans(f"198.51.100.1, {text}"))
        peer = room.peer(layout=layout)
        assert peer.submit(make(1)) is result, "whoever brings it"
        assert peer.submit(make(1, signer=ALICE, author=BOB.public)) is result
        assert peer.submit(make(1, signer=BOB)) is Result.ACCEPTED
        [closing] = room.peer(layout=layout, key=ALICE.public).say(MessageType.QUERY, body=by(BOB))
        assert (closing.type, closing.result) == (MessageType.CLOSING, result)
        claimed = upgraded(room, layout, authenticate_as=alice)
        nonce = claimed.session.upgrade_headers["X-Mosaic-Client-Authenticate-Nonce"].encode()
        [closing] = claimed.say(MessageType.HELLO_AUTH, body=ALICE.sign(nonce))
        assert (closing.type, closing.result) == (MessageType.CLOSING, result)


@pytest.mark.parametrize("text", ["somebody", "mopub0abc", "10.0.0.0/99", "192.0.2.7@tomorrow"])
def test_bans_that_are_none(text: str) -> None:
    with pytest.raises(UserError, match="ban"):
        Bans(text)


def test_requests_that_come_too_fast(layout: Layout) -> None:
    peer = Room(requests_per_second=2).peer(layout=layout)
    results = [peer.query(by(ALICE))[1] for _ in range(6)]
    assert results == [Result.SUCCESS] * 4 + [Result.TOO_FAST] * 2
    assert peer.submit(make(1)) is Result.TOO_FAST
    later = peer.send(frames.encode(Message(MessageType.QUERY, body=by(ALICE)), layout), now=NOW + 1_000_000)
    assert split(later, b"\0\0") == ([], Result.SUCCESS)


def test_silent_clients_without_a_query_are_told_to_go(layout: Layout) -> None:
    room = Room(idle_seconds=10)
    silent, asking, watching = (room.peer(layout=layout) for _ in range(3))
    subscribe(watching, by(ALICE))
    silent.say(MessageType.GET)
    for each in (silent, asking, watching):
        assert each.carry_out(each.session.idle(NOW)) == []
    asking.send(frames.encode(Message(MessageType.GET), layout), now=NOW + 9_000_000)
    for each in (asking, watching):
        assert each.carry_out(each.session.idle(NOW + 11_000_000)) == []
    [closing] = silent.carry_out(silent.session.idle(NOW + 11_000_000))
    assert (closing.type, closing.result, silent.closed) == (MessageType.CLOSING, Result.SUCCESS, True)
    never = Room().peer()
    assert never.session.idle(NOW) == never.session.idle(NOW * 2) == ()


def test_goodbye(peer: Peer) -> None:
    subscribe(peer, by(BOB))
    closing = frames.decode(peer.session.goodbye(), peer.layout)
    assert (closing.type, closing.result) == (MessageType.CLOSING, Result.SHUTTING_DOWN)


def test_who_leaves_leaves_nothing_behind(room: Room) -> None:
    peer = room.peer()
    for number in range(20):
        subscribe(peer, by(ALICE), number.to_bytes(2, "big"))
    assert len(room.house.watches) == 20
    peer.leave()
    assert len(room.house.watches) == 0
    assert room.house.watches._hooks == {}


# What is no request.


def test_blobs_are_answered_though_there_are_none(peer: Peer) -> None:
    [answer] = peer.say(MessageType.BLOB_GET, subject=b"h" * 32)
    assert (answer.type, answer.result, answer.subject) == (MessageType.BLOB_RESULT, Result.NOT_FOUND, b"h" * 32)
    [answer] = peer.say(MessageType.BLOB_SUBMISSION, subject=b"h" * 32, body=b"blob")
    assert (answer.type, answer.result) == (MessageType.BLOB_SUBMISSION_RESULT, Result.PERSISTENT_ERROR)


def test_bootstraps_are_looked_up(room: Room, peer: Peer) -> None:
    known = room.house.bootstraps
    assert isinstance(known, KnownBootstraps)
    signer = ed25519.Signer(ALICE.secret)
    for sequence, text in ((2, "S\nmosaic://new.example"), (1, "S\nmosaic://old.example")):
        known.add(bootstrap.make_item(signer, bootstrap.Salt.SERVER, sequence, text))
    [answer] = peer.say(MessageType.DHT_LOOKUP, subject=ALICE.public, server=1)
    assert (answer.type, answer.result) == (MessageType.DHT_RESPONSE, Result.SUCCESS)
    assert answer.body == b"S\nmosaic://new.example"
    [answer] = peer.say(MessageType.DHT_LOOKUP, subject=ALICE.public, server=0)
    assert (answer.type, answer.result, answer.body) == (MessageType.DHT_RESPONSE, Result.NOT_FOUND, b"")


def test_a_file_of_bootstraps() -> None:
    item = bootstrap.make_item(ed25519.Signer(ALICE.secret), bootstrap.Salt.USER, 5, "U")
    line: dict[str, Any] = {
        "public_key": keys.encode(keys.Printable.USER_KEY, ALICE.public),
        "salt": "mub25",
        "seq": 5,
        "value": "U",
        "signature": item.signature.hex(),
    }
    known = KnownBootstraps()
    known.read(json.dumps(line) + "\n\n", source="file")
    assert known.lookup(ALICE.public, bootstrap.Salt.USER) == "U"
    for change in (
        {"seq": 6},
        {"salt": "other"},
        {"signature": "xyz"},
        {"public_key": "nobody"},
        {"value": "U\n"},
        {"more": 1},
        {"seq": "5"},
    ):
        with pytest.raises(UserError, match="file, line 2, is no bootstrap"):
            KnownBootstraps().read("\n" + json.dumps(line | change), source="file")


@pytest.mark.parametrize("kind", [kind for kind in MessageType if not kind.from_client])
def test_a_servers_message_from_a_client_is_not_recognized(peer: Peer, kind: MessageType) -> None:
    assert [each.type for each in peer.say(kind)] == [MessageType.UNRECOGNIZED]


def test_unknown_types_and_text_are_not_recognized(peer: Peer) -> None:
    unknown = bytes.fromhex("4408000000000000" if peer.layout is LAYOUT_A else "4400000008000000")
    assert [each.type for each in peer.send(unknown)] == [MessageType.UNRECOGNIZED]
    query = frames.encode(Message(MessageType.QUERY, body=by(ALICE)), peer.layout)
    assert [each.type for each in peer.send(query, text=True)] == [MessageType.UNRECOGNIZED]


def test_unrecognized_is_not_answered(peer: Peer) -> None:
    assert peer.say(MessageType.UNRECOGNIZED) == []


@pytest.mark.parametrize("kind", [MessageType.GET, MessageType.QUERY, MessageType.SUBSCRIBE, MessageType.UNSUBSCRIBE])
def test_lengths_that_lie_are_invalid_under_the_querys_id(room: Room, kind: MessageType) -> None:
    peer = room.peer()
    frame = bytearray(frames.encode(Message(kind, query_id=b"q7", body=by(ALICE)), LAYOUT_A))
    frame[1] ^= 0x55
    [answer] = peer.send(bytes(frame))
    assert (answer.type, answer.query_id, answer.result) == (CLOSED, b"q7", Result.INVALID)
    [answer] = peer.send(bytes(frame[:5]))
    assert (answer.type, answer.result) == (CLOSED, Result.INVALID)


def test_each_message_is_answered_in_its_own_layout(room: Room) -> None:
    session = MosaicSession(room.house)
    sent: list[bytes] = []
    session.connected("", sent.append)
    for layout in (LAYOUT_A, LAYOUT_B, LAYOUT_A):
        frame = frames.encode(Message(MessageType.UNSUBSCRIBE, query_id=b"zz"), layout)
        [command] = session.receive(frame, text=False, now=NOW)
        assert frames.decode(command.payload, layout).type is CLOSED


def test_a_subscription_keeps_the_layout_it_was_opened_in(room: Room) -> None:
    for layout in LAYOUTS:
        peer = room.peer(layout=layout)
        subscribe(peer, by(ALICE))
        other = LAYOUT_B if layout is LAYOUT_A else LAYOUT_A
        peer.session.receive(frames.encode(Message(MessageType.UNRECOGNIZED), other), text=False, now=NOW)
        room.peer().submit(make(7 if layout is LAYOUT_A else 8))
        assert len(live(peer)) == 1


messages = st.binary(max_size=200) | st.builds(
    lambda kind, body, layout: frames.encode(Message(kind, body=body), layout),
    st.sampled_from([kind for kind in MessageType if kind is not MessageType.HELLO_AUTH]),
    st.binary(max_size=300),
    st.sampled_from(LAYOUTS),
)


@given(st.lists(messages, max_size=12), st.booleans())
def test_nothing_a_peer_sends_breaks_a_conversation(data: list[bytes], hello: bool) -> None:
    room = Room()
    sent: list[bytes] = []
    peer = room.peer(hello=hello)
    peer._hear = sent.append  # type: ignore[method-assign]
    for frame in data:
        peer.send(frame)
        peer.carry_out(peer.session.frame_too_large(len(frame) + 2_000_000, frame[:64]))
        if peer.closed:
            break
    for payload in sent:
        assert any(_reads(payload, layout) for layout in LAYOUTS)
    assert room.peer().submit(make(1)) is Result.ACCEPTED


def _reads(payload: bytes, layout: Layout) -> bool:
    try:
        return not frames.decode(payload, layout).type.from_client or payload[0] == MessageType.UNRECOGNIZED
    except PeerFault:
        return False
