"""The conversation with a Mosaic client (spec/mosaic-messages.md; facts/mosaic.md, sections 3 and 6).

The same on every transport. What differs is how it begins: over a WebSocket the versions, and who the client wants to
be, are in the headers of the upgrade (`open_websocket`), and every frame is one message, recognised by itself; over a
stream there is a Hello, which also tells the layout, and the client's key is known from its certificate.

Every fault of the peer is answered in the message the document has for that request, and the conversation goes on.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from catchment import metrics, model
from catchment.core.broker import Publish, Status
from catchment.core.mosaic import APPLICATIONS, Mosaic
from catchment.core.mosaic_search import Answer, Fetch
from catchment.core.subscriptions import Form
from catchment.core.watches import Watch
from catchment.crypto import ed25519, mosaic
from catchment.errors import PeerFault
from catchment.sessions.base import Close, Command, Resend, Send, Serve
from catchment.sessions.mosaic_queries import Query
from catchment.wire.mosaic import filter as filters
from catchment.wire.mosaic import frames, keys, record
from catchment.wire.mosaic.bootstrap import Salt
from catchment.wire.mosaic.frames import LAYOUT_A, Layout, Message, MessageType
from catchment.wire.mosaic.record import Duplicates
from catchment.wire.mosaic.results import Result, fault, invalid

SUBPROTOCOL: Final = "mosaic2025"
VERSION: Final = record.VERSION

MAX_FRAME: Final = record.MAX_RECORD + 64
"""The largest record with any header before it."""

MAX_QUERIES: Final = 10_000
"""Queries one connection may have open."""

MAX_REFERENCES: Final = 1000
"""Ids and addresses one Get may name."""

MAX_NONCE: Final = 256

_REFUSABLE: Final = {
    MessageType.GET: MessageType.QUERY_CLOSED,
    MessageType.QUERY: MessageType.QUERY_CLOSED,
    MessageType.SUBSCRIBE: MessageType.QUERY_CLOSED,
    MessageType.UNSUBSCRIBE: MessageType.QUERY_CLOSED,
    MessageType.SUBMISSION: MessageType.SUBMISSION_RESULT,
    MessageType.BLOB_GET: MessageType.BLOB_RESULT,
    MessageType.BLOB_SUBMISSION: MessageType.BLOB_SUBMISSION_RESULT,
    MessageType.DHT_LOOKUP: MessageType.DHT_RESPONSE,
}
"""In which message the refusal of a request is said; of others, in Closing."""

_RESULTS: Final = {
    Status.STORED: Result.ACCEPTED,
    Status.PASSED: Result.ACCEPTED,
    Status.UNHEARD: Result.NO_CONSUMERS,
    Status.DUPLICATE: Result.DUPLICATE,
    Status.REFUSED: Result.INVALID,
    Status.FAILED: Result.TEMPORARY_ERROR,
}
"""How the end of a submission is said."""

_FORM: Final = Form("mosaic", lambda entry: entry.raw)
"""Stands where topics are subscribed to; Mosaic's records reach their watches without it."""


def _say_nothing(payload: bytes) -> None:
    """Takes what is sent before anyone is there."""


