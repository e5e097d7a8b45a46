"""What the REST pages share: routing, bodies, callers, and errors as JSON.

A page is a function from node and request to a response. Stream ids may hold slashes, so paths are matched as they
were sent, before percent-decoding; ids of older clients, which do not encode them, are found all the same. Faults
become `{code, message, error}` in one place (clients read `code`, brokers answered with `error`).
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import unquote

import msgspec
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from catchment.core.access import Access, Caller
from catchment.errors import OurFault, PeerFault
from catchment.net.ingest import Ingest
from catchment.net.registrar import Registrar
from catchment.net.resend import Resender
from catchment.web.limits import RestLimits
from catchment.wire.streamr.kinds import ErrorCode

log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_BODY: Final = 256 * 1024
"""Bytes of a request that describes something; data has a limit of its own."""

BODY_SECONDS: Final = 30
"""Time for a request's body (facts/reliability.md, "Slow-loris")."""

_Body = TypeVar("_Body")


class RestNode(Protocol):
    """What the pages need of a node."""

    access: Access
    registrar: Registrar
    ingest: Ingest
    resender: Resender
    limits: RestLimits
    clock: Callable[[], int]
    """UTC microseconds."""

    def info(self) -> Mapping[str, object]:
        """Who this node is and what it did."""


Page = Callable[[RestNode, Request], Awaitable[Response]]


class RestFault(PeerFault):
    """A refusal with its HTTP status."""

    def __init__(self, status: int, code: str, message: str, **more: str) -> None:
        super().__init__(message, code=code)
        self.status = status
        self.more = more


STATUS: Final[Mapping[str, int]] = {
    ErrorCode.AUTHENTICATION_FAILED: 401,
    ErrorCode.PERMISSION_DENIED: 403,
    ErrorCode.NOT_FOUND: 404,
}
"""Of faults that come from below; 400 for any other code."""


def json_response(value: object, status: int = 200) -> Response:
    """A value as JSON."""
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def no_content() -> Response:
    """Done, nothing to say."""
    return Response(status_code=204)


def iso(milliseconds: int) -> str:
    """A time as the clients parse it."""
    made = datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")
    return made.replace("+00:00", "Z")


def validation(message: str) -> RestFault:
    """The request says something it may not say; clients look for this code."""
    return RestFault(400, "VALIDATION_ERROR", message)


def not_permitted(caller: Caller, stream_id: str, operation: str) -> RestFault:
    """A permission is missing."""
    who = f"User {caller.user}" if caller.user is not None else "Non-authenticated user"
    return RestFault(
        403,
        "NOT_PERMITTED",
        f"{who} does not have permission {operation} for stream {stream_id}.",
        fault="operation",
        operation=operation,
    )


def parameter(request: Request, name: str) -> str:
    """A part of the path."""
    found: str = request.path_params[name]
    return found


def caller_of(node: RestNode, request: Request) -> Caller:
    """Who asks: "Bearer" and a session token, or "token" and an API or stream key (facts/streamr.md, section 9).

    Raises:
        PeerFault: the header is of neither form, or nobody is known by it.
    """
    header = request.headers.get("authorization")
    if header is None:
        return node.access.identify(None, None, node.clock())
    scheme, _, secret = header.partition(" ")
    secret = secret.strip()
    if scheme.lower() == "bearer" and secret:
        return node.access.identify(secret, None, node.clock())
    if scheme.lower() == "token" and secret:
        return node.access.identify(None, secret, node.clock())
    raise RestFault(
        400, "INVALID_AUTHORIZATION", "The Authorization header is neither 'Bearer <session token>' nor 'token <key>'."
    )


def sender_of(request: Request) -> str:
    """The address a request comes from."""
    return request.client.host if request.client is not None else "?"


def user_of(node: RestNode, request: Request) -> str:
    """The user who asks, where one is needed.

    Raises:
        PeerFault: nobody, or only the holder of a stream's key.
    """
    user = caller_of(node, request).user
    if user is None:
        raise RestFault(401, "NOT_AUTHENTICATED", "Log in first: this needs a user.")
    return user


