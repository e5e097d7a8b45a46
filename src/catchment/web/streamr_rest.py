"""Streamr's REST interface under /api/v1, as the published clients call it (facts/streamr.md, section 9).

The table of routes is here; what each does is in its own module.
"""

from __future__ import annotations

from typing import Final

from catchment.web import streamr_data, streamr_fields, streamr_login, streamr_permissions, streamr_streams
from catchment.web.rest import App, RestNode, make_router

PREFIX: Final = "/api/v1"

ROUTES: Final = (
    *streamr_login.ROUTES,
    *streamr_data.ROUTES,
    *streamr_fields.ROUTES,
    *streamr_permissions.ROUTES,
    *streamr_streams.ROUTES,
    *streamr_streams.LAST,
)
"""The first that fits counts."""


def make_app(node: RestNode) -> App:
    """The application of one node."""
    return make_router(node, ROUTES, PREFIX)
