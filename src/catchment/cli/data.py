"""`catchment pub`, `sub`, `resend` and `keys`: streams from the command line."""

from __future__ import annotations

import argparse
import asyncio
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec

from catchment import keyfiles, logs, model
from catchment.cli import keys, output
from catchment.client.streamr import (
    From,
    GapOpen,
    Happening,
    Last,
    Received,
    ResendFailed,
    StreamrClient,
    Undecryptable,
)
from catchment.client.streamr.values import History
from catchment.config import Settings
from catchment.errors import CatchmentError, UserError

DEFAULT_URL: Final = "ws://127.0.0.1:7170"
ON_THE_WAY: Final = 1000
"""Messages that are sent before the first of them is confirmed."""
SCHEMES: Final = {"streamr": "ws", "streamrs": "wss"}
PROGRESS_SECONDS: Final = 0.5


def add_parsers(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands."""
    pub = _stream_parser(commands, "pub", "publish messages, signed", _pub)
    pub.add_argument("content", nargs="?", help="one message; without it each line of standard input is one")
    pub.add_argument("--unsigned", action="store_true", help="do not sign")
    pub.add_argument("--partition-key", metavar="TEXT", help="choose the partition by this key, not by its number")
    pub.add_argument("--encrypt", action="store_true", help="encrypt with the stream's group key, made on first use")
    pub.add_argument(
        "--rotate", action="store_true", help="with --encrypt: take a new group key from the next message on"
    )
    pub.add_argument(
        "--allow",
        action="append",
        metavar="ADDRESS",
        help="with --encrypt: who gets the group key, once for each (default: whom the node lets subscribe)",
    )
    pub.add_argument(
        "--stay", action="store_true", help="with --encrypt: go on answering who asks for the group key, until Ctrl-C"
    )
    pub.add_argument("--json", action="store_true", help="print what became of each message as JSON")

    sub = _stream_parser(commands, "sub", "print messages as they are published", _sub)
    sub.add_argument("--count", type=int, metavar="N", help="end after N messages")
    resend = _stream_parser(commands, "resend", "print messages from the history", _resend)
    for reader in (sub, resend):
        which = reader.add_mutually_exclusive_group(required=reader is resend)
        which.add_argument("--last", type=int, metavar="N", help="the last N messages")
        which.add_argument("--from", dest="start", type=_ref, metavar="TS[:SEQ]", help="from this timestamp on (ms)")
        reader.add_argument("--json", action="store_true", help="one JSON object a line")
    resend.add_argument("--to", dest="end", type=_end_ref, metavar="TS[:SEQ]", help="up to this timestamp (ms)")

    key = commands.add_parser("keys", help="show the key messages are signed with, or make one")
    key.add_argument("action", nargs="?", choices=("show", "new"), default="show")
    key.add_argument("file", nargs="?", type=Path, default=None, help=f"key file (default: {keys.default_path()})")
    key.add_argument(
        "--popstellar", action="store_true", help="show a PoPStellar server's key file: its public key in base64url"
    )
    key.add_argument(
        "--mosaic", action="store_true", help="show a Mosaic server's key file: its public key as clients know it"
    )
    key.add_argument("--json", action="store_true", help="as JSON")
    key.set_defaults(run=_keys)


def _stream_parser(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    text: str,
    command: Callable[[argparse.Namespace], Coroutine[None, None, int]],
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=text)
    parser.add_argument("stream", help="stream id, or streamr://host:port/stream (streamrs:// for TLS)")
    parser.add_argument("--partition", type=_number, metavar="N", help="partition of the stream (default: 0)")
    parser.add_argument("--url", default=DEFAULT_URL, help=f"address of the node (default: {DEFAULT_URL})")
    parser.add_argument("--cafile", metavar="FILE", help="PEM file of whom to trust for wss:// (default: the system's)")
    parser.add_argument(
        "--key",
        metavar="FILE",
        help=f"private key: signs, logs in, asks for group keys (default: {keys.default_path()}; pub makes it)",
    )
    parser.add_argument(
        "--keystore", metavar="FILE", help="file that keeps group keys (default: none, they end with the command)"
    )
    parser.set_defaults(run=lambda arguments: asyncio.run(command(arguments)))
    return parser


def _number(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative")
    return number


def _ref(text: str) -> model.Ref:
    timestamp, _, sequence = text.partition(":")
    return model.Ref(int(timestamp), int(sequence or 0))


def _end_ref(text: str) -> model.Ref:
    """Without a sequence all messages of that millisecond are meant."""
    return _ref(text) if ":" in text else model.Ref(int(text), model.MAX_SAFE_INTEGER)


class Place(NamedTuple):
    """Where a command reads or writes."""

    url: str
    stream: str
    partition: int


def _place(arguments: argparse.Namespace) -> Place:
    """The node and stream that were named, by an id and --url or by one address."""
    partition = arguments.partition or 0
    scheme, mark, _ = arguments.stream.partition("://")
    if not mark:
        return Place(arguments.url, arguments.stream, partition)
    parts = urlsplit(arguments.stream)
    stream = unquote(parts.path.removeprefix("/"))
    if scheme not in SCHEMES or not parts.netloc or not stream:
        raise UserError(f"{arguments.stream!r} is no address of a stream: write streamr://host:port/stream.")
    return Place(f"{SCHEMES[scheme]}://{parts.netloc}", stream, partition)


def _reading_key(arguments: argparse.Namespace) -> bytes | None:
    """Reading needs no key; one that is there is used, to log in and to decrypt."""
    path = keys.default_path() if arguments.key is None else Path(arguments.key)
    return None if arguments.key is None and not path.exists() else keys.load_bytes(path)


def _signing_key(arguments: argparse.Namespace) -> bytes | None:
    if arguments.unsigned:
        return None
    path = keys.default_path() if arguments.key is None else Path(arguments.key)
    if arguments.key is None and not path.exists():
        output.note(f"Made a key to sign with: {path} ({keys.make(path).address})")
    return keys.load_bytes(path)


async def _pub(arguments: argparse.Namespace) -> int:
    _check_pub(arguments)
    place = _place(arguments)
    allowed = None if arguments.allow is None else {address.lower() for address in arguments.allow}
    async with StreamrClient(
        place.url,
        private_key=_signing_key(arguments),
        cafile=arguments.cafile,
        keystore=arguments.keystore,
        allow=None if allowed is None else lambda stream, address: address in allowed,
    ) as client:
        if arguments.rotate:
            await client.rotate_key(place.stream)
        await _publish_all(arguments, place, client)
        if arguments.stay:
            output.note("Answering who asks for the group key; Ctrl-C ends.")
            await asyncio.get_running_loop().create_future()
    return 0


def _check_pub(arguments: argparse.Namespace) -> None:
    if not arguments.encrypt:
        for name in ("rotate", "allow", "stay"):
            if getattr(arguments, name):
                raise UserError(f"--{name} goes with --encrypt.")
    elif arguments.unsigned:
        raise UserError("--encrypt needs a key to sign with: leave --unsigned out.")
    if arguments.partition_key is not None and arguments.partition is not None:
        raise UserError("Name the partition by --partition or by --partition-key, not by both.")


async def _publish_all(arguments: argparse.Namespace, place: Place, client: StreamrClient) -> None:
    """Send each line as it comes, and tell what became of it as it is confirmed; the first refusal ends it."""
    waiting: asyncio.Queue[asyncio.Future[str] | None] = asyncio.Queue(ON_THE_WAY)
    refused = asyncio.Event()
    telling = asyncio.create_task(_tell(arguments, place, waiting, refused))
    try:
        async for text in _contents(arguments.content):
            content = _as_json(text.rstrip("\n"))
            if refused.is_set():
                break
            if content:
                await waiting.put(
                    await client.send(
                        place.stream,
                        content,
                        partition=None if arguments.partition_key is not None else place.partition,
                        partition_key=arguments.partition_key,
                        encrypt=arguments.encrypt,
                    )
                )
    except CatchmentError:
        await waiting.put(None)
        await telling  # those before it are still told about
        raise
    else:
        await waiting.put(None)
        await telling
    finally:
        telling.cancel()


async def _tell(
    arguments: argparse.Namespace,
    place: Place,
    waiting: asyncio.Queue[asyncio.Future[str] | None],
    refused: asyncio.Event,
) -> None:
    progress = _Progress()
    problem: CatchmentError | None = None
    while (confirmed := await waiting.get()) is not None:
        try:
            outcome = await confirmed
        except CatchmentError as error:
            problem = problem or error
            refused.set()
            continue
        progress.count()
        if arguments.json:
            output.json_line({"stream": place.stream, "partition": place.partition, "outcome": outcome})
        else:
            output.line(outcome)
    progress.end()
    if problem is not None:
        raise problem


class _Progress:
    """How many were published, on a terminal whose standard output goes elsewhere."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty() and not sys.stdout.isatty()
        self._done = 0
        self._next = 0.0

    def count(self) -> None:
        self._done += 1
        now = asyncio.get_running_loop().time()
        if self._shown and now >= self._next:
            self._next = now + PROGRESS_SECONDS
            sys.stderr.write(f"\r{self._done:,} published")
            sys.stderr.flush()

    def end(self) -> None:
        if self._shown and self._done:
            output.note(f"\r{self._done:,} published")


async def _contents(argument: str | None) -> AsyncIterator[str]:
    """The argument, or each line of standard input."""
    if argument is not None:
        yield argument
        return
    async for line in _lines():
        yield line


async def _lines() -> AsyncIterator[str]:
    """Standard input, read on a thread of its own: waiting for a line keeps connections alive, and Ctrl-C ends it."""
    loop = asyncio.get_running_loop()
    lines: deque[str | BaseException | None] = deque()
    came = asyncio.Event()
    room = threading.Semaphore(ON_THE_WAY)

    def put(line: str | BaseException | None) -> None:
        lines.append(line)
        came.set()

    def read() -> None:
        try:
            for line in sys.stdin:
                room.acquire()
                loop.call_soon_threadsafe(put, line)
            loop.call_soon_threadsafe(put, None)
        except (OSError, ValueError) as error:
            loop.call_soon_threadsafe(put, error)
        except RuntimeError:
            return  # the command has ended meanwhile

    threading.Thread(target=read, daemon=True).start()
    while True:
        await came.wait()
        came.clear()
        while lines:
            line = lines.popleft()
            if line is None:
                return
            if isinstance(line, BaseException):
                raise line
            room.release()
            yield line


def _as_json(text: str) -> str:
    """Content is JSON (Stream Protocol, `contentType` 0); what is not becomes a JSON string."""
    try:
        msgspec.json.decode(text)
    except msgspec.DecodeError:
        return "" if not text else msgspec.json.encode(text).decode()
    except UnicodeEncodeError:
        raise UserError("The content is not valid UTF-8.") from None
    except RecursionError:
        raise UserError("The content is nested too deeply.") from None
    return text


async def _sub(arguments: argparse.Namespace) -> int:
    place = _place(arguments)
    history: History | None = None
    if arguments.last is not None:
        history = Last(arguments.last)
    elif arguments.start is not None:
        history = From(*arguments.start)
    async with StreamrClient(
        place.url,
        private_key=_reading_key(arguments),
        cafile=arguments.cafile,
        keystore=arguments.keystore,
    ) as client:
        messages = await client.open_subscription(place.stream, partition=place.partition, resend=history, events=True)
        output.note(f"Subscribed to {place.stream!r} partition {place.partition}; Ctrl-C ends.")
        left = arguments.count
        async for happening in messages:
            if isinstance(happening, Received):
                _show(happening, as_json=arguments.json)
                if left is not None:
                    left -= 1
                    if left <= 0:
                        break
            else:
                _warn(happening)
    return 0


def _warn(happening: Happening) -> None:
    match happening:
        case GapOpen():
            publisher, chain = happening.key
            what = f"{publisher} chain {chain}, from {happening.start} to {happening.end}: {happening.why.value}"
            output.note(f"Messages are missing of {logs.escaped(what)}.")
        case Undecryptable():
            output.note(f"A message cannot be read: {logs.escaped(happening.reason)}")
        case ResendFailed():
            output.note(f"The history cannot be had: {logs.escaped(happening.reason)}")


async def _resend(arguments: argparse.Namespace) -> int:
    if arguments.last is not None and arguments.end is not None:
        raise UserError("--to goes with --from, not with --last.")
    place = _place(arguments)
    unreadable = 0
    async with StreamrClient(
        place.url,
        private_key=_reading_key(arguments),
        cafile=arguments.cafile,
        keystore=arguments.keystore,
    ) as client:
        found: AsyncIterator[Received]
        if arguments.last is not None:
            found = client.resend_last(place.stream, arguments.last, partition=place.partition)
        else:
            found = client.resend_range(place.stream, arguments.start, arguments.end, partition=place.partition)
        async for received in found:
            unreadable += received.encrypted
            _show(received, as_json=arguments.json)
    if unreadable:
        output.note(f"{unreadable} messages are encrypted and no key came for them: their publisher may be away.")
    return 0


def _show(received: Received, *, as_json: bool) -> None:
    msg_id = received.message.msg_id
    if as_json:
        output.json_line(
            {
                "stream": msg_id.stream_id,
                "partition": msg_id.stream_partition,
                "timestamp": msg_id.timestamp,
                "sequence": msg_id.sequence_number,
                "publisher": msg_id.publisher_id,
                "chain": msg_id.msg_chain_id,
                "verdict": received.verdict.name.lower(),
                "encrypted": received.encrypted,
                "content": received.content,
            }
        )
        return
    when = datetime.fromtimestamp(msg_id.timestamp / 1000, tz=UTC).strftime("%H:%M:%S.%f")[:-3]
    who = msg_id.publisher_id[:10] or "unsigned"
    # A publisher chooses these words; control characters would reach the terminal.
    output.line(f"{when}  {logs.escaped(who)}  {logs.escaped(received.content)}")


def _popstellar_key(arguments: argparse.Namespace) -> int:
    """A server's key lies in its data folder; the node makes it when it first starts."""
    path = arguments.file or Path(Settings().data) / keyfiles.POPSTELLAR
    public = keys.popstellar_public(path, new=arguments.action == "new")
    if arguments.json:
        output.json_line({"protocol": "popstellar", "public_key": public, "file": str(path)})
    else:
        output.line(f"popstellar  {public}  {path}")
    return 0


def _mosaic_key(arguments: argparse.Namespace) -> int:
    """A server's key lies in its data folder; the node makes it when it first starts."""
    path = arguments.file or Path(Settings().data) / keyfiles.MOSAIC
    server = keys.mosaic_server(path, new=arguments.action == "new")
    if arguments.json:
        output.json_line({"protocol": "mosaic", "server_key": server, "file": str(path)})
    else:
        output.line(f"mosaic  {server}  {path}")
    return 0


def _keys(arguments: argparse.Namespace) -> int:
    if arguments.popstellar:
        return _popstellar_key(arguments)
    if arguments.mosaic:
        return _mosaic_key(arguments)
    path = arguments.file or keys.default_path()
    signer = keys.make(path) if arguments.action == "new" else keys.load(path)
    if arguments.json:
        output.json_line({"protocol": "streamr", "address": signer.address, "file": str(path)})
    else:
        output.line(f"streamr  {signer.address}  {path}")
    return 0
