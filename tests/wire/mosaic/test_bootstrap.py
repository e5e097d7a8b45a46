"""Bootstraps: texts and items, as the vectors have them, and everything they may not be."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchment.crypto import ed25519
from catchment.errors import PeerFault
from catchment.wire.mosaic import bootstrap
from catchment.wire.mosaic.bootstrap import Item, Salt, Usage, Use

from .conftest import Case

SIGNER = ed25519.Signer(b"\x07" * 32)
SERVER = b"\x16\x11" + bytes(30)
URLS = ["mosaic://127.0.0.1:1320", "mosaicwss://localhost", "mosaictcp://[::1]:1320/"]


def test_shared_texts(shared_bootstrap: str) -> None:
    if shared_bootstrap.startswith("S"):
        assert bootstrap.read_server(shared_bootstrap) == shared_bootstrap.split("\n")[1:]
    else:
        uses = bootstrap.read_user(shared_bootstrap)
        assert [use.usage for use in uses] == [Usage.OUTBOX | Usage.INBOX, Usage.OUTBOX]


def test_shared_items(shared_item: Case) -> None:
    salt = Salt(shared_item["salt"].encode())
    item = Item(
        bytes.fromhex(shared_item["public_key_hex"]),
        salt,
        shared_item["seq"],
        shared_item["value"],
        bytes.fromhex(shared_item["signature_hex"]),
    )
    assert item.target.hex() == shared_item["target_sha1_hex"]
    assert bootstrap.signable(salt, item.sequence, item.text).hex() == shared_item["signable_hex"]
    bootstrap.check_item(item)


def test_what_is_written_is_read() -> None:
    assert bootstrap.read_server(bootstrap.server_text(URLS)) == URLS
    uses = [Use(Usage.OUTBOX | Usage.INBOX, SERVER), Use(Usage.ENCRYPTION, b"\x01" * 32)]
    text = bootstrap.user_text(uses)
    assert text.split("\n")[1].startswith("3 mosrv0")
    assert bootstrap.read_user(text) == uses
    assert bootstrap.read_server("S") == bootstrap.read_user("U") == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "s",
        "U\nmosaic://host",
        "S\n",
        "S\nmosaic://host\n",
        "S\nmosaic://host ",
        "S \nmosaic://host",
        "S\r\nmosaic://host",
        "S\nftp://host",
        "S\nmosaic://",
        "S\nmosaic://host/path",
        "S\nmosaic://host?query",
        "S\nmosaic://host#part",
        "S\nmosaic://user@host",
        "S\nmosaic://host:0",
        "S\nmosaic://host:99999",
        "S\nmosaic://[broken",
        "S\n" + "\n".join(["mosaic://host"] * 100),
    ],
)
def test_what_is_no_servers_bootstrap(text: str) -> None:
    with pytest.raises(PeerFault):
        bootstrap.read_server(text)


@pytest.mark.parametrize("line", ["0 K", "8 K", "12 K", "K", "1  K", "1K", "1 mosec0" + "y" * 52, "1 mosrv0yy", "a K"])
def test_what_is_no_users_bootstrap(line: str) -> None:
    with pytest.raises(PeerFault):
        bootstrap.read_user("U\n" + line.replace("K", "mosrv0" + "y" * 52))


def test_too_many_servers() -> None:
    line = "1 mosrv0" + "y" * 52
    assert len(bootstrap.read_user("\n".join(["U"] + [line] * 16))) == 16
    with pytest.raises(PeerFault, match=r"16|983"):
        bootstrap.read_user("\n".join(["U"] + [line] * 17))
    with pytest.raises(ValueError, match="16"):
        bootstrap.user_text([Use(Usage.INBOX, SERVER)] * 17)
    with pytest.raises(ValueError, match="use"):
        bootstrap.user_text([Use(Usage(0), SERVER)])
    with pytest.raises(ValueError, match="no Mosaic address"):
        bootstrap.server_text(["wss://old.example"])
    with pytest.raises(ValueError, match="983"):
        bootstrap.server_text(["mosaic://" + "h" * 100] * 10)


def test_items_must_be_signed_by_their_key_under_their_salt_and_sequence() -> None:
    item = bootstrap.make_item(SIGNER, Salt.SERVER, 3, bootstrap.server_text(URLS))
    bootstrap.check_item(item)
    for change in (
        {"sequence": 4},
        {"text": "S"},
        {"public_key": bytes(32)},
        {"signature": bytes(64)},
        {"signature": b""},
        {"salt": Salt.USER},
        {"sequence": 0},
        {"text": "S\nmosaic://\udcff"},
    ):
        with pytest.raises(PeerFault):
            bootstrap.check_item(msgspec.structs.replace(item, **change))
    with pytest.raises(ValueError, match="begins at 1"):
        bootstrap.make_item(SIGNER, Salt.SERVER, 0, "S")


@given(st.text(max_size=200))
def test_nothing_but_a_peers_fault_comes_of_any_text(text: str) -> None:
    for read in (bootstrap.read_server, bootstrap.read_user):
        for letter in ("", "S\n", "U\n", "S\nmosaic://", "U\n1 "):
            try:
                read(letter + text)
            except PeerFault as fault:
                assert fault.code == "INVALID"
