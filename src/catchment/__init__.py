"""Catchment: one node for signed publish/subscribe streams, and the lake they drain into."""

from __future__ import annotations

__version__ = "0.1.0"
