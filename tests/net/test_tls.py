"""TLS on the main port: https and wss, modern versions and ciphers only, certificates that can be changed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import urllib.request
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import uvloop

from catchment import metrics
from catchment.client.streamr import ConnectionEnded, StreamrClient
from catchment.config import Settings
from catchment.errors import UserError
from catchment.net import tls
from catchment.net.server import Node

from . import certificates
from .certificates import Pair
from .nodehelp import STREAMR, connected, running_node
from .processes import node_process, run

LOOPS: list[Callable[[], asyncio.AbstractEventLoop]] = [uvloop.new_event_loop, asyncio.new_event_loop]
every_loop = pytest.mark.parametrize("loop", LOOPS, ids=["uvloop", "asyncio"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def first(folder: Path) -> Pair:
    return certificates.make(folder, "first")


@pytest.fixture(scope="module")
def second(folder: Path) -> Pair:
    return certificates.make(folder, "second", with_rsa=True)


def trusting(pair: Pair) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(pair.cert))


def go(loop: Callable[[], asyncio.AbstractEventLoop], main: Callable[[], object]) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())  # type: ignore[arg-type]


async def shown_name(node: Node, pair: Pair) -> str:
    """The name in the certificate that a new connection is shown, if `pair` vouches for it."""
    _, writer = await asyncio.open_connection("127.0.0.1", node.port, ssl=trusting(pair))
    certificate = writer.get_extra_info("peercert")
    writer.close()
    await writer.wait_closed()
    return str(certificate["subject"][0][0][1])


def fetch(node: Node, pair: Pair, path: str) -> bytes:
    with urllib.request.urlopen(node.addresses["http"] + path, context=trusting(pair), timeout=30) as page:
        return bytes(page.read())


class TestBothSpeakThroughOneDoor:
    @every_loop
    def test_https(self, loop: Callable[[], asyncio.AbstractEventLoop], first: Pair, tmp_path: Path) -> None:
        async def main() -> None:
            async with running_node(tmp_path, **first.settings) as node:
                assert node.addresses["http"].startswith("https://")
                body = await asyncio.to_thread(fetch, node, first, "/api/info")
                assert msgspec.json.decode(body)["node"] == node.store.node.hex()

        go(loop, main)

    @every_loop
    def test_wss(self, loop: Callable[[], asyncio.AbstractEventLoop], first: Pair, tmp_path: Path) -> None:
        async def main() -> None:
            async with running_node(tmp_path, **first.settings) as node:
                assert node.addresses["ws"].startswith("wss://")
                async with StreamrClient(node.addresses["ws"], cafile=str(first.cert)) as client:
                    await client.open_subscription("s")
                    large = "x" * 700_000  # many TLS records, in and out
                    for content in ("[1]", large, "[3]"):
                        assert await client.publish("s", content) == "stored"
                    seen = client.subscribe("s")
                    assert [(await anext(seen)).message.content for _ in range(3)] == ["[1]", large, "[3]"]
                    assert [each.message.content async for each in client.resend_last("s", 2)] == [large, "[3]"]

        go(loop, main)

    @every_loop
    def test_a_head_in_pieces_and_frames_right_behind_it(
        self, loop: Callable[[], asyncio.AbstractEventLoop], first: Pair, tmp_path: Path
    ) -> None:
        request = b'[2,9,"r","s",0,null]'
        upgrade = (
            (
                f"GET {STREAMR} HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
                "sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
            ).encode()
            + bytes([0x81, 0x80 | len(request), 0, 0, 0, 0]) * 1
            + request
        )

        async def main() -> None:
            async with running_node(tmp_path, **first.settings) as node:
                for size in (1, 7, len(upgrade)):
                    reader, writer = await asyncio.open_connection("127.0.0.1", node.port, ssl=trusting(first))
                    for start in range(0, len(upgrade), size):
                        writer.write(upgrade[start : start + size])
                        await writer.drain()
                    assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
                    answer = b'[2,2,"r","s",0]'
                    assert await reader.readexactly(2 + len(answer)) == bytes([0x81, len(answer)]) + answer
                    writer.close()

        go(loop, main)

    @every_loop
    def test_a_node_that_ends_says_goodbye(
        self, loop: Callable[[], asyncio.AbstractEventLoop], first: Pair, tmp_path: Path
    ) -> None:
        async def main() -> None:
            async with contextlib.AsyncExitStack() as stack:
                async with running_node(tmp_path, **first.settings) as node:
                    peer = await stack.enter_async_context(connected(node, ssl_context=trusting(first)))
                    await peer.ask([2, 9, "r", "s", 0, None])
                await asyncio.wait_for(peer.closed.wait(), 30)
                assert peer.close_code == 1001

        go(loop, main)

    @every_loop
    def test_a_subscriber_that_stops_reading_is_cut(
        self, loop: Callable[[], asyncio.AbstractEventLoop], first: Pair, tmp_path: Path
    ) -> None:
        async def main() -> None:
            async with (
                running_node(tmp_path, outbox_bytes=200_000, **first.settings) as node,
                connected(node, ssl_context=trusting(first)) as stuck,
                connected(node, STREAMR + "&publishAck=1", ssl_context=trusting(first)) as peer,
            ):
                await stuck.ask([2, 9, "r", "s", 0, None])
                stuck.transport.underlying_transport.pause_reading()
                sent = 0
                while len(node.connections) == 2:
                    raw = b'[32,["s",0,%d,0,"","c"],null,27,0,0,null,"%b",null,0,null]' % (
                        1_700_000_000_000 + sent,
                        b"x" * 300_000,
                    )
                    peer.publish(raw)
                    assert (await peer.next())[3] == "stored"
                    sent += 1
                    assert sent < 500
                assert (await peer.ask([2, 9, "r", "other", 0, None]))[1] == 2
                stuck.transport.disconnect(graceful=False)  # it does not read the node's goodbye either

        go(loop, main)

    def test_plain_http_is_not_answered(self, first: Pair, tmp_path: Path) -> None:
        async def main() -> None:
            async with running_node(tmp_path, **first.settings) as node:
                reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
                writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
                assert b"HTTP/1.1 200" not in await reader.read()
                writer.close()
                assert b"ok" in await asyncio.to_thread(fetch, node, first, "/healthz")

        go(uvloop.new_event_loop, main)


def lax_client(pair: Pair, version: ssl.TLSVersion, ciphers: str) -> ssl.SSLContext:
    """A client that takes this version and these ciphers only, however old."""
    context = trusting(pair)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = version
    context.set_ciphers(f"{ciphers}:@SECLEVEL=0")
    return context


def lax_server(pair: Pair) -> ssl.SSLContext:
    """What ours is not: it shows that the clients below are refused by policy, not by their own making."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.TLSv1
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.load_cert_chain(pair.cert, pair.key)
    return context