class MosaicSession:
    """One client's conversation."""

    protocol = model.Protocol.MOSAIC
    version = VERSION
    form = _FORM
    max_frame = MAX_FRAME
    text = False

    def __init__(
        self,
        house: Mosaic,
        *,
        key: bytes | None = None,
        claims: tuple[bytes, bytes] | None = None,
        hello: bool = False,
        upgrade_headers: Mapping[str, str] | None = None,
    ) -> None:
        """Begin.

        Args:
            house: what all conversations of the node share.
            key: who the transport has proven the client to be.
            claims: the key the client says it has, and the nonce it is to sign with it.
            hello: whether the conversation begins with Hello, as it does on streams.
            upgrade_headers: what the answer to a WebSocket's upgrade carries.
        """
        self.upgrade_headers: Mapping[str, str] = upgrade_headers or {}
        self._house = house
        self._key = key
        self._claims = claims
        self._expects_hello = hello
        self._greeted = not hello
        self._layout = LAYOUT_A
        self._known = False
        self._address = ""
        self._send: Callable[[bytes], None] = _say_nothing
        self._bucket = house.bucket(0)
        self._queries: dict[bytes, Query] = {}
        self._heard_at: int | None = None

    # What a stream calls, beside what every connection does.

    @property
    def layout(self) -> Layout | None:
        """The layout the client speaks; None on a stream before its Hello."""
        return self._layout if self._greeted or self._known else None

    def speak(self, layout: Layout) -> None:
        """The client's Hello has shown its layout."""
        self._layout = layout
        self._known = True

    def reply_to(self, send: Callable[[bytes], None]) -> None:
        """What is asked from now on is answered there; what was asked before, where it was asked."""
        self._send = send

    def unreadable(self, reason: str) -> Sequence[Command]:
        """A stream whose messages cannot be told apart is of no use any more."""
        metrics.REQUESTS_INVALID.labels("mosaic", Result.INVALID.name).inc()
        return (self._close(Result.INVALID),)

    def too_fast(self) -> Sequence[Command]:
        """More is waiting than is taken."""
        return (self._close(Result.TOO_FAST),)

    @property
    def open_queries(self) -> int:
        """How many queries are open."""
        return len(self._queries)

    # What the connection calls.

    def connected(self, address: str, send: Callable[[bytes], None]) -> None:
        """Know from where the peer comes and how it is reached."""
        self._address = address
        self._send = send

    def disconnected(self) -> None:
        """Forget all queries."""
        for query in list(self._queries.values()):
            self._forget(query)
        self._send = _say_nothing

    def idle(self, now: int) -> Sequence[Command]:
        """Close a client that has no open query and has been silent for too long (the document, "Asynchronous")."""
        if self._heard_at is None:
            self._heard_at = now
        limit = self._house.idle_seconds * 1_000_000
        if not limit or self._queries or now - self._heard_at < limit:
            return ()
        return (self._close(Result.SUCCESS),)

    def goodbye(self) -> bytes:
        """The node goes away."""
        return self._word(Message(MessageType.CLOSING, result=Result.SHUTTING_DOWN))

    def receive(self, data: bytes, *, text: bool, now: int) -> Sequence[Command]:
        """Take one message."""
        self._heard_at = now
        if not self._expects_hello:
            self._layout = frames.recognise(data)
        banned = self._banned(now)
        if banned is not None:
            return (self._close(banned),)
        try:
            if text:
                raise PeerFault("Messages are sent as binary frames, not as text.", code=frames.UNRECOGNIZED)
            if self._bucket is not None and not self._bucket.take(1, now):
                raise fault(Result.TOO_FAST, "Requests come too fast.")
            message = frames.decode(data, self._layout)
            handler = _HANDLERS.get(message.type)
            if handler is None:
                raise PeerFault(f"{message.type.name} is no request.", code=frames.UNRECOGNIZED)
            if not self._greeted and message.type is not MessageType.HELLO:
                raise invalid("Hello comes first.")
            return handler(self, message, now)
        except PeerFault as problem:
            return self._refuse(data, problem)

    def frame_too_large(self, size: int, head: bytes) -> Sequence[Command]:
        """Word the refusal of a message that is not read."""
        if not self._expects_hello:
            self._layout = frames.recognise(head, size)
        return self._refuse(head, fault(Result.TOO_LARGE, f"A message of {size} bytes is over {self.max_frame}."))

    def published(self, request_id: str, status: Status, verdict: model.Verdict) -> bytes:
        """Word the end of a submission. The request id is layout and id prefix, as `_submit` wrote them."""
        return self._submission_result(request_id, _RESULTS.get(status, Result.GENERAL_ERROR))

    def refused(self, request_id: str, problem: PeerFault) -> bytes:
        """Word the refusal of a submission."""
        return self._submission_result(request_id, _result_of(problem))

    # There are no topics in Mosaic, so nothing is resent from them.

    def resend_started(self, request: Resend) -> bytes | None:
        """Never asked."""
        return None

    def resend_message(self, request: Resend, entry: model.Entry) -> bytes:
        """Never asked."""
        return entry.raw

    def resend_ended(self, request: Resend, count: int) -> bytes:
        """Never asked."""
        return b""

    def resend_failed(self, request: Resend) -> bytes:
        """Never asked."""
        return b""

    # Requests.

    def _hello(self, message: Message, now: int) -> Sequence[Command]:
        """Negotiate: our version at most, and the applications both know. A second Hello is a DUPLICATE."""
        if not self._expects_hello:
            # Over a WebSocket the headers have said it all (the document, Hello).
            raise PeerFault("Hello is not said over a WebSocket.", code=frames.UNRECOGNIZED)
        result = Result.DUPLICATE if self._greeted else Result.SUCCESS
        self._greeted = True
        return (
            self._answer(
                Message(
                    MessageType.HELLO_ACK,
                    result=result,
                    version=min(message.version, VERSION),
                    applications=tuple(each for each in message.applications if each in APPLICATIONS),
                )
            ),
        )

    def _hello_auth(self, message: Message, now: int) -> Sequence[Command]:
        """Prove the key the client said it has (facts/mosaic.md, section 6): no answer, or Closing."""
        if self._claims is None:
            raise PeerFault("No authentication was asked for.", code=frames.UNRECOGNIZED)
        key, nonce = self._claims
        if not (mosaic.verify(key, nonce, message.body) or ed25519.verify(key, nonce, message.body)):
            return (self._close(Result.UNAUTHORIZED),)
        self._claims = None  # a nonce is good once
        self._key = key
        banned = self._house.bans.of_key(key, now)
        return () if banned is None else (self._close(banned),)

    def _get(self, message: Message, now: int) -> Sequence[Command]:
        if len(message.references) > MAX_REFERENCES:
            raise fault(Result.TOO_LARGE, f"A Get may name {MAX_REFERENCES} records.")
        return self._open(message, Fetch(self._house.postings, message.references, asker=self._key))

    def _query(self, message: Message, now: int) -> Sequence[Command]:
        question = _narrow(message.body)
        answer = Answer(self._house.postings, question, asker=self._key, limit=message.limit)
        return self._open(message, answer)

    def _subscribe(self, message: Message, now: int) -> Sequence[Command]:
        question = _narrow(message.body)
        since = self._house.next_offset
        answer = Answer(self._house.postings, question, asker=self._key, limit=message.limit, below=since)
        commands = self._open(message, answer)
        query = self._queries.get(message.query_id)
        if query is not None:
            query.watch = Watch(question, asker=self._key, since=since, take=query.take)
            self._house.watches.add(query.watch)
        return commands

    def _unsubscribe(self, message: Message, now: int) -> Sequence[Command]:
        query = self._queries.get(message.query_id)
        if query is None:
            raise fault(Result.NOT_FOUND, "No such query is open.")
        self._forget(query)
        return (Send(query.closing(Result.SUCCESS)),)

    def _submit(self, message: Message, now: int) -> Sequence[Command]:
        found = record.decode(message.body)
        self._check_sender(found, now)
        entry = record.to_entry(found, verdict=model.Verdict.OK, received_at=now)
        ephemeral = found.duplicates is Duplicates.EPHEMERAL
        return (
            Publish(
                self._layout.name + found.id_prefix.hex(),
                entry,
                partial(record.judge, found),
                acknowledge=True,
                passes=Status.PASSED if ephemeral else Status.ACCEPTED,
                route=partial(self._house.route, found),
            ),
        )

    def _check_sender(self, found: record.Record, now: int) -> None:
        """Whether this client may submit this record."""
        for key in {found.author, found.signer}:
            banned = self._house.bans.of_key(key, now)
            if banned is not None:
                raise fault(banned, "The author of this record is banned.")
        if found.from_author and self._key != found.author:
            # Decided in facts/mosaic.md, section 6. A signing key is no proof: anyone can name another as author.
            if self._key is None:
                raise fault(Result.REQUIRES_AUTHENTICATION, "Only its author may submit this record.")
            raise fault(Result.UNAUTHORIZED, "Only its author may submit this record.")

    def _blob_get(self, message: Message, now: int) -> Sequence[Command]:
        """No blobs are kept yet. The answer echoes the hash that was asked for."""
        return (self._answer(Message(MessageType.BLOB_RESULT, result=Result.NOT_FOUND, subject=message.subject)),)

    def _blob_submission(self, message: Message, now: int) -> Sequence[Command]:
        """No blobs are kept yet."""
        raise fault(Result.PERSISTENT_ERROR, "This node keeps no blobs.")

    def _dht_lookup(self, message: Message, now: int) -> Sequence[Command]:
        """Answer with the text of a bootstrap (facts/mosaic.md, section 6)."""
        salt = Salt.SERVER if message.server else Salt.USER
        text = self._house.bootstraps.lookup(message.subject, salt)
        if text is None:
            return (self._answer(Message(MessageType.DHT_RESPONSE, result=Result.NOT_FOUND)),)
        return (self._answer(Message(MessageType.DHT_RESPONSE, body=text.encode())),)

    def _unrecognized(self, message: Message, now: int) -> Sequence[Command]:
        """The client did not understand us; there is nothing to say to that."""
        return ()

    # Inside.

    def _open(self, message: Message, answer: Answer | Fetch) -> Sequence[Command]:
        """Open a query. One that is open under the same id is closed first."""
        closed = self._close_older(message.query_id)
        if len(self._queries) >= MAX_QUERIES:
            return (*closed, self._answer(_closed(message.query_id, Result.TOO_FAST)))
        query = Query(message.query_id, self._layout, answer, send=self._send, on_closed=self._forget)
        self._queries[message.query_id] = query
        return (*closed, Serve(query))

    def _close_older(self, query_id: bytes) -> Sequence[Command]:
        query = self._queries.get(query_id)
        if query is None:
            return ()
        self._forget(query)
        return (Send(query.closing(Result.SUCCESS)),)

    def _forget(self, query: Query) -> None:
        query.closed = True
        if query.watch is not None:
            self._house.watches.remove(query.watch)
            query.watch = None
        if self._queries.get(query.query_id) is query:
            del self._queries[query.query_id]

    def _banned(self, now: int) -> Result | None:
        banned = self._house.bans.of_address(self._address, now)
        if banned is None and self._key is not None:
            banned = self._house.bans.of_key(self._key, now)
        return banned

    def _refuse(self, data: bytes, problem: PeerFault) -> Sequence[Command]:
        """Say what was wrong, in the message the document has for that."""
        metrics.REQUESTS_INVALID.labels("mosaic", problem.code).inc()
        kind = data[0] if data else 0
        if problem.code == frames.UNRECOGNIZED:
            return (self._answer(Message(MessageType.UNRECOGNIZED)),)
        result = _result_of(problem)
        answer = _REFUSABLE.get(kind)  # type: ignore[call-overload]
        if answer is None:
            return (self._close(result),)
        fields = {name: data[start:end] for name, start, end in self._layout.rows[kind].fields}
        query_id = fields.get("query_id", b"").ljust(2, b"\0")
        refusal = self._answer(Message(answer, query_id=query_id, result=result, subject=data[8:40].ljust(32, b"\0")))
        if kind in (MessageType.GET, MessageType.QUERY, MessageType.SUBSCRIBE):
            return (*self._close_older(query_id), refusal)
        return (refusal,)

    def _answer(self, message: Message) -> Send:
        return Send(self._word(message))

    def _close(self, result: Result) -> Close:
        return Close(self._word(Message(MessageType.CLOSING, result=result)))

    def _word(self, message: Message) -> bytes:
        return frames.encode(message, self._layout)

    def _submission_result(self, request_id: str, result: Result) -> bytes:
        layout = _LAYOUTS[request_id[0]]
        answer = Message(MessageType.SUBMISSION_RESULT, result=result, subject=bytes.fromhex(request_id[1:]))
        return frames.encode(answer, layout)


