"""Who may do what: both modes, every refusal with its code."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from catchment import model
from catchment.core.access import ANONYMOUS, Access, Caller
from catchment.core.accounts import SESSION_US, Key, digest_of
from catchment.errors import PeerFault
from catchment.wire.streamr import admin

NOW = 1_700_000_000_000_000
ALICE = "0x" + "a1" * 20
BOB = "0x" + "b0" * 20
KEY_EXCHANGE = "SYSTEM/keyexchange/" + ALICE


def create(stream: str, owner: str | None = ALICE, first: int = 1, **properties: object) -> admin.Change:
    return admin.StreamCreated(
        stream=stream,
        at=1,
        owner=owner,
        first_permission=first,
        properties=admin.Properties(**properties),  # type: ignore[arg-type]
    )


def access_with(*changes: admin.Change, open_to_all: bool = False) -> Access:
    access = Access(open_to_all=open_to_all)
    for change in changes:
        access.apply(change)
    return access


def code_of(call: object, *arguments: object, **keywords: object) -> str:
    with pytest.raises(PeerFault) as caught:
        call(*arguments, **keywords)  # type: ignore[operator]
    return caught.value.code


def test_an_open_node_takes_everything_of_any_stream_in_its_one_partition() -> None:
    access = access_with(open_to_all=True)
    access.check_publish(ANONYMOUS, "river", 0, signer=None, encrypted=False)
    access.check_subscribe(ANONYMOUS, "river", 0)
    assert access.stream("river").partitions == 1
    assert code_of(access.check_publish, ANONYMOUS, "river", 1, signer=None) == "REQUEST_FAILED"
    assert code_of(access.check_subscribe, ANONYMOUS, "river", 1) == "REQUEST_FAILED"


def test_an_open_node_keeps_to_what_a_stream_says_of_itself() -> None:
    access = access_with(create("three", partitions=3, require_signed=True, require_encrypted=True), open_to_all=True)
    access.check_publish(ANONYMOUS, "three", 2, signer=BOB, encrypted=True)
    access.check_subscribe(ANONYMOUS, "three", 2)
    assert code_of(access.check_publish, ANONYMOUS, "three", 3, signer=BOB) == "REQUEST_FAILED"
    assert code_of(access.check_publish, ANONYMOUS, "three", 0, signer=None) == "REQUEST_FAILED"
    assert code_of(access.check_publish, ANONYMOUS, "three", 0, signer=BOB, encrypted=False) == "REQUEST_FAILED"
    assert code_of(access.check_subscribe, ANONYMOUS, "three", 3) == "REQUEST_FAILED"


def test_an_open_node_asks_for_no_credentials_and_looks_at_none() -> None:
    access = access_with(open_to_all=True)
    assert access.authenticate("nonsense", "nonsense", NOW) is ANONYMOUS
    assert code_of(access.identify, "nonsense", None, NOW) == "AUTHENTICATION_FAILED"


def test_a_closed_node_knows_only_streams_that_were_created() -> None:
    access = access_with()
    for call in (access.check_subscribe, access.check_publish):
        keywords = {"signer": ALICE} if call == access.check_publish else {}
        assert code_of(call, Caller(ALICE), "river", 0, **keywords) == "NOT_FOUND"
    assert code_of(access.stream, "river") == "NOT_FOUND"


def test_a_closed_node_lets_the_owner_publish_and_read_and_nobody_else() -> None:
    access = access_with(create("river"))
    access.check_publish(Caller(ALICE), "river", 0, signer=None)
    access.check_subscribe(Caller(ALICE), "river", 0)
    for caller in (ANONYMOUS, Caller(BOB), Caller(None, "other", ("stream_publish", "stream_subscribe"))):
        assert code_of(access.check_publish, caller, "river", 0, signer=None) == "PERMISSION_DENIED"
        assert code_of(access.check_subscribe, caller, "river", 0) == "PERMISSION_DENIED"


def test_a_signed_message_is_its_signers_whoever_sends_it() -> None:
    access = access_with(create("river"))
    access.check_publish(ANONYMOUS, "river", 0, signer=ALICE.upper().replace("0X", "0x"))
    assert code_of(access.check_publish, Caller(ALICE), "river", 0, signer=BOB) == "PERMISSION_DENIED"


def test_a_permission_for_everyone_is_for_everyone_and_ends_when_revoked() -> None:
    access = access_with(create("river"))
    for number, operation in ((90, "stream_publish"), (91, "stream_subscribe")):
        access.apply(admin.PermissionGranted(stream="river", at=2, id=number, operation=operation, user=None))
    access.check_publish(ANONYMOUS, "river", 0, signer=None)
    access.check_publish(ANONYMOUS, "river", 0, signer=BOB)
    access.check_subscribe(ANONYMOUS, "river", 0)
    assert access.is_publisher("river", BOB)
    access.apply(admin.PermissionRevoked(stream="river", at=3, id=90))
    assert code_of(access.check_publish, ANONYMOUS, "river", 0, signer=BOB) == "PERMISSION_DENIED"
    assert access.next_permission() == 92


def test_a_stream_key_opens_its_own_stream_only() -> None:
    access = access_with(create("river"), create("lake", first=10))
    access.accounts.put_key(Key("k", digest_of("secret"), "n", stream="river", operations=("stream_subscribe",)))
    caller = access.authenticate(None, "secret", NOW)
    access.check_subscribe(caller, "river", 0)
    assert code_of(access.check_subscribe, caller, "lake", 0) == "PERMISSION_DENIED"
    assert code_of(access.check_publish, caller, "river", 0, signer=None) == "PERMISSION_DENIED"
    assert code_of(access.authenticate, None, "other", NOW) == "AUTHENTICATION_FAILED"


def test_a_session_lasts_three_hours_from_its_last_use() -> None:
    access = access_with(create("river"))
    access.accounts.open_session(ALICE, "t" * 64, NOW)
    later = NOW + SESSION_US - 1
    assert access.authenticate("t" * 64, None, later).user == ALICE
    assert access.authenticate("t" * 64, None, later + SESSION_US - 1).user == ALICE
    assert code_of(access.authenticate, "t" * 64, None, later + 3 * SESSION_US) == "AUTHENTICATION_FAILED"


@pytest.mark.parametrize("open_to_all", [True, False])
@pytest.mark.parametrize("stream", [KEY_EXCHANGE, ALICE])
def test_key_exchange_streams_are_implicit_and_have_partition_0(stream: str, open_to_all: bool) -> None:
    access = access_with(open_to_all=open_to_all)
    access.check_subscribe(ANONYMOUS, stream, 0)
    access.check_publish(ANONYMOUS, stream, 0, signer=BOB, exchange=True)
    assert code_of(access.check_subscribe, ANONYMOUS, stream, 1) == "REQUEST_FAILED"


def entries(*publishers: str) -> Sequence[model.Entry]:
    change = create("x")
    made = admin.to_entry(change, by="", ref=model.Ref(1, 0), received_at=NOW)
    return [
        model.Entry(**{**{f: getattr(made, f) for f in made.__struct_fields__}, "publisher": p}) for p in publishers
    ]


def test_an_open_node_lists_who_was_seen_and_who_has_a_session() -> None:
    access = access_with(open_to_all=True)
    access.note(model.Topic("river", 0), entries(ALICE, BOB, ALICE))
    access.note(admin.ADMIN_TOPIC, entries("operator"))
    access.accounts.open_session("carol", "t", NOW)
    assert access.publishers("river", NOW) == [ALICE, BOB, "carol"]
    assert access.publishers("river", NOW + SESSION_US) == [ALICE, BOB]
    assert access.subscribers("river", NOW) == ["carol"]
    assert [stream.id for stream in access.streams()] == ["river"]
    assert sorted(access.take_fresh()) == [("river", ALICE), ("river", BOB)]
    assert access.take_fresh() == []
    again = access_with(open_to_all=True)
    again.remember([("river", ALICE)])
    assert again.publishers("river", NOW) == [ALICE]


def test_a_closed_node_lists_who_has_the_permission() -> None:
    access = access_with(create("river"))
    access.apply(admin.PermissionGranted(stream="river", at=2, id=9, operation="stream_subscribe", user=BOB))
    access.note(model.Topic("river", 0), entries("somebody"))
    assert access.publishers("river", NOW) == [ALICE]
    assert access.subscribers("river", NOW) == [ALICE, BOB]
    assert access.is_subscriber("river", BOB)
    assert not access.is_publisher("river", BOB)


def test_only_owners_change_a_stream_that_has_one() -> None:
    for open_to_all in (True, False):
        access = access_with(create("river"), create("free", owner=None, first=20), open_to_all=open_to_all)
        assert access.may_change(Caller(ALICE), "river", "stream_edit")
        assert not access.may_change(Caller(BOB), "river", "stream_edit")
        assert access.may_change(ANONYMOUS, "free", "stream_edit") is open_to_all


def test_streams_may_come_and_go_while_they_are_listed() -> None:
    access = access_with(open_to_all=True)
    access.apply(create("created"))
    access.note(model.Topic("appeared", 0), entries(BOB))
    listed = access.streams()
    assert next(listed).id == "created"
    access.apply(create("later"))
    access.note(model.Topic("too", 0), entries(BOB))
    assert {stream.id for stream in listed} == {"appeared", "too"}
    assert [stream.id for stream in access.created_streams()] == ["created", "later"]