WEAK = [
    ("TLSv1_1", ssl.TLSVersion.TLSv1_1, "ALL"),
    ("TLSv1", ssl.TLSVersion.TLSv1, "ALL"),
    ("CBC", ssl.TLSVersion.TLSv1_2, "ECDHE-RSA-AES128-SHA"),
    ("CBC-SHA256", ssl.TLSVersion.TLSv1_2, "ECDHE-RSA-AES256-SHA384"),
    ("no forward secrecy", ssl.TLSVersion.TLSv1_2, "AES256-GCM-SHA384"),
    ("finite-field DH or none", ssl.TLSVersion.TLSv1_2, "AES128-SHA"),
]


@contextlib.asynccontextmanager
async def listening(context: ssl.SSLContext) -> AsyncIterator[int]:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def handshake(port: int, context: ssl.SSLContext) -> str:
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    version = str(writer.get_extra_info("ssl_object").version())
    writer.close()
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        await writer.wait_closed()
    return version


class TestPolicy:
    @pytest.mark.parametrize(("version", "ciphers"), [each[1:] for each in WEAK], ids=[each[0] for each in WEAK])
    def test_old_versions_and_weak_ciphers_are_refused(
        self, version: ssl.TLSVersion, ciphers: str, second: Pair, tmp_path: Path
    ) -> None:
        async def main() -> None:
            async with running_node(tmp_path, **second.settings) as node, listening(lax_server(second)) as lax:
                assert await handshake(lax, lax_client(second, version, ciphers))
                with pytest.raises((ssl.SSLError, ConnectionResetError)):
                    await handshake(node.port, lax_client(second, version, ciphers))
                assert await handshake(node.port, trusting(second)) == "TLSv1.3"

        asyncio.run(main())

    @pytest.mark.parametrize("cipher", ["ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-RSA-CHACHA20-POLY1305"])
    def test_modern_ciphers_of_1_2_are_taken(self, cipher: str, second: Pair, tmp_path: Path) -> None:
        async def main() -> None:
            async with running_node(tmp_path, **second.settings) as node:
                assert await handshake(node.port, lax_client(second, ssl.TLSVersion.TLSv1_2, cipher)) == "TLSv1.2"

        asyncio.run(main())

    def test_every_cipher_we_offer_is_ephemeral_and_authenticated(self, first: Pair) -> None:
        for cipher in tls.load(Settings(**first.settings)).get_ciphers():  # type: ignore[arg-type]
            assert cipher["aead"], cipher
            assert cipher["kea"] in ("kx-any", "kx-ecdhe"), cipher
            assert cipher["protocol"] in ("TLSv1.2", "TLSv1.3")

    def test_a_client_is_not_led_to_http_2(self, first: Pair, tmp_path: Path) -> None:
        async def main() -> None:
            async with running_node(tmp_path, **first.settings) as node:
                context = trusting(first)
                context.set_alpn_protocols(["h2", "http/1.1"])
                _, writer = await asyncio.open_connection("127.0.0.1", node.port, ssl=context)
                assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
                writer.close()

        asyncio.run(main())