def _result_of(problem: PeerFault) -> Result:
    return Result.__members__.get(problem.code, Result.INVALID)


def _closed(query_id: bytes, result: Result) -> Message:
    return Message(MessageType.QUERY_CLOSED, query_id=query_id, result=result)


def _narrow(data: bytes) -> filters.Filter:
    question = filters.decode(data)
    if not question.is_narrow:
        raise fault(Result.TOO_OPEN, "A filter needs an element that narrows it: keys, kinds, timestamps or tags.")
    return question


_LAYOUTS: Final[Mapping[str, Layout]] = {layout.name: layout for layout in frames.LAYOUTS}

_HANDLERS: Final[Mapping[MessageType, Callable[[MosaicSession, Message, int], Sequence[Command]]]] = {
    MessageType.HELLO: MosaicSession._hello,
    MessageType.HELLO_AUTH: MosaicSession._hello_auth,
    MessageType.GET: MosaicSession._get,
    MessageType.QUERY: MosaicSession._query,
    MessageType.SUBSCRIBE: MosaicSession._subscribe,
    MessageType.UNSUBSCRIBE: MosaicSession._unsubscribe,
    MessageType.SUBMISSION: MosaicSession._submit,
    MessageType.BLOB_GET: MosaicSession._blob_get,
    MessageType.BLOB_SUBMISSION: MosaicSession._blob_submission,
    MessageType.DHT_LOOKUP: MosaicSession._dht_lookup,
    MessageType.UNRECOGNIZED: MosaicSession._unrecognized,
}
"""What each request does; a type that is not here is none."""


