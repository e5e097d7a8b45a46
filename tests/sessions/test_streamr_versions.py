"""Conversations in every control version, and one message shown in every pair of versions."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchment import metrics, model
from catchment.core.access import Access
from catchment.core.accounts import Key, digest_of
from catchment.core.broker import Publish, Status
from catchment.crypto.ethereum import Signer
from catchment.errors import PeerFault
from catchment.model import MAX_SAFE_INTEGER, Range, Ref, Topic
from catchment.sessions import streamr_forms
from catchment.sessions.base import Command, Resend, Send, Subscribe, Unsubscribe
from catchment.sessions.streamr import StreamrSession
from catchment.sessions.streamr_forms import PAIRS, Offsets
from catchment.sessions.streamr_publish import MAX_AT_ONE_TIME
from catchment.store.base import Place
from catchment.wire.streamr import admin, control, convert, message
from catchment.wire.streamr.fields import MessageID, MessageRef
from catchment.wire.streamr.message import EncryptionType, MessageType, SignatureType, StreamMessage

NOW = 1_700_000_000_000_000
NOW_MS = NOW // 1000
ALICE = Signer(b"\x01" * 32)
BOB = Signer(b"\x02" * 32)

MakeMessage = Callable[..., bytes]


def session(control_version: int, message_version: int = 31, access: Access | None = None) -> StreamrSession:
    return StreamrSession(control_version, message_version, publish_ack=False, access=access)


def says(session: StreamrSession, frame: object, *, now: int = NOW) -> Command:
    data = frame if isinstance(frame, bytes) else json.dumps(frame, separators=(",", ":")).encode()
    (command,) = session.receive(data, text=True, now=now)
    return command


def publishes(session: StreamrSession, frame: object, *, now: int = NOW) -> Publish:
    command = says(session, frame, now=now)
    assert isinstance(command, Publish), command
    return command


def error(command: Command) -> str:
    """The text of an ErrorResponse of any version."""
    assert isinstance(command, Send), command
    found = control.decode(command.payload)
    assert found.type is control.ControlType.ERROR_RESPONSE
    return found.error_message


def legacy_signature(stream: str, timestamp: int, content: str, signer: Signer = ALICE) -> str:
    return signer.sign(f"{stream}{timestamp}{signer.address}{content}".encode())


class TestControl1:
    """[1, type, ...]: no request id except in resends, where it stands behind the partition."""

    def test_subscribe_and_unsubscribe(self) -> None:
        client = session(1)
        command = says(client, [1, 9, "s", 3, "tok"])
        assert isinstance(command, Subscribe)
        assert (command.topic, command.answer) == (Topic("s", 3), b'[1,2,"s",3]')
        command = says(client, [1, 10, "s", 3])
        assert isinstance(command, Unsubscribe)
        assert command.answer == b'[1,3,"s",3]'
        assert says(client, [1, 10, "s", 3]) == Send(b'[1,7,"Not subscribed to stream s partition 3!"]')

    @pytest.mark.parametrize(
        ("frame", "meant"),
        [
            ([1, 11, "s", 3, "r", 7, None], Resend("r", Range(Topic("s", 3)), last=7)),
            ([1, 11, "s", 3, "r", 99_999], Resend("r", Range(Topic("s", 3)), last=10_000)),
            (
                [1, 12, "s", 3, "r", [5, None], None, None, None],
                Resend("r", Range(Topic("s", 3), Ref(5, 0), model.LAST_REF)),
            ),
            (
                [1, 12, "s", 3, "r", [5, 6], "0xAB", "ch", None],
                Resend("r", Range(Topic("s", 3), Ref(5, 6), model.LAST_REF, "0xab", "ch")),
            ),
            (
                [1, 13, "s", 3, "r", [5, 6], [7, 8], "0xAB", "ch", None],
                Resend("r", Range(Topic("s", 3), Ref(5, 6), Ref(7, 8), "0xab", "ch")),
            ),
        ],
    )
    def test_resends(self, frame: list[Any], meant: Resend) -> None:
        client = session(1)
        request = says(client, frame)
        assert request == meant
        assert isinstance(request, Resend)
        assert client.resend_started(request) == b'[1,4,"s",3,"r"]'
        assert client.resend_ended(request, 1) == b'[1,5,"s",3,"r"]'
        assert client.resend_ended(request, 0) == b'[1,6,"s",3,"r"]'
        assert client.resend_failed(request).startswith(b'[1,7,"Failed to resend')

    @pytest.mark.parametrize("version", [30, 31, 32])
    def test_publish(self, version: int, make_message: MakeMessage) -> None:
        raw = shown_as(make_message(), version)
        publish = publishes(session(1), b'[1,8,%b,"tok"]' % raw)
        assert publish.entry.raw == raw
        assert publish.entry.version == version
        assert publish.check is not None
        assert publish.check() is model.Verdict.OK

    def test_a_refusal_is_only_a_text(self) -> None:
        client = session(1)
        answer = client.published("", Status.REFUSED, model.Verdict.BAD_SIGNATURE)
        assert answer is not None
        assert json.loads(answer)[:2] == [1, 7]
        assert len(json.loads(answer)) == 3


def shown_as(raw: bytes, version: int) -> bytes:
    return message.encode(msgspec.structs.replace(message.decode(raw), version=version))


class TestControl0:
    """Objects in, arrays out; the third element is null except in a unicast, `sub` is echoed."""

    def test_subscribe_and_unsubscribe(self) -> None:
        client = session(0, 28)
        command = says(client, {"type": "subscribe", "stream": "s", "partition": 0, "authKey": "k", "resend_last": 5})
        assert isinstance(command, Subscribe)
        assert (command.topic, command.answer) == (Topic("s", 0), b'[0,2,null,{"stream":"s","partition":0}]')
        command = says(client, {"type": "unsubscribe", "stream": "s"})
        assert isinstance(command, Unsubscribe)
        assert command.answer == b'[0,3,null,{"stream":"s","partition":0}]'
        command = says(client, {"type": "unsubscribe", "stream": "s"})
        assert command == Send(b'[0,7,null,{"error":"Not subscribed to stream s partition 0!"}]')

    @pytest.mark.parametrize(
        ("options", "question", "last"),
        [
            ({"resend_all": True}, Range(Topic("s", 0)), None),
            ({"resend_last": 5}, Range(Topic("s", 0)), 5),
            ({"resend_last": 10_001}, Range(Topic("s", 0)), 10_000),
            ({"resend_from": 7}, Range(Topic("s", 0), Ref(7, 0)), None),
            ({"resend_from_time": 7}, Range(Topic("s", 0), Ref(7, 0)), None),
            ({"resend_from": 7, "resend_to": 9}, Range(Topic("s", 0), Ref(7, 0), Ref(9, MAX_SAFE_INTEGER)), None),
            ({"resend_from": 7, "resend_to": 7}, Range(Topic("s", 0), Ref(7, 0), Ref(7, MAX_SAFE_INTEGER)), None),
        ],
    )
    def test_resends(self, options: dict[str, Any], question: Range, last: int | None) -> None:
        client = session(0, 28)
        request = says(client, {"type": "resend", "stream": "s", "sub": "0"} | options)
        assert request == Resend("0", question, last=last)
        assert isinstance(request, Resend)
        about = b'{"stream":"s","partition":0,"sub":"0"}'
        assert client.resend_started(request) == b"[0,4,null,%b]" % about
        assert client.resend_ended(request, 1) == b"[0,5,null,%b]" % about
        assert client.resend_ended(request, 0) == b"[0,6,null,%b]" % about
        assert client.resend_failed(request).startswith(b'[0,7,null,{"error":"Failed to resend')

    def test_publish(self) -> None:
        publish = publishes(
            session(0, 28), {"type": "publish", "stream": "s", "authKey": "k", "msg": '{"a":1}', "ts": 5, "pkey": "d"}
        )
        assert publish.entry.raw == b'[30,["s",0,5,0,"",""],null,27,"{\\"a\\":1}",0,null]'
        assert (publish.entry.version, publish.entry.verdict, publish.check) == (30, model.Verdict.UNSIGNED, None)
        assert b"authKey" not in publish.entry.raw

    def test_without_a_time_it_is_now(self) -> None:
        publish = publishes(session(0, 28), {"type": "publish", "stream": "s", "msg": "{}"})
        assert publish.entry.timestamp == NOW_MS

    def test_two_of_one_time_get_sequences(self) -> None:
        client = session(0, 28)
        frame = {"type": "publish", "stream": "s", "msg": "{}"}
        assert [publishes(client, frame).entry.sequence for _ in range(3)] == [0, 1, 2]
        assert publishes(client, frame | {"stream": "t"}).entry.sequence == 0
        assert publishes(client, frame, now=NOW + 1000).entry.sequence == 0
        assert publishes(client, frame).entry.sequence == 0  # the store knows whether it is free

    def test_signed_with_the_legacy_signature(self) -> None:
        frame = {
            "type": "publish",
            "stream": "s",
            "msg": "{}",
            "ts": 5,
            "addr": ALICE.address,
            "sigtype": 1,
            "sig": legacy_signature("s", 5, "{}"),
        }
        publish = publishes(session(0, 29), frame)
        assert publish.check is not None
        assert publish.check() is model.Verdict.OK
        forged = publishes(session(0, 29), frame | {"msg": '{"a":1}'})
        assert forged.check is not None
        assert forged.check() is model.Verdict.BAD_SIGNATURE
        unsigned = publishes(session(0, 29), {name: frame[name] for name in ("type", "stream", "msg", "addr")})
        assert unsigned.check is not None
        assert unsigned.check() is model.Verdict.BAD_SIGNATURE

    def test_future_timestamps(self) -> None:
        text = error(says(session(0, 28), {"type": "publish", "stream": "s", "msg": "{}", "ts": NOW_MS + 300_001}))
        assert "future timestamps are not allowed" in text

    def test_frames_are_read_by_their_own_version(self, make_message: MakeMessage) -> None:
        """facts/streamr.md, section 1: the pair governs only what the server sends."""
        client = session(0, 28)
        for frame in ([1, 9, "s", 0, None], [2, 9, "r", "s", 0, None], {"type": "subscribe", "stream": "s"}):
            command = says(client, frame)
            assert isinstance(command, Subscribe)
            assert command.answer == b'[0,2,null,{"stream":"s","partition":0}]'
        assert publishes(client, b'[2,8,"r",%b,"tok"]' % make_message()).entry.version == 32
        modern = session(2, 32)
        command = says(modern, {"type": "subscribe", "stream": "s"})
        assert isinstance(command, Subscribe)
        assert command.answer == b'[2,2,"","s",0]'

    def test_a_subscribe_without_request_id_is_answered_with_an_empty_one(self) -> None:
        command = says(session(2, 31), [2, 9, "stream-id", 0, "my-session-token"])
        assert isinstance(command, Subscribe)
        assert command.answer == b'[2,2,"","stream-id",0]'


class TestFreeSequence:
    """DESIGN.md, "Rules that follow": a message without a sequence gets the next free one; only a signed repeat is a
    duplicate."""

    def places(self, *entries: model.Entry, dropped: bool = False) -> list[Place]:
        return [
            Place(entry.order_key, at, None if dropped else model.Row(at, 1, entry)) for at, entry in enumerate(entries)
        ]

    def test_unsigned(self) -> None:
        frame = {"type": "publish", "stream": "s", "msg": "{}", "ts": 5}
        publish = publishes(session(0, 28), frame)
        assert publish.renumber is not None
        moved = publish.renumber(self.places(publish.entry))
        assert moved is not None
        assert (moved.sequence, moved.version) == (1, 30)
        assert moved.raw == b'[30,["s",0,5,1,"",""],null,27,"{}",0,null]'
        again = publish.renumber(self.places(publish.entry, msgspec.structs.replace(publish.entry, sequence=7)))
        assert again is not None
        assert again.sequence == 8

    def signed(self, content: str) -> Publish:
        return publishes(
            session(0, 29),
            {
                "type": "publish",
                "stream": "s",
                "msg": content,
                "ts": 5,
                "addr": ALICE.address,
                "sigtype": 1,
                "sig": legacy_signature("s", 5, content),
            },
        )

    def test_signed(self) -> None:
        first, other, again = self.signed("{}"), self.signed('{"a":1}'), self.signed("{}")
        assert other.renumber is not None
        moved = other.renumber(self.places(first.entry))
        assert moved is not None
        assert moved.sequence == 1
        assert message.judge(message.decode(moved.raw)) is model.Verdict.OK
        assert again.renumber is not None
        assert again.renumber(self.places(first.entry, moved)) is None
        assert other.renumber(self.places(first.entry, moved)) is None

    def test_what_cannot_be_compared_is_a_repeat_when_signed(self) -> None:
        signed = self.signed("{}")
        assert signed.renumber is not None
        assert signed.renumber(self.places(signed.entry, dropped=True)) is None
        unsigned = publishes(session(0, 28), {"type": "publish", "stream": "s", "msg": "{}", "ts": 5})
        assert unsigned.renumber is not None
        assert unsigned.renumber(self.places(unsigned.entry, dropped=True)) is not None

    @pytest.mark.parametrize("version", [28, 29])
    def test_arrays_of_28_and_29_are_kept_as_they_came_and_moved_when_taken(self, version: int) -> None:
        tail = b",0,null,null" if version == 29 else b""
        raw = b'[%d,"s",0,5,60,12,11,27,"{}"%b]' % (version, tail)
        publish = publishes(session(1), b"[1,8,%b,null]" % raw)
        assert (publish.entry.raw, publish.entry.version) == (raw, version)
        assert publish.renumber is not None
        moved = publish.renumber(self.places(publish.entry))
        assert moved is not None
        assert moved.raw == b'[30,["s",0,5,1,"",""],null,27,"{}",0,null]'

    def test_no_sequence_beyond_what_every_reader_holds_exactly(self) -> None:
        """Kept under one, it could be read by nobody again, and neither could the stream's history."""
        publish = publishes(session(0, 28), {"type": "publish", "stream": "s", "msg": "{}", "ts": 5})
        last = msgspec.structs.replace(publish.entry, sequence=model.MAX_SAFE_INTEGER)
        assert publish.renumber is not None
        with pytest.raises(PeerFault, match="another timestamp"):
            publish.renumber(self.places(last))
        before = msgspec.structs.replace(last, sequence=model.MAX_SAFE_INTEGER - 1)
        moved = publish.renumber(self.places(before))
        assert moved is not None
        assert message.decode(moved.raw).msg_id.sequence_number == model.MAX_SAFE_INTEGER

    def test_signed_messages_of_one_time_are_compared_within_a_limit(self) -> None:
        first, other = self.signed("{}").entry, self.signed('{"a":1}')
        assert other.renumber is not None
        many = [msgspec.structs.replace(first, sequence=number) for number in range(MAX_AT_ONE_TIME)]
        assert other.renumber(self.places(*many[:-1])) is not None
        with pytest.raises(PeerFault, match="another timestamp"):
            other.renumber(self.places(*many))

    def test_what_else_a_message_says_is_kept_when_it_is_moved(self) -> None:
        """An encrypted one would be shown as readable."""
        content, signature = "00ff", legacy_signature("s", 5, "00ff")
        raw = b'[31,["s",0,5,0,"%b",""],null,27,2,"%b",1,"%b"]' % tuple(
            text.encode() for text in (ALICE.address, content, signature)
        )
        publish = publishes(session(1), b"[1,8,%b,null]" % raw)
        assert publish.renumber is not None
        moved = publish.renumber(self.places(self.signed("{}").entry))
        assert moved is not None
        kept = message.decode(moved.raw)
        assert (kept.encryption_type, kept.msg_id.sequence_number, moved.version) == (EncryptionType.AES, 1, 31)

    def test_current_signatures_cover_the_sequence(self, make_message: MakeMessage) -> None:
        assert publishes(session(2), b'[2,8,"r",%b]' % make_message()).renumber is None

    @pytest.mark.parametrize(
        "changes",
        [
            {"sequence_number": 7},
            {"msg_chain_id": "other"},
            {"prev_msg_ref": MessageRef(4, 0)},
            {"new_group_key": '["id","00"]'},
        ],
        ids=["sequence", "chain", "previous reference", "new key"],
    )
    def test_what_a_legacy_signature_does_not_cover_is_not_believed(self, changes: dict[str, Any]) -> None:
        """Under another sequence or chain the same signed message would be new, again and again."""
        first = self.signed("{}")
        fields = {"sequence_number": 0, "msg_chain_id": "", "prev_msg_ref": None, "new_group_key": None} | changes
        replayed = StreamMessage(
            32,
            MessageID("s", 0, 5, fields["sequence_number"], ALICE.address, fields["msg_chain_id"]),
            fields["prev_msg_ref"],
            MessageType.STREAM_MESSAGE,
            message.ContentType.JSON,
            EncryptionType.NONE,
            None,
            "{}",
            fields["new_group_key"],
            SignatureType.ETH_LEGACY,
            legacy_signature("s", 5, "{}"),
        )
        publish = publishes(session(2), b'[2,8,"r",%b]' % message.encode(replayed))
        assert publish.entry.order_key == first.entry.order_key
        assert convert.to_version(message.decode(publish.entry.raw), 30) == message.decode(first.entry.raw)
        assert publish.renumber is not None
        assert publish.renumber(self.places(first.entry)) is None