class TestReload:
    @every_loop
    def test_new_connections_see_the_new_certificate_and_old_ones_go_on(
        self, loop: Callable[[], asyncio.AbstractEventLoop], first: Pair, second: Pair, tmp_path: Path
    ) -> None:
        async def main() -> None:
            async with running_node(tmp_path, **first.settings) as node:
                assert await shown_name(node, first) == "first"
                async with StreamrClient(node.addresses["ws"], cafile=str(first.cert)) as old:
                    await old.open_subscription("s")
                    wanted = msgspec.structs.replace(node.settings, **second.settings)
                    assert node.reload(wanted) == (["tls_cert", "tls_key"], [])
                    assert await shown_name(node, second) == "second"
                    with pytest.raises(ssl.SSLCertVerificationError):
                        await shown_name(node, first)
                    async with StreamrClient(node.addresses["ws"], cafile=str(second.cert)) as new:
                        assert await new.publish("s", {"n": 1}) == "stored"
                    assert (await anext(old.subscribe("s"))).message.content == '{"n":1}'
                    assert await old.publish("s", {"n": 2}) == "stored"

        go(loop, main)

    def test_the_files_are_read_again_under_the_same_names(self, first: Pair, second: Pair, tmp_path: Path) -> None:
        pair = Pair(tmp_path / "a.crt", tmp_path / "a.key")

        def put(source: Pair) -> None:
            pair.key.touch(mode=0o600)
            for ours, theirs in zip(pair, source, strict=True):
                ours.write_bytes(theirs.read_bytes())

        async def main() -> None:
            put(first)
            async with running_node(tmp_path / "node", **pair.settings) as node:
                put(second)
                assert await shown_name(node, first) == "first"
                assert node.reload(node.settings) == ([], [])
                assert await shown_name(node, second) == "second"

        asyncio.run(main())

    def test_a_password_comes_into_force(self, first: Pair, folder: Path, tmp_path: Path) -> None:
        locked = certificates.make(folder, "password", password=b"swordfish")

        async def main() -> None:
            async with running_node(tmp_path, **first.settings) as node:
                wanted = msgspec.structs.replace(node.settings, **locked.settings, tls_key_password="swordfish")
                assert node.reload(wanted) == (["tls_cert", "tls_key", "tls_key_password"], [])
                assert await shown_name(node, locked) == "password"

        asyncio.run(main())

    def test_a_certificate_that_cannot_be_used_changes_nothing(self, first: Pair, second: Pair, tmp_path: Path) -> None:
        async def main() -> None:
            async with running_node(tmp_path, **first.settings) as node:
                before = node.settings
                for changes in (
                    {"tls_cert": str(second.cert)},  # with the first one's key
                    {"tls_cert": str(tmp_path / "missing")},
                    {"tls_key": ""},
                ):
                    with pytest.raises(UserError):
                        node.reload(msgspec.structs.replace(before, hot_hours=1.0, **changes))
                    assert node.settings == before
                assert await shown_name(node, first) == "first"

        asyncio.run(main())

    def test_a_port_does_not_change_between_plain_and_tls(self, first: Pair, tmp_path: Path) -> None:
        async def main() -> None:
            async with running_node(tmp_path / "plain") as node:
                wanted = msgspec.structs.replace(node.settings, hot_hours=1.0, **first.settings)
                assert node.reload(wanted) == (["hot_hours"], ["tls_cert", "tls_key"])
                assert node.settings.tls_cert == ""
            async with running_node(tmp_path / "tls", **first.settings) as node:
                wanted = msgspec.structs.replace(node.settings, tls_cert="", tls_key="")
                assert node.reload(wanted) == ([], ["tls_cert", "tls_key"])
                assert await shown_name(node, first) == "first"

        asyncio.run(main())


