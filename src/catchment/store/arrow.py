"""Arrow columns from lists of Python values, straight from their buffers.

`pyarrow.array` would do the same, but the first call of it imports pandas where that is installed (about a second of
CPU and 40 MB in every node), and it looks at each value's type again. Here the type is known.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import cast

import pyarrow as pa


def column(kind: pa.DataType, values: Sequence[object]) -> pa.Array:
    """An array of text, bytes or whole numbers (timestamps and dates are whole numbers); None is null in numbers."""
    if kind in (pa.string(), pa.binary()):
        return _variable(kind, values)
    code = {32: "i", 64: "q"}[kind.bit_width]
    validity = None
    if None in values:
        validity = _bitmap(values)
        values = [0 if value is None else value for value in values]
    data = pa.py_buffer(array(code, cast(Sequence[int], values)))
    return pa.Array.from_buffers(kind, len(values), [validity, data])


def _variable(kind: pa.DataType, values: Sequence[object]) -> pa.Array:
    if kind == pa.string():
        encoded = [text.encode() for text in cast(Sequence[str], values)]
    else:
        encoded = list(cast(Sequence[bytes], values))
    ends = pa.py_buffer(array("i", accumulate(map(len, encoded), initial=0)))
    return pa.Array.from_buffers(kind, len(encoded), [None, ends, pa.py_buffer(b"".join(encoded))])


def _bitmap(values: Sequence[object]) -> pa.Buffer:
    bits = bytearray((len(values) + 7) // 8)
    for at, value in enumerate(values):
        if value is not None:
            bits[at >> 3] |= 1 << (at & 7)
    return pa.py_buffer(bytes(bits))
