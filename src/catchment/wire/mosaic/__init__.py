"""Mosaic: records, filters, frames, keys and times as bytes and as values."""
