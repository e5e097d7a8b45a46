"""Login, sessions, users and their API keys (facts/streamr.md, section 9).

Whoever proves an address by signing a challenge is that address; names with passwords and API keys are made by the
operator (`catchment users`) and by users themselves. Refusals do not say what was wrong, and cost the same.
"""

from __future__ import annotations

import os
from typing import Annotated, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from catchment import metrics, model
from catchment.core import accounts
from catchment.core.accounts import Key
from catchment.crypto import ethereum, passwords
from catchment.web.rest import (
    RestFault,
    RestNode,
    Route,
    iso,
    json_body,
    json_response,
    no_content,
    parameter,
    sender_of,
    user_of,
    validation,
)

Short = Annotated[str, msgspec.Meta(max_length=1024)]
MAX_KEYS: Final = 1000
"""Keys of one user or stream."""


class _Challenge(msgspec.Struct):
    id: Short
    challenge: Short = ""
    expires: object = None


class _ChallengeAnswer(msgspec.Struct):
    challenge: _Challenge
    signature: Short
    address: Short


class _ApiKey(msgspec.Struct, rename="camel"):
    api_key: Short


class _Password(msgspec.Struct):
    username: Short
    password: Annotated[str, msgspec.Meta(max_length=passwords.MAX_PASSWORD)]


class _NewKey(msgspec.Struct):
    name: Short = ""


async def challenge(node: RestNode, request: Request) -> Response:
    """POST /login/challenge/:address."""
    address = parameter(request, "address")
    if ethereum.parse_address(address) is None:
        raise validation(f"{address[:100]!r} is no Ethereum address.")
    if not node.limits.challenges.allows(sender_of(request), 0, node.clock()):
        metrics.LOGINS.labels("challenge_too_many").inc()
        raise RestFault(429, "TOO_MANY_TRIES", "Too many challenges were asked for from your address. Wait a minute.")
    made = node.access.accounts.challenge(address, random_name(accounts.CHALLENGE_LENGTH), node.clock())
    return json_response({"id": made.id, "challenge": made.text, "expires": iso(made.expires // 1000)})


async def response(node: RestNode, request: Request) -> Response:
    """POST /login/response: the challenge, signed."""
    answer = await json_body(request, _ChallengeAnswer)
    asked = node.access.accounts.take_challenge(answer.challenge.id, node.clock())
    if (
        asked is None
        or asked.address != model.canonical_publisher(answer.address)
        or not ethereum.signed_by(asked.address, asked.text.encode(), answer.signature)
    ):
        raise _refused("challenge", "The challenge is unknown, has expired, or was signed by another address.")
    return _logged_in(node, asked.address, "challenge")


async def api_key(node: RestNode, request: Request) -> Response:
    """POST /login/apikey."""
    asked = await json_body(request, _ApiKey)
    await node.registrar.reload()
    caller = node.access.accounts.caller_of_key(asked.api_key)
    if caller is None or caller.user is None:
        raise _refused("apikey", "The API key is unknown.")
    return _logged_in(node, caller.user, "apikey")


async def password(node: RestNode, request: Request) -> Response:
    """POST /login/password."""
    asked = await json_body(request, _Password)
    if not node.limits.passwords.allows(sender_of(request), 0, node.clock()):
        metrics.LOGINS.labels("password_too_many").inc()
        raise RestFault(429, "TOO_MANY_TRIES", "Too many passwords were tried from your address. Wait a minute.")
    user = await node.registrar.user_with_password(asked.username, asked.password)
    if user is None:
        raise _refused("password", "User name and password do not match.")
    return _logged_in(node, user.name, "password")


async def logout(node: RestNode, request: Request) -> Response:
    """POST /logout: the token of the request is worth nothing from now on."""
    user_of(node, request)
    token = request.headers.get("authorization", "").partition(" ")[2].strip()
    node.access.accounts.close_session(token)
    await node.registrar.save()
    return no_content()


async def me(node: RestNode, request: Request) -> Response:
    """GET /users/me."""
    user = user_of(node, request)
    return json_response({"name": user, "username": user})


async def my_keys(node: RestNode, request: Request) -> Response:
    """GET /users/me/keys: what they are called; the keys themselves are not known here."""
    user = user_of(node, request)
    return json_response([shown_key(key) for key in node.access.accounts.keys(user=user)])


async def new_key(node: RestNode, request: Request) -> Response:
    """POST /users/me/keys: the only time the key is shown."""
    user = user_of(node, request)
    asked = await json_body(request, _NewKey)
    return await make_key(node, Key("", "", asked.name, user=user))


async def drop_my_key(node: RestNode, request: Request) -> Response:
    """DELETE /users/me/keys/:key."""
    user = user_of(node, request)
    return await drop_key(node, request, node.access.accounts.keys(user=user))


async def make_key(node: RestNode, wanted: Key) -> Response:
    """Give a key a secret and keep its hash."""
    table = node.access.accounts
    if len(table.keys(user=wanted.user, stream=wanted.stream)) >= MAX_KEYS:
        raise validation(f"There are {MAX_KEYS} keys already; delete one first.")
    secret = random_name(accounts.TOKEN_LENGTH)
    key = new_key_of(wanted, secret)
    table.put_key(key)
    await node.registrar.save()
    return json_response({**shown_key(key), "id": secret, "keyId": key.id})


def new_key_of(wanted: Key, secret: str) -> Key:
    """The key with this secret; its public id says nothing about it."""
    return msgspec.structs.replace(wanted, id=random_name(12), digest=accounts.digest_of(secret))


async def drop_key(node: RestNode, request: Request, keys: list[Key]) -> Response:
    """Forget one of these keys, named by its public id or by itself."""
    asked = parameter(request, "key")
    for key in keys:
        if key.id == asked or key.digest == accounts.digest_of(asked):
            node.access.accounts.drop_key(key)
            if key.stream is not None:
                node.registrar.on_change(key.stream)
            await node.registrar.save()
            return no_content()
    raise RestFault(404, "NOT_FOUND", "There is no such key.")


def shown_key(key: Key) -> dict[str, object]:
    """What may be told of a key."""
    shown: dict[str, object] = {"id": key.id, "name": key.name, "user": key.user}
    if key.stream is not None:
        shown |= {"stream": key.stream, "operations": key.operations}
    return shown


def random_name(length: int) -> str:
    """So many random letters and digits."""
    return accounts.alphanumeric(os.urandom(4 * length), length)


def _logged_in(node: RestNode, user: str, method: str) -> Response:
    token = random_name(accounts.TOKEN_LENGTH)
    session = node.access.accounts.open_session(user, token, node.clock())
    metrics.LOGINS.labels(f"{method}_ok").inc()
    return json_response({"token": token, "expires": iso(session.expires // 1000)})


def _refused(method: str, text: str) -> RestFault:
    metrics.LOGINS.labels(f"{method}_refused").inc()
    return RestFault(401, "AUTHENTICATION_FAILED", text)


ROUTES: Final = (
    Route("/login/challenge/{address}", post=challenge),
    Route("/login/response", post=response),
    Route("/login/apikey", post=api_key),
    Route("/login/password", post=password),
    Route("/logout", post=logout),
    Route("/users/me", get=me),
    Route("/users/me/keys", get=my_keys, post=new_key),
    Route("/users/me/keys/{key}", delete=drop_my_key),
)