BROADCASTS = {0: b"[0,0,null,%b]", 1: b"[1,0,%b]", 2: b'[2,0,"",%b]'}


class TestShown:
    """One message of the log, shown in every pair."""

    def entry(self, raw: bytes, version: int | None = None) -> model.Entry:
        data = raw if version is None else shown_as(raw, version)
        parsed = message.decode(data)
        return message.to_entry(parsed, data, verdict=model.Verdict.OK, received_at=NOW)

    @pytest.mark.parametrize("pair", sorted(PAIRS))
    def test_a_plain_message(self, pair: tuple[int, int], make_message: MakeMessage) -> None:
        raw = make_message(prev_msg_ref=MessageRef(NOW_MS - 5, 2))
        _, msg_id, prev, _, _, _, _, content, _, kind, signature = json.loads(raw)
        stream, partition, timestamp, _, publisher, _ = msg_id
        form = streamr_forms.PairForm(*pair).form
        frame = form.encode(self.entry(raw))
        old = [stream, partition, timestamp, 0, timestamp, NOW_MS - 5, 27, content]
        expected: dict[int, list[Any]] = {
            28: [28, *old],
            # Clients of 29 throw on ETH signatures: sent unsigned (issue 4, item 2).
            29: [29, *old, 0, publisher, None],
            30: [30, msg_id, prev, 27, content, kind, signature],
            31: [31, msg_id, prev, 27, 0, content, kind, signature],
            32: json.loads(raw),
        }
        inner = json.dumps(expected[pair[1]], separators=(",", ":"), ensure_ascii=False).encode()
        assert frame == BROADCASTS[pair[0]] % inner
        unicast, _ = streamr_forms.PairForm(*pair).unicast("r", self.entry(raw), None)
        assert unicast == b'[%d,1,"r",%b]' % (pair[0], inner)

    @pytest.mark.parametrize("pair", sorted(PAIRS))
    def test_its_own_version_goes_out_as_the_bytes_it_came_in(
        self, pair: tuple[int, int], make_message: MakeMessage
    ) -> None:
        if pair[1] < 30:
            return  # has the server's offsets
        spaced = json.dumps(json.loads(shown_as(make_message(), pair[1])), indent=1).encode()
        assert PAIRS[pair].form.encode(self.entry(spaced)) == BROADCASTS[pair[0]] % spaced

    def test_legacy_signatures_are_shown_to_29(self) -> None:
        raw = b'[30,["s",0,5,0,"0xAB",""],null,27,"{}",1,"0x12"]'
        shown = streamr_forms.PairForm(0, 29).form.encode(self.entry(raw))
        assert shown == b'[0,0,null,[29,"s",0,5,0,5,null,27,"{}",1,"0xAB","0x12"]]'

    @pytest.mark.parametrize("pair", sorted(PAIRS))
    @pytest.mark.parametrize("encryption", [EncryptionType.RSA, EncryptionType.AES])
    def test_encrypted(self, pair: tuple[int, int], encryption: EncryptionType, make_message: MakeMessage) -> None:
        entry = self.entry(make_message(encryption_type=encryption, content="00ff", group_key_id="k"))
        frame = control.decode(PAIRS[pair].form.encode(entry))
        unicast = control.decode(PAIRS[pair].unicast("r", entry, None)[0])
        if pair[1] >= 31:
            assert message.decode(bytes(frame.message)).encryption_type is encryption
            assert message.decode(bytes(unicast.message)).encryption_type is encryption
            return
        for answer in (frame, unicast):
            assert answer.type is control.ControlType.ERROR_RESPONSE
            assert answer.error_message.startswith("Encrypted message received.")
        assert unicast.request_id == ("r" if pair[0] == 2 else "")

    def test_time_to_live_is_shown(self) -> None:
        entry = self.entry(b'[28,"s",0,5,60,12,11,27,"{}"]')
        assert streamr_forms.PairForm(0, 28).form.encode(entry) == b'[0,0,null,[28,"s",0,5,60,5,null,27,"{}"]]'
        assert streamr_forms.PairForm(1, 29).form.encode(entry) == b'[1,0,[29,"s",0,5,60,5,null,27,"{}",0,null,null]]'
        assert streamr_forms.PairForm(2, 32).form.encode(entry) == (
            b'[2,0,"",[32,["s",0,5,0,"",""],null,27,0,0,null,"{}",null,0,null]]'
        )


