"""Arrow columns from sequences of Python values, straight from their buffers.

`pyarrow.array` would do the same, but the first call of it imports pandas where that is installed (about a second of
CPU and 40 MB in every node), and it looks at each value's type again. Here the type is known.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import cast

import pyarrow as pa


def column(kind: pa.DataType, values: Sequence[object]) -> pa.Array:
    """An array of text, bytes or whole numbers (timestamps and dates are whole numbers); None is null in numbers."""
    return maker(kind)(values)


def maker(kind: pa.DataType) -> Callable[[Sequence[object]], pa.Array]:
    """What makes arrays of one type, for columns that are made again and again."""
    if kind == pa.string():
        return _text
    if kind == pa.binary():
        return partial(_variable, kind)
    return partial(_numbers, kind, {32: "i", 64: "q"}[kind.bit_width])


def repeated(kind: pa.DataType, value: bytes, count: int) -> pa.Array:
    """An array of the same text or bytes again and again."""
    ends = array("i", range(0, len(value) * count + 1, len(value)) if value else [0] * (count + 1))
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(ends), pa.py_buffer(value * count)])


def _numbers(kind: pa.DataType, code: str, values: Sequence[object]) -> pa.Array:
    validity = None
    if None in values:
        validity = _bitmap(values)
        values = [0 if value is None else value for value in values]
    data = pa.py_buffer(array(code, cast(Sequence[int], values)))
    return pa.Array.from_buffers(kind, len(values), [validity, data])


def _text(values: Sequence[object]) -> pa.Array:
    """Text repeats itself in every column of the log: each is encoded once."""
    texts = cast(Sequence[str], values)
    places = {text: at for at, text in enumerate(set(texts))}
    if len(places) == 1:
        return repeated(pa.string(), texts[0].encode(), len(texts))
    words = _variable(pa.string(), [text.encode() for text in places])
    indices = array("i", [places[text] for text in texts])
    return words.take(pa.Array.from_buffers(pa.int32(), len(texts), [None, pa.py_buffer(indices)]))


def _variable(kind: pa.DataType, values: Sequence[object]) -> pa.Array:
    known = cast(Sequence[bytes], values)
    ends = array("i", accumulate(map(len, known), initial=0))
    return pa.Array.from_buffers(kind, len(known), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(known))])


def _bitmap(values: Sequence[object]) -> pa.Buffer:
    """A bit for each value that is not None."""
    known = pa.py_buffer(bytes([value is not None for value in values]))
    bits = pa.Array.from_buffers(pa.uint8(), len(values), [None, known]).cast(pa.bool_())
    return bits.buffers()[1]
