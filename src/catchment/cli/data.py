"""`catchment pub`, `sub`, `resend` and `keys`: streams from the command line."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from catchment import logs, model
from catchment.cli import keys, output
from catchment.client.streamr import Received, StreamrClient
from catchment.errors import UserError


def add_parsers(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands."""
    pub = _stream_parser(commands, "pub", "publish messages, signed", _pub)
    pub.add_argument("content", nargs="?", help="one message; without it each line of standard input is one")
    pub.add_argument(
        "--key", metavar="FILE", help=f"key file to sign with (default: {keys.default_path()}, made on first use)"
    )
    pub.add_argument("--unsigned", action="store_true", help="do not sign")
    pub.add_argument("--json", action="store_true", help="print what became of each message as JSON")

    sub = _stream_parser(commands, "sub", "print messages as they are published", _sub)
    sub.add_argument("--count", type=int, metavar="N", help="end after N messages")

    resend = _stream_parser(commands, "resend", "print messages from the history", _resend)
    which = resend.add_mutually_exclusive_group(required=True)
    which.add_argument("--last", type=int, metavar="N", help="the last N messages")
    which.add_argument("--from", dest="start", type=_ref, metavar="TS[:SEQ]", help="from this timestamp on (ms)")
    resend.add_argument("--to", dest="end", type=_end_ref, metavar="TS[:SEQ]", help="up to this timestamp (ms)")
    for reader in (sub, resend):
        reader.add_argument("--json", action="store_true", help="one JSON object a line")

    key = commands.add_parser("keys", help="show the key messages are signed with, or make one")
    key.add_argument("action", nargs="?", choices=("show", "new"), default="show")
    key.add_argument("file", nargs="?", type=Path, default=None, help=f"key file (default: {keys.default_path()})")
    key.add_argument("--json", action="store_true", help="as JSON")
    key.set_defaults(run=_keys)


def _stream_parser(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    text: str,
    command: Callable[[argparse.Namespace], Coroutine[None, None, int]],
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=text)
    parser.add_argument("stream", help="stream id")
    parser.add_argument("--partition", type=int, default=0, metavar="N", help="partition of the stream (default: 0)")
    parser.add_argument(
        "--url", default="ws://127.0.0.1:7170", help="address of the node (default: ws://127.0.0.1:7170)"
    )
    parser.add_argument("--cafile", metavar="FILE", help="PEM file of whom to trust for wss:// (default: the system's)")
    parser.set_defaults(run=lambda arguments: asyncio.run(command(arguments)))
    return parser


def _ref(text: str) -> model.Ref:
    timestamp, _, sequence = text.partition(":")
    return model.Ref(int(timestamp), int(sequence or 0))


def _end_ref(text: str) -> model.Ref:
    """Without a sequence all messages of that millisecond are meant."""
    return _ref(text) if ":" in text else model.Ref(int(text), model.MAX_SAFE_INTEGER)


async def _pub(arguments: argparse.Namespace) -> int:
    private_key = None
    if not arguments.unsigned:
        path = keys.default_path() if arguments.key is None else Path(arguments.key)
        if arguments.key is None and not path.exists():
            output.note(f"Made a key to sign with: {path} ({keys.make(path).address})")
        private_key = keys.load_bytes(path)
    async with StreamrClient(arguments.url, private_key=private_key, cafile=arguments.cafile) as client:
        async for text in _contents(arguments.content):
            content = _as_json(text.rstrip("\n"))
            if content:
                outcome = await client.publish(arguments.stream, content, partition=arguments.partition)
                _tell_published(arguments, outcome)
    return 0


async def _contents(argument: str | None) -> AsyncIterator[str]:
    """The argument, or each line of standard input; waiting for one keeps the connection alive."""
    if argument is not None:
        yield argument
        return
    while text := await asyncio.to_thread(sys.stdin.readline):
        yield text


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


def _tell_published(arguments: argparse.Namespace, outcome: str) -> None:
    if arguments.json:
        output.json_line({"stream": arguments.stream, "partition": arguments.partition, "outcome": outcome})
    else:
        output.line(outcome)


async def _sub(arguments: argparse.Namespace) -> int:
    async with StreamrClient(arguments.url, cafile=arguments.cafile) as client:
        await client.open_subscription(arguments.stream, partition=arguments.partition)
        output.note(f"Subscribed to {arguments.stream!r} partition {arguments.partition}; Ctrl-C ends.")
        left = arguments.count
        async for received in client.subscribe(arguments.stream, partition=arguments.partition):
            _show(received, as_json=arguments.json)
            if left is not None:
                left -= 1
                if left <= 0:
                    break
    return 0


async def _resend(arguments: argparse.Namespace) -> int:
    if arguments.last is not None and arguments.end is not None:
        raise UserError("--to goes with --from, not with --last.")
    async with StreamrClient(arguments.url, cafile=arguments.cafile) as client:
        found: AsyncIterator[Received]
        if arguments.last is not None:
            found = client.resend_last(arguments.stream, arguments.last, partition=arguments.partition)
        else:
            found = client.resend_range(arguments.stream, arguments.start, arguments.end, partition=arguments.partition)
        async for received in found:
            _show(received, as_json=arguments.json)
    return 0


def _show(received: Received, *, as_json: bool) -> None:
    made = received.message
    msg_id = made.msg_id
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
                "content": made.content,
            }
        )
        return
    when = datetime.fromtimestamp(msg_id.timestamp / 1000, tz=UTC).strftime("%H:%M:%S.%f")[:-3]
    who = msg_id.publisher_id[:10] or "unsigned"
    # A publisher chooses these words; control characters would reach the terminal.
    output.line(f"{when}  {logs.escaped(who)}  {logs.escaped(made.content)}")


def _keys(arguments: argparse.Namespace) -> int:
    path = arguments.file or keys.default_path()
    signer = keys.make(path) if arguments.action == "new" else keys.load(path)
    if arguments.json:
        output.json_line({"protocol": "streamr", "address": signer.address, "file": str(path)})
    else:
        output.line(f"streamr  {signer.address}  {path}")
    return 0
