"""The HTTP side of a node as an ASGI application: health, readiness, metrics, information.

Plain functions from a `NodeView` to a response; the table at the end is the whole of the routing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final, Protocol

import msgspec

from catchment import __version__
from catchment.web import streamr_rest, tracker
from catchment.web.rest import RestNode

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class NodeView(Protocol):
    """What the pages show of a node."""

    def checks(self) -> Mapping[str, str]:
        """Name of each readiness check -> "ok", or what is wrong."""

    def info(self) -> Mapping[str, object]:
        """Who this node is and what it speaks."""

    def tracking(self) -> tracker.TrackerView | None:
        """The tracker, where the node is one."""

    def metrics(self) -> bytes:
        """All metrics in Prometheus' text format."""


class Node(NodeView, RestNode, Protocol):
    """What all pages need of a node."""


class Response(msgspec.Struct, frozen=True):
    """One answer."""

    body: bytes
    status: int = 200
    content_type: str = "application/json"


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value) + b"\n", status)


def healthz(node: NodeView) -> Response:
    """The process is up and its event loop turns."""
    return _json({"status": "ok"})


def readyz(node: NodeView) -> Response:
    """Every part does what it should; 503 and the reason when one does not."""
    checks = node.checks()
    ready = all(result == "ok" for result in checks.values())
    return _json({"ready": ready, "checks": checks}, 200 if ready else 503)


def metrics_page(node: NodeView) -> Response:
    """Prometheus' text format."""
    return Response(node.metrics(), content_type="text/plain; version=0.0.4; charset=utf-8")


def info(node: NodeView) -> Response:
    """Version, identity, protocols and offsets."""
    return _json({"name": "catchment", "version": __version__, **node.info()})


ROUTES: Final[Mapping[str, Callable[[NodeView], Response]]] = {
    "/healthz": healthz,
    "/readyz": readyz,
    "/metrics": metrics_page,
    "/api/info": info,
}


def make_app(node: Node) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    """The application of one node."""
    rest = streamr_rest.make_app(node)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        if scope["path"].startswith(streamr_rest.PREFIX + "/"):
            await rest(scope, receive, send)
            return
        sent = scope.get("raw_path") or scope["path"].encode()
        response = _answer(node, scope["method"], scope["path"], sent.decode("ascii", "replace").partition("?")[0])
        headers = [
            (b"content-type", response.content_type.encode()),
            (b"content-length", str(len(response.body)).encode()),
            (b"cache-control", b"no-store"),
            (b"x-content-type-options", b"nosniff"),
            # One request a connection: the ten seconds for its head (net/http.py) then hold for every request.
            (b"connection", b"close"),
        ]
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else response.body})

    return app


def _answer(node: NodeView, method: str, path: str, sent: str) -> Response:
    page = ROUTES.get(path)
    tracking = node.tracking()
    if page is None and tracking is not None and path.startswith(tracker.PREFIXES):
        found = tracker.answer(tracking, sent)
        if found is not None and method in ("GET", "HEAD"):
            return _json(found)
    if page is None:
        return _json({"error": f"There is nothing at {path[:200]}.", "pages": sorted(ROUTES)}, 404)
    if method not in ("GET", "HEAD"):
        return _json({"error": f"{path} answers GET only."}, 405)
    return page(node)