@pytest.fixture
def refused(tmp_path: Path) -> Iterator[Callable[..., str]]:
    def ask(**settings: object) -> str:
        with pytest.raises(UserError) as caught:
            tls.load(Settings(**settings))  # type: ignore[arg-type]
        return str(caught.value)

    return ask


Ask = Callable[..., str]


class TestFilesThatCannotBeUsed:
    def test_one_without_the_other(self, refused: Ask, first: Pair) -> None:
        assert "tls_key is not set" in refused(tls_cert=str(first.cert))
        assert "tls_cert is not set" in refused(tls_key=str(first.key))

    def test_missing(self, refused: Ask, first: Pair, tmp_path: Path) -> None:
        gone = str(tmp_path / "gone")
        text = refused(tls_cert=gone, tls_key=str(first.key))
        assert f"{gone} (tls_cert) cannot be read: No such file" in text
        assert f"{gone} (tls_key) cannot be read" in refused(tls_cert=str(first.cert), tls_key=gone)

    def test_a_folder(self, refused: Ask, first: Pair, tmp_path: Path) -> None:
        assert "Is a directory" in refused(tls_cert=str(tmp_path), tls_key=str(first.key))

    def test_not_pem(self, refused: Ask, first: Pair, tmp_path: Path) -> None:
        rubbish = tmp_path / "rubbish"
        rubbish.write_bytes(b"\x00\xff rubbish")
        rubbish.chmod(0o600)
        text = refused(tls_cert=str(rubbish), tls_key=str(first.key))
        assert "holds no certificate in PEM form" in text
        assert "BEGIN CERTIFICATE" in text
        text = refused(tls_cert=str(first.cert), tls_key=str(rubbish))
        assert "cannot be used" in text
        assert "PEM" in text

    def test_not_a_pair(self, refused: Ask, first: Pair, second: Pair, folder: Path) -> None:
        other = certificates.make(folder, "other")
        text = refused(tls_cert=str(first.cert), tls_key=str(other.key))
        assert f"{other.key} (tls_key) does not belong to the certificate {first.cert}" in text

    def test_a_key_that_everyone_can_read(self, refused: Ask, first: Pair, tmp_path: Path) -> None:
        key = tmp_path / "open.key"
        key.write_bytes(first.key.read_bytes())
        key.chmod(0o644)
        assert f"chmod 600 {key}" in refused(tls_cert=str(first.cert), tls_key=str(key))

    def test_an_encrypted_key(self, refused: Ask, folder: Path) -> None:
        pair = certificates.make(folder, "locked", password=b"swordfish")
        assert "is encrypted: set tls_key_password" in refused(**pair.settings)
        text = refused(**pair.settings, tls_key_password="herring")
        assert "tls_key_password is not its password" in text
        assert "herring" not in text
        assert tls.load(Settings(**pair.settings, tls_key_password="swordfish"))  # type: ignore[arg-type]

    def test_config_check_looks_at_them(self, first: Pair, tmp_path: Path) -> None:
        assert run("config", "check", *first.flags).returncode == 0
        ended = run("config", "check", "--tls-cert", str(first.cert), "--tls-key", str(tmp_path / "gone"))
        assert (ended.returncode, ended.stdout) == (2, "")

    def test_serve_ends_with_one_sentence(self, first: Pair, tmp_path: Path) -> None:
        flags = ["--port", "0", "--data", str(tmp_path / "data"), "--tls-cert", str(first.cert)]
        ended = run("serve", *flags, "--tls-key", str(tmp_path / "gone"))
        assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
        assert "(tls_key) cannot be read" in ended.stderr
        assert not (tmp_path / "data").exists()


