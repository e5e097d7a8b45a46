"""Login in its three ways, sessions and their end, users and their keys."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from catchment.core.accounts import CHALLENGE_US, SESSION_US
from catchment.net.ingest import now_us
from catchment.net.server import Node

from .resthelp import ALICE, BOB, Rest, add_user, rest_node

Conversation = Callable[[Node, Rest], Awaitable[None]]


@pytest.fixture(params=["open", "closed"])
def talk(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Conversation], None]:
    """Runs a conversation with a node of either mode."""

    def run(conversation: Conversation) -> None:
        async def main() -> None:
            async with rest_node(tmp_path, access=request.param) as (node, rest):
                await conversation(node, rest)

        asyncio.run(main())

    return run


Talk = Callable[[Conversation], None]


def test_a_signed_challenge_opens_a_session(talk: Talk) -> None:
    async def conversation(node: Node, rest: Rest) -> None:
        asked = await rest.ok("POST", f"/login/challenge/{ALICE.address}")
        assert sorted(asked) == ["challenge", "expires", "id"]
        assert len(asked["id"]) == 30
        assert asked["id"].isalnum()
        assert asked["challenge"] == (
            f"This is a challenge created by Streamr for address {ALICE.address} to prove private key ownership by "
            f"signing this random data with it:\n\n{asked['id']}"
        )
        answer = {"challenge": asked, "signature": ALICE.sign(asked["challenge"].encode()), "address": ALICE.address}
        given = await rest.ok("POST", "/login/response", answer)
        assert sorted(given) == ["expires", "token"]
        assert len(given["token"]) == 64
        assert given["token"].isalnum()
        assert given["expires"].endswith("Z")
        me = await Rest(node, f"Bearer {given['token']}").ok("GET", "/users/me")
        assert me == {"name": ALICE.address, "username": ALICE.address}

    talk(conversation)


def test_a_challenge_counts_once(talk: Talk) -> None:
    async def conversation(node: Node, rest: Rest) -> None:
        asked = await rest.ok("POST", f"/login/challenge/{ALICE.address}")
        answer = {"challenge": asked, "signature": ALICE.sign(asked["challenge"].encode()), "address": ALICE.address}
        await rest.ok("POST", "/login/response", answer)
        again = await rest.post("/login/response", answer)
        assert (again.status, again.code) == (401, "AUTHENTICATION_FAILED")

    talk(conversation)


def test_a_challenge_lasts_five_minutes(talk: Talk) -> None:
    async def conversation(node: Node, rest: Rest) -> None:
        start = now_us()
        node.clock = lambda: start
        asked = await rest.ok("POST", f"/login/challenge/{ALICE.address}")
        answer = {"challenge": asked, "signature": ALICE.sign(asked["challenge"].encode()), "address": ALICE.address}
        node.clock = lambda: start + CHALLENGE_US
        assert (await rest.post("/login/response", answer)).status == 401

    talk(conversation)


@pytest.mark.parametrize("change", ["signer", "address", "text", "id", "signature"])
def test_an_answer_that_proves_nothing_is_refused(talk: Talk, change: str) -> None:
    async def conversation(node: Node, rest: Rest) -> None:
        asked = await rest.ok("POST", f"/login/challenge/{ALICE.address}")
        signer = BOB if change == "signer" else ALICE
        text = "something else" if change == "text" else asked["challenge"]
        answer = {
            "challenge": {**asked, "id": "x" * 30} if change == "id" else {**asked, "challenge": text},
            "signature": "0x00" if change == "signature" else signer.sign(text.encode()),
            "address": BOB.address if change == "address" else ALICE.address,
        }
        refused = await rest.post("/login/response", answer)
        assert (refused.status, refused.code) == (401, "AUTHENTICATION_FAILED")
        assert b'catchment_access_logins_total{reason="challenge_refused"}' in node.metrics()

    talk(conversation)


def test_an_address_in_checksum_case_is_the_same_address(talk: Talk) -> None:
    async def conversation(node: Node, rest: Rest) -> None:
        odd = "0x" + ALICE.address[2:].upper()
        asked = await rest.ok("POST", f"/login/challenge/{odd}")
        assert odd in asked["challenge"]
        answer = {"challenge": asked, "signature": ALICE.sign(asked["challenge"].encode()), "address": odd}
        token = (await rest.ok("POST", "/login/response", answer))["token"]
        assert (await Rest(node, f"Bearer {token}").ok("GET", "/users/me"))["username"] == ALICE.address

    talk(conversation)


@pytest.mark.parametrize("address", ["nobody", "0x12", "0x" + "zz" * 20, "%00", "0x" + "a" * 5000])
def test_a_challenge_needs_an_address(talk: Talk, address: str) -> None:
    async def conversation(node: Node, rest: Rest) -> None:
        refused = await rest.post(f"/login/challenge/{address}")
        assert (refused.status, refused.code) == (400, "VALIDATION_ERROR")

    talk(conversation)


def test_api_keys_and_passwords_open_sessions(talk: Talk) -> None:
    async def conversation(node: Node, rest: Rest) -> None:
        add_user(node, "alice", password="open sesame", key="k3y")
        by_key = await rest.ok("POST", "/login/apikey", {"apiKey": "k3y"})
        by_password = await rest.ok("POST", "/login/password", {"username": "alice", "password": "open sesame"})
        for given in (by_key, by_password):
            me = await Rest(node, f"Bearer {given['token']}").ok("GET", "/users/me")
            assert me["username"] == "alice"
        assert (await Rest(node, "token k3y").ok("GET", "/users/me"))["username"] == "alice"

    talk(conversation)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/login/apikey", {"apiKey": "other"}),
        ("/login/apikey", {"apiKey": ""}),
        ("/login/password", {"username": "alice", "password": "wrong"}),
        ("/login/password", {"username": "nobody", "password": "open sesame"}),
        ("/login/password", {"username": "passwordless", "password": ""}),
    ],
)
def test_wrong_secrets_are_refused(talk: Talk, path: str, body: object) -> None:
    async def conversation(node: Node, rest: Rest) -> None:
        add_user(node, "alice", password="open sesame", key="k3y")
        add_user(node, "passwordless")
        refused = await rest.post(path, body)
        assert (refused.status, refused.code) == (401, "AUTHENTICATION_FAILED")

    talk(conversation)


def test_passwords_cannot_be_tried_without_end(talk: Talk) -> None:
    async def conversation(node: Node, rest: Rest) -> None:
        start = now_us()
        node.clock = lambda: start
        for _ in range(20):
            assert node.limits.passwords.allows("127.0.0.1", 0, start)
        refused = await rest.post("/login/password", {"username": "alice", "password": "x"})
        assert (refused.status, refused.code) == (429, "TOO_MANY_TRIES")
        node.clock = lambda: start + 60_000_000
        assert (await rest.post("/login/password", {"username": "alice", "password": "x"})).status == 401

    talk(conversation)


def test_challenges_of_one_address_do_not_push_out_those_of_others(talk: Talk) -> None:
    async def conversation(node: Node, rest: Rest) -> None:
        start = now_us()
        node.clock = lambda: start
        for _ in range(1000):
            assert node.limits.challenges.allows("127.0.0.1", 0, start)
        refused = await rest.post(f"/login/challenge/{ALICE.address}")
        assert (refused.status, refused.code) == (429, "TOO_MANY_TRIES")

    talk(conversation)


def test_a_session_ends_three_hours_after_its_last_use(talk: Talk) -> None:
    async def conversation(node: Node, rest: Rest) -> None:
        start = now_us()
        node.clock = lambda: start
        alice = await rest.login(ALICE)
        for hours in (2, 4, 6):
            node.clock = lambda hours=hours: start + hours * 3_600_000_000  # type: ignore[misc]
            await alice.ok("GET", "/users/me")
        node.clock = lambda: start + 6 * 3_600_000_000 + SESSION_US
        ended = await alice.get("/users/me")
        assert (ended.status, ended.code) == (401, "AUTHENTICATION_FAILED")

    talk(conversation)


def test_logging_out_ends_the_session(talk: Talk) -> None:
    async def conversation(node: Node, rest: Rest) -> None:
        alice = await rest.login(ALICE)
        assert (await alice.post("/logout")).status == 204
        assert (await alice.get("/users/me")).status == 401
        assert (await alice.post("/logout")).status == 401
        assert (await rest.post("/logout")).status == 401

    talk(conversation)


@pytest.mark.parametrize("header", ["Basic abc", "Bearer", "token", "", "Bearer  ", "nonsense"])
def test_an_authorization_of_another_kind_is_a_bad_request(talk: Talk, header: str) -> None:
    async def conversation(node: Node, rest: Rest) -> None:
        refused = await Rest(node, header).get("/users/me")
        assert (refused.status, refused.code) == (400, "INVALID_AUTHORIZATION")

    talk(conversation)


def test_users_make_and_delete_their_own_keys(talk: Talk) -> None:
    async def conversation(node: Node, rest: Rest) -> None:
        alice, bob = await rest.login(ALICE), await rest.login(BOB)
        made = await alice.ok("POST", "/users/me/keys", {"name": "for my sensor"})
        secret = made["id"]
        assert (await Rest(node, f"token {secret}").ok("GET", "/users/me"))["username"] == ALICE.address
        (listed,) = await alice.ok("GET", "/users/me/keys")
        assert listed == {"id": made["keyId"], "name": "for my sensor", "user": ALICE.address}
        assert secret not in str(listed)
        assert await bob.ok("GET", "/users/me/keys") == []
        assert (await bob.delete(f"/users/me/keys/{listed['id']}")).status == 404
        assert (await alice.delete(f"/users/me/keys/{listed['id']}")).status == 204
        assert (await Rest(node, f"token {secret}").get("/users/me")).status == 401
        assert (await rest.post("/users/me/keys")).status == 401

    talk(conversation)


def test_many_users_log_in_at_once(talk: Talk) -> None:
    async def conversation(node: Node, rest: Rest) -> None:
        sessions = await asyncio.gather(*(rest.login(ALICE if n % 2 else BOB) for n in range(20)))
        names = await asyncio.gather(*(session.ok("GET", "/users/me") for session in sessions))
        assert [me["username"] for me in names] == [BOB.address, ALICE.address] * 10
        assert len({session.authorization for session in sessions}) == 20

    talk(conversation)