async def body_of(request: Request, limit: int = MAX_BODY) -> bytes:
    """The body, bounded in size and time.

    Raises:
        RestFault: it is too large or too slow.
    """
    too_large = RestFault(413, "BODY_TOO_LARGE", f"The body is larger than {limit} bytes.")
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared[:20]) > limit:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limit:
                    raise too_large
    except TimeoutError:
        raise RestFault(408, "BODY_TOO_SLOW", f"The body did not come within {BODY_SECONDS} seconds.") from None
    return bytes(body)


async def json_body(request: Request, kind: type[_Body]) -> _Body:
    """The body as a value of `kind`; an empty one counts as an empty object.

    Raises:
        RestFault: it is too large, no JSON, or not what the page takes.
    """
    body = await body_of(request) or b"{}"
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise validation(f"The body is not what this page takes: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RestFault(400, "INVALID_JSON", f"The body is not valid JSON: {error}") from None


class Route:
    """A path with its parameters in braces, and a page for each method."""

    def __init__(self, path: str, **pages: Page) -> None:
        self.path = path
        self.pages = {method.upper(): page for method, page in pages.items()}
        # Only a stream's id may hold slashes.
        pattern = re.sub(
            r"\{(\w+)\}", lambda found: rf"(?P<{found[1]}>{'[^/].*' if found[1] == 'id' else '[^/]+'})", path
        )
        self.pattern = re.compile(pattern)


def make_router(node: RestNode, routes: Sequence[Route], prefix: str) -> App:
    """The application that answers below `prefix`; the first route that fits counts."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        response = await _answer(node, routes, prefix, request)
        try:
            await response(scope, receive, send)
        except ClientDisconnect:
            log.debug("a client went away before its answer")

    return CORSMiddleware(
        _one_request_a_connection(app),
        allow_origins=["*"],
        allow_methods=["GET", "POST", "PUT", "DELETE"],
        allow_headers=["*"],
        max_age=3600,
    )


def _one_request_a_connection(app: App) -> App:
    """The ten seconds for a request's head (net/http.py) then hold for every request."""

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        async def closing(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message.get("headers", ()),
                    (b"connection", b"close"),
                    (b"cache-control", b"no-store"),
                    (b"x-content-type-options", b"nosniff"),
                ]
            await send(message)

        await app(scope, receive, closing)

    return wrapped


async def _answer(node: RestNode, routes: Sequence[Route], prefix: str, request: Request) -> Response:
    try:
        page = _find(routes, prefix, request)
        return await page(node, request)
    except PeerFault as fault:
        return fault_response(fault)
    except ClientDisconnect:
        return no_content()
    except OurFault as fault:
        log.error("a request could not be answered: %s", fault)
        return fault_response(RestFault(503, "UNAVAILABLE", "The node cannot do this at the moment. Try again later."))
    except Exception:
        log.exception("a page broke")
        return fault_response(RestFault(500, "INTERNAL_ERROR", "Something broke in the node; its log says what."))


def fault_response(fault: PeerFault) -> Response:
    """A refusal as the clients expect it."""
    more = fault.more if isinstance(fault, RestFault) else {}
    status = fault.status if isinstance(fault, RestFault) else STATUS.get(fault.code, 400)
    return json_response({"code": fault.code, "message": fault.message, "error": fault.message, **more}, status)


def _find(routes: Sequence[Route], prefix: str, request: Request) -> Page:
    raw: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
    path = raw.partition(b"?")[0].decode("latin-1").removeprefix(prefix)
    for route in routes:
        found = route.pattern.fullmatch(path)
        if found is None:
            continue
        page = route.pages.get("GET" if request.method == "HEAD" else request.method)
        if page is None:
            allowed = ", ".join(sorted(route.pages))
            raise RestFault(405, "METHOD_NOT_ALLOWED", f"This page answers {allowed}, not {request.method[:20]}.")
        try:
            request.scope["path_params"] = {
                name: unquote(value, errors="strict") for name, value in found.groupdict().items()
            }
        except UnicodeDecodeError:
            raise validation("The path is not UTF-8 behind its percent signs.") from None
        return page
    raise RestFault(404, "NOT_FOUND", f"There is nothing at {path[:200]}.")