class TestTold:
    @pytest.mark.parametrize(("days", "words"), [(-3, "ended at"), (3, "ends at")])
    def test_a_certificate_near_or_past_its_end(
        self, days: int, words: str, folder: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        pair = certificates.make(folder, f"days{days}", days=days)
        tls.load(Settings(**pair.settings))  # type: ignore[arg-type]
        assert words in caplog.text
        assert "SIGHUP" in caplog.text

    def test_when_it_ends_is_a_metric(self, first: Pair) -> None:
        tls.load(Settings(**first.settings))  # type: ignore[arg-type]
        end = tls.read_certificate(first.cert).not_valid_after_utc.timestamp()
        assert metrics.REGISTRY.get_sample_value("catchment_net_certificate_end_seconds") == end

    @pytest.mark.parametrize(("host", "told"), [("0.0.0.0", True), ("127.0.0.1", False), ("localhost", False)])
    def test_a_public_port_without_tls(
        self, host: str, told: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def main() -> None:
            async with running_node(tmp_path, host=host):
                pass

        with caplog.at_level(logging.WARNING):
            asyncio.run(main())
        assert ("without TLS" in caplog.text) is told

    def test_a_peer_that_fails_its_handshake_writes_no_log(
        self, first: Pair, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def main() -> None:
            async with running_node(tmp_path, **first.settings) as node:
                for rubbish in (b"", b"\x16\x03\x01", b"rubbish\r\n\r\n", b"\x16\x03\x01\xff\xff" + b"x" * 100):
                    with socket.create_connection(("127.0.0.1", node.port)) as rude:
                        rude.sendall(rubbish)
                assert await shown_name(node, first) == "first"

        with caplog.at_level(logging.INFO):
            go(uvloop.new_event_loop, main)
        assert caplog.text == ""


class TestClient:
    def test_an_untrusted_certificate_is_refused_at_once(self, first: Pair, second: Pair, tmp_path: Path) -> None:
        async def main() -> None:
            async with running_node(tmp_path, **first.settings) as node:
                for cafile in (None, str(second.cert)):
                    with pytest.raises(ConnectionEnded, match=r"is not trusted .*--cafile"):
                        async with StreamrClient(node.addresses["ws"], cafile=cafile):
                            pass

        asyncio.run(main())

    def test_cafiles_that_cannot_be_used(self, first: Pair, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="cannot be read"):
            StreamrClient("wss://x", cafile=str(tmp_path / "gone"))
        with pytest.raises(UserError, match="holds no certificate"):
            StreamrClient("wss://x", cafile=str(first.key))

    def test_the_commands(self, first: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
        with node_process(tmp_path / "node", *first.flags) as node:
            trusted = ["--url", node.url, "--cafile", str(first.cert)]
            assert node.url.startswith("wss://")
            assert run("pub", "s", "[1]", *trusted).stdout == "stored\n"
            assert "[1]" in run("resend", "s", "--last", "1", *trusted).stdout
            ended = run("resend", "s", "--last", "1", "--url", node.url)
            assert (ended.returncode, ended.stdout) == (1, "")
            assert "--cafile" in ended.stderr
            assert node.stop() == 0