def entry_at(timestamp: int, topic: str = "s", sequence: int = 0) -> model.Entry:
    raw = b'[30,["%b",0,%d,%d,"",""],null,27,"{}",0,null]' % (topic.encode(), timestamp, sequence)
    return message.to_entry(message.decode(raw), raw, verdict=model.Verdict.UNSIGNED, received_at=NOW)


class TestEverythingElse:
    """Whatever a client of any version sends is answered or done, once."""

    @pytest.mark.parametrize("version", [0, 1, 2])
    @given(data=st.binary(max_size=80))
    def test_any_bytes(self, version: int, data: bytes) -> None:
        for head in (
            b"{",
            b'{"type":"publish","stream":"s",',
            b'{"type":"resend","sub":"0","stream":"s",',
            b"[1,",
            b"[0,",
        ):
            (command,) = session(version, 28).receive(head + data, text=True, now=NOW)
            if isinstance(command, Send):
                assert control.decode(command.payload).type is control.ControlType.ERROR_RESPONSE

    values = st.none() | st.booleans() | st.integers(-2, 2**54) | st.floats(allow_nan=False) | st.text(max_size=5)

    @given(
        st.sampled_from(["publish", "subscribe", "unsubscribe", "resend"]),
        st.dictionaries(
            st.sampled_from(
                [
                    "msg",
                    "ts",
                    "pkey",
                    "addr",
                    "sigtype",
                    "sig",
                    "partition",
                    "authKey",
                    "sessionToken",
                    "sub",
                    "resend_all",
                    "resend_last",
                    "resend_from",
                    "resend_to",
                    "resend_from_time",
                ]
            ),
            values | st.dictionaries(st.text(max_size=3), values, max_size=2),
        ),
    )
    def test_any_object(self, kind: str, fields: dict[str, Any]) -> None:
        frame = json.dumps({"type": kind, "stream": "s"} | fields).encode()
        (command,) = session(0, 28, access(open_to_all=True)).receive(frame, text=True, now=NOW)
        if isinstance(command, Publish):
            assert message.decode(command.entry.raw).msg_id.timestamp == command.entry.timestamp