def open_websocket(headers: Mapping[str, str], house: Mosaic, chance: bytes) -> MosaicSession:
    """Begin the conversation an upgrade request asks for (facts/mosaic.md, section 3.5, WebSockets).

    Args:
        headers: of the request, their names in lower case.
        house: what all conversations of the node share.
        chance: random bytes, for the nonce the client is to sign.

    Raises:
        PeerFault: no common version, or a key that is none.
    """
    answers = {"Sec-WebSocket-Protocol": SUBPROTOCOL, "X-Mosaic-Version": str(VERSION)}
    versions = headers.get("x-mosaic-versions")
    if versions is not None and str(VERSION) not in {each.strip() for each in versions.split(",")}:
        raise invalid(f"This node speaks Mosaic version {VERSION}, and none of {versions[:80]!r}.")
    if "x-mosaic-features" in headers:
        answers["X-Mosaic-Features-Accepted"] = ""
    nonce = headers.get("x-mosaic-server-authenticate-nonce")
    if nonce is not None:
        if not (nonce.isascii() and 0 < len(nonce) <= MAX_NONCE):
            raise invalid(f"A nonce is ASCII text of up to {MAX_NONCE} characters.")
        signature = house.signer.sign(nonce.encode())
        answers["X-Mosaic-Server-Authentication"] = base64.b64encode(signature).decode()
    claimed = headers.get("x-mosaic-authenticate-as")
    if claimed is None:
        return MosaicSession(house, upgrade_headers=answers)
    key = keys.decode(claimed, keys.Printable.USER_KEY)
    answers["X-Mosaic-Client-Authenticate-Nonce"] = asked = chance.hex()
    return MosaicSession(house, claims=(key, asked.encode()), upgrade_headers=answers)
