"""What a decoder's refusal says, taken apart."""

from __future__ import annotations

from typing import Final

import msgspec

MAX_TEXT: Final = 300
"""Characters of a refusal that are repeated to the peer."""

_MARK: Final = " - at `"


def split_path(error: msgspec.ValidationError) -> tuple[str, str]:
    """What is wrong, bounded, and the path of the value it is wrong with ("" when the decoder names none).

    The text may repeat what a peer sent, up to a whole frame. So it is cut at its last mark, in one pass: a pattern
    that looks for the mark from the left can be fed marks that lead nowhere, at quadratic cost.
    """
    text = str(error)
    before, mark, path = text.rpartition(_MARK)
    if not mark or not path.endswith("`"):
        return text[:MAX_TEXT], ""
    # A wrong key of an object is named as "`key` in `$.path`".
    return before[:MAX_TEXT], path.rpartition("`$")[2].removeprefix("$")[:-1][:MAX_TEXT]