class TestOffsets:
    """Shown to 28 and 29: strictly increasing in each stream-partition."""

    def offsets(self, frames: Sequence[bytes]) -> list[int]:
        return [json.loads(bytes(control.decode(frame).message))[5] for frame in frames]

    def test_live(self) -> None:
        form = streamr_forms.PairForm(0, 28).form
        times = [10, 10, 10, 11, 20, 15, 21, 22]
        assert self.offsets([form.encode(entry_at(time)) for time in times]) == [10, 11, 12, 13, 20, 21, 22, 23]
        assert self.offsets([form.encode(entry_at(5, "t"))]) == [5]

    def previous(self, frames: Sequence[bytes]) -> list[int | None]:
        return [json.loads(bytes(control.decode(frame).message))[6] for frame in frames]

    def following(self, timestamp: int, previous: int, *, secret: bool = False) -> model.Entry:
        """A message that names its previous one."""
        raw = b'[31,["s",0,%d,0,"",""],[%d,0],27,%d,"00ff",0,null]' % (timestamp, previous, 2 * secret)
        return message.to_entry(message.decode(raw), raw, verdict=model.Verdict.UNSIGNED, received_at=NOW)

    def test_the_previous_offset_is_the_time_of_the_previous_message(self) -> None:
        """Not its offset, which may have been moved up: a client that asks for history up to it is sure to get it."""
        form = streamr_forms.PairForm(0, 28).form
        live = [form.encode(self.following(*times)) for times in ((10, 7), (10, 7), (10, 7), (20, 10), (30, 25))]
        assert self.offsets(live) == [10, 11, 12, 20, 30]
        assert self.previous(live) == [7, 7, 7, 10, 25]

    def test_the_previous_offset_names_only_what_the_log_can_show(self) -> None:
        """A client that never gets it holds everything back and asks for it again and again."""
        log: dict[int, list[model.Entry]] = {}
        asked = []

        def lookup(topic: Topic, timestamp: int) -> list[Place]:
            asked.append(timestamp)
            return [Place(entry.order_key, 0, model.Row(0, 1, entry)) for entry in log.get(timestamp, [])]

        form = streamr_forms.PairForm(0, 28, lookup).form

        def previous(entry: model.Entry) -> int | None:
            log.setdefault(entry.timestamp, []).append(entry)
            return self.previous([form.encode(entry)])[0]

        assert previous(self.following(10, 5)) is None  # nobody was shown anything, and 5 never came
        assert previous(self.following(20, 10)) == 10
        log[25] = [self.following(25, 20)]
        assert previous(self.following(30, 25)) == 25  # committed, though not shown live: it can be asked for
        assert previous(self.following(40, 35)) == 30  # lost
        assert b"Encrypted message" in form.encode(self.following(45, 40, secret=True))
        log[45] = [self.following(45, 40, secret=True)]
        assert previous(self.following(50, 45)) == 40  # there, but not for these clients
        log[45].append(entry_at(45))
        assert previous(self.following(60, 55)) == 50
        assert previous(self.following(70, 60)) == 60
        assert asked == [5, 25, 35, 45, 55]  # only what may be a gap is looked up
        log[75] = []
        dropped = streamr_forms.PairForm(0, 28, lambda topic, time: [Place(entry_at(time).order_key, 0, None)]).form
        assert self.previous([dropped.encode(self.following(80, 75))]) == [75]  # in the lake

    def test_a_resend_has_its_own_order_and_live_goes_on_behind_it(self) -> None:
        pair = streamr_forms.PairForm(0, 28)
        client = session(0, 28)
        client._pair = pair
        assert self.offsets([pair.form.encode(entry_at(30))]) == [30]
        request, other = Resend("0", Range(Topic("s", 0))), Resend("0", Range(Topic("s", 0)))
        times = [10, 10, 10, 29, 30, 30, 30]
        frames = [client.resend_message(request, entry_at(time)) for time in times]
        assert self.offsets(frames) == [10, 11, 12, 29, 30, 31, 32]
        assert self.offsets([client.resend_message(other, entry_at(10))]) == [10]
        assert self.offsets([pair.form.encode(entry_at(31))]) == [33]
        client.resend_ended(request, 7)
        client.resend_failed(other)
        assert not client._last_shown

    def test_the_longest_not_shown_is_forgotten(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(streamr_forms, "MAX_TOPICS", 2)
        offsets = Offsets()
        for topic in ("a", "b", "a", "c"):
            offsets.next(entry_at(10, topic))
        assert offsets.next(entry_at(10, "a"))[0] == 12
        assert offsets.next(entry_at(10, "b"))[0] == 10

    def test_resends_do_not_make_it_remember_more(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(streamr_forms, "MAX_TOPICS", 2)
        offsets = Offsets()
        for topic in "abcd":
            offsets.resent(entry_at(10, topic), None)
        assert [offsets.next(entry_at(10, topic))[0] for topic in "db"] == [11, 10]


STREAM = "river"


def access(*, open_to_all: bool = False, **properties: Any) -> Access:
    """A node with one stream that is Alice's."""
    made = Access(open_to_all=open_to_all)
    made.apply(
        admin.StreamCreated(
            stream=STREAM, at=0, owner=ALICE.address, first_permission=1, properties=admin.Properties(**properties)
        )
    )
    made.accounts.open_session(ALICE.address, "alice-token", NOW)
    made.accounts.open_session(BOB.address, "bob-token", NOW)
    return made


def signed(signer: Signer, **changes: Any) -> bytes:
    fields = {"stream": STREAM, "partition": 0, "timestamp": NOW_MS, "content": "{}"} | changes
    unsigned = StreamMessage(
        32,
        MessageID(fields["stream"], fields["partition"], fields["timestamp"], 0, signer.address, "c"),
        None,
        fields.get("kind", MessageType.STREAM_MESSAGE),
        message.ContentType.JSON,
        fields.get("encryption", EncryptionType.NONE),
        None,
        fields["content"],
        None,
        SignatureType.ETH,
        None,
    )
    return message.encode(msgspec.structs.replace(unsigned, signature=signer.sign(message.signed_payload(unsigned))))


UNSIGNED = b'[32,["river",0,5,0,"visitor",""],null,27,0,0,null,"{}",null,0,null]'


def refusal(command: Command) -> tuple[str, str]:
    assert isinstance(command, Send), command
    _, _, _, text, code = json.loads(command.payload)
    return code, text


class TestAccess:
    def publish(self, access: Access, raw: bytes, token: str | None = None) -> Command:
        return says(session(2, 32, access), b'[2,8,"r",%b,%b]' % (raw, json.dumps(token).encode()))

    def verdict(self, command: Command) -> model.Verdict:
        assert isinstance(command, Publish), command
        return command.entry.verdict if command.check is None else command.check()

    def test_a_signed_message_is_allowed_by_its_signer_whoever_sends_it(self) -> None:
        for token in (None, "alice-token", "bob-token", "expired"):
            assert self.verdict(self.publish(access(), signed(ALICE), token)) is model.Verdict.OK

    def test_signed_by_someone_who_may_not(self) -> None:
        command = self.publish(access(), signed(BOB), "alice-token")
        assert self.verdict(command) is model.Verdict.NOT_PERMITTED

    def test_forged_is_worse_than_not_permitted(self) -> None:
        forged = signed(BOB).replace(b'"{}"', b'"{ }"')
        assert self.verdict(self.publish(access(), forged)) is model.Verdict.BAD_SIGNATURE

    def test_unsigned_by_someone_who_may(self) -> None:
        assert self.verdict(self.publish(access(), UNSIGNED, "alice-token")) is model.Verdict.UNSIGNED

    @pytest.mark.parametrize("token", [None, "bob-token"])
    def test_unsigned_by_someone_who_may_not(self, token: str | None) -> None:
        assert self.verdict(self.publish(access(), UNSIGNED, token)) is model.Verdict.NOT_PERMITTED

    def test_an_unknown_token(self) -> None:
        code, _ = refusal(self.publish(access(), UNSIGNED, "expired"))
        assert code == "AUTHENTICATION_FAILED"

    def test_no_such_stream(self) -> None:
        code, text = refusal(self.publish(access(), signed(ALICE, stream="nowhere")))
        assert (code, text) == ("NOT_FOUND", "Stream nowhere not found.")

    @pytest.mark.parametrize("open_to_all", [True, False])
    def test_no_such_partition(self, open_to_all: bool) -> None:
        code, text = refusal(self.publish(access(open_to_all=open_to_all, partitions=2), signed(ALICE, partition=2)))
        assert code == "REQUEST_FAILED"
        assert "partitions 0 to 1, not 2" in text
        allowed = self.publish(access(open_to_all=open_to_all, partitions=2), signed(ALICE, partition=1))
        assert self.verdict(allowed) is model.Verdict.OK

    @pytest.mark.parametrize("open_to_all", [True, False])
    def test_unsigned_where_signatures_are_required(self, open_to_all: bool) -> None:
        made = access(open_to_all=open_to_all, require_signed=True)
        code, text = refusal(self.publish(made, UNSIGNED, "alice-token"))
        assert code == "REQUEST_FAILED"
        assert "signed messages only" in text

    @pytest.mark.parametrize("open_to_all", [True, False])
    def test_readable_where_encryption_is_required(self, open_to_all: bool) -> None:
        made = access(open_to_all=open_to_all, require_encrypted=True)
        code, text = refusal(self.publish(made, signed(ALICE)))
        assert code == "REQUEST_FAILED"
        assert "encrypted messages only" in text
        encrypted = signed(ALICE, encryption=EncryptionType.AES, content="00ff")
        assert self.verdict(self.publish(made, encrypted)) is model.Verdict.OK

    def test_refusals_are_counted_by_reason(self) -> None:
        def counted(reason: str) -> float:
            return metrics.REQUESTS_INVALID.labels("streamr", reason)._value.get()

        before = {reason: counted(reason) for reason in ("unsigned", "partition", "key_exchange", "prev_msg_ref")}
        self.publish(access(require_signed=True), UNSIGNED, "alice-token")
        self.publish(access(), signed(ALICE, partition=9))
        self.publish(access(), signed(ALICE, kind=MessageType.GROUP_KEY_REQUEST))
        self.publish(access(), UNSIGNED.replace(b"null,27", b"[5,0],27"))
        assert {reason: counted(reason) for reason in before} == {name: old + 1 for name, old in before.items()}

    @pytest.mark.parametrize(
        ("frame", "token"),
        [
            ([2, 9, "r", STREAM, 0], True),
            ([2, 11, "r", STREAM, 0, 5], True),
            ([2, 12, "r", STREAM, 0, [0, 0], None], True),
            ([2, 13, "r", STREAM, 0, [0, 0], [1, 0], None, None], True),
        ],
    )
    def test_reading(self, frame: list[Any], token: bool) -> None:
        assert not isinstance(says(session(2, 32, access()), [*frame, "alice-token"]), Send)
        assert refusal(says(session(2, 32, access()), [*frame, "bob-token"])) == (
            "PERMISSION_DENIED",
            "You are not allowed to subscribe to stream river",
        )
        assert refusal(says(session(2, 32, access()), [*frame, None]))[0] == "PERMISSION_DENIED"
        assert refusal(says(session(2, 32, access()), [*frame, "expired"]))[0] == "AUTHENTICATION_FAILED"
        elsewhere = [*frame[:3], "nowhere", *frame[4:]]
        assert refusal(says(session(2, 32, access()), [*elsewhere, "alice-token"]))[0] == "NOT_FOUND"
        beyond = [*frame[:4], 7, *frame[5:]]
        assert refusal(says(session(2, 32, access()), [*beyond, "alice-token"]))[0] == "REQUEST_FAILED"

    @pytest.mark.parametrize("version", [0, 1])
    def test_older_versions_are_refused_with_the_same_text(self, version: int) -> None:
        frames: dict[int, object] = {
            0: {"type": "subscribe", "stream": STREAM, "sessionToken": "bob-token"},
            1: [1, 9, STREAM, 0, "bob-token"],
        }
        text = error(says(session(version, 28, access()), frames[version]))
        assert text == "You are not allowed to subscribe to stream river"

    def test_keys_of_control_0(self) -> None:
        made = access()
        made.accounts.put_key(Key(digest=digest_of("api-key"), id="1", name="k", user=ALICE.address))
        client = session(0, 28, made)
        subscribe = {"type": "subscribe", "stream": STREAM}
        assert isinstance(says(client, subscribe | {"authKey": "api-key"}), Subscribe)
        assert "Authentication failed" in error(says(client, subscribe | {"authKey": "wrong"}))
        publish = {"type": "publish", "stream": STREAM, "msg": "{}"}
        assert self.verdict(says(client, publish | {"authKey": "api-key"})) is model.Verdict.UNSIGNED
        assert self.verdict(says(client, publish)) is model.Verdict.NOT_PERMITTED

    def test_a_publish_of_control_0_goes_where_its_key_belongs(self) -> None:
        client = session(0, 28, access(open_to_all=True, partitions=10))
        publish = {"type": "publish", "stream": STREAM, "msg": "{}"}
        assert publishes(client, publish | {"pkey": "key-0"}).entry.partition == 6
        assert publishes(client, publish | {"pkey": "key-1"}).entry.partition == 7
        assert {publishes(client, publish).entry.partition for _ in range(10)} == set(range(10))


class TestKeyExchange:
    """facts/streamr.md, section 4: requests and errors readable, responses and announces RSA-encrypted."""

    TO_ALICE = "SYSTEM/keyexchange/" + ALICE.address
    TO_BOB = "SYSTEM/keyexchange/" + BOB.address
    REQUEST = '["r","river","PEM",["key-1"]]'
    RESPONSE = '["r","river",[["key-1","0f"]]]'

    def exchange(self, access: Access | None, raw: bytes) -> Command:
        return says(session(2, 32, access), b'[2,8,"r",%b,null]' % raw)

    @pytest.mark.parametrize("stream", [TO_ALICE, ALICE.address], ids=["current", "of clients 3.x"])
    @pytest.mark.parametrize("content", [REQUEST, '{"requestId":"r","streamId":"river","publicKey":"PEM"}'])
    def test_a_request(self, stream: str, content: str) -> None:
        raw = signed(BOB, stream=stream, kind=MessageType.GROUP_KEY_REQUEST, content=content)
        command = self.exchange(access(open_to_all=True), raw)
        assert isinstance(command, Publish)
        assert command.entry.kind is model.Kind.KEYEXCHANGE

    @pytest.mark.parametrize(
        "changes",
        [
            {"encryption": EncryptionType.RSA},
            {"encryption": EncryptionType.AES},
            {"content": "{}"},
            {"content": "[]"},
            {"content": "not json"},
            {"stream": "river"},
            {"kind": MessageType.STREAM_MESSAGE},
            {"kind": MessageType.GROUP_KEY_RESPONSE},
            {"kind": MessageType.GROUP_KEY_RESPONSE, "content": RESPONSE},
            {"kind": MessageType.GROUP_KEY_ANNOUNCE, "content": '["river",[["key-1","0f"]]]'},
            {
                "kind": MessageType.GROUP_KEY_ERROR_RESPONSE,
                "content": '["r","river","C","t",[]]',
                "encryption": EncryptionType.RSA,
            },
        ],
    )
    def test_malformed(self, changes: dict[str, Any]) -> None:
        fields = {"stream": self.TO_ALICE, "kind": MessageType.GROUP_KEY_REQUEST, "content": self.REQUEST} | changes
        for rules in (None, access(open_to_all=True), access()):
            assert refusal(self.exchange(rules, signed(BOB, **fields)))[0] == "INVALID_REQUEST"

    def test_who_may_ask_and_answer(self) -> None:
        made = access()
        request = signed(BOB, stream=self.TO_ALICE, kind=MessageType.GROUP_KEY_REQUEST, content=self.REQUEST)
        response = signed(
            ALICE,
            stream=self.TO_BOB,
            kind=MessageType.GROUP_KEY_RESPONSE,
            content=self.RESPONSE,
            encryption=EncryptionType.RSA,
        )
        for raw in (request, response):
            command = self.exchange(made, raw)
            assert isinstance(command, Publish)
            assert command.check is not None
            assert command.check() is model.Verdict.NOT_PERMITTED
        made.apply(admin.PermissionGranted(stream=STREAM, at=0, id=50, operation="stream_subscribe", user=BOB.address))
        for raw in (request, response):
            command = self.exchange(made, raw)
            assert isinstance(command, Publish)
            assert command.check is not None
            assert command.check() is model.Verdict.OK

    def test_anyone_may_listen(self) -> None:
        assert isinstance(says(session(2, 32, access()), [2, 9, "r", self.TO_BOB, 0, None]), Subscribe)
        assert refusal(says(session(2, 32, access()), [2, 9, "r", self.TO_BOB, 1, None]))[0] == "REQUEST_FAILED"


def test_high_s_is_counted(make_message: MakeMessage) -> None:
    order = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
    elements = json.loads(make_message())
    made = bytes.fromhex(elements[10][2:])
    s = order - int.from_bytes(made[32:64], "big")
    elements[10] = "0x" + made[:32].hex() + f"{s:064x}" + f"{made[64]:02x}"
    high = json.dumps(elements, separators=(",", ":")).encode()
    for raw, more in ((make_message(), 0), (high, 1)):
        before = metrics.HIGH_S._value.get()
        publish = publishes(session(2), b'[2,8,"r",%b]' % raw)
        assert publish.check is not None
        assert publish.check() is model.Verdict.OK
        assert metrics.HIGH_S._value.get() == before + more
