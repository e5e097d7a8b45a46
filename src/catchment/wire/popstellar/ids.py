"""The hash of the protocol, and the formula of every id (facts/popstellar.md, section 2).

All are HashLen of the document ("Concatenation for hashing"): SHA-256 over each text behind its length in bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from catchment.wire.popstellar.fields import encode_base64, fault


def hash_len(*texts: str) -> str:
    """HashLen, as base64url.

    Raises:
        PeerFault: a text holds half of a surrogate pair, which has no UTF-8 form.
    """
    digest = hashlib.sha256()
    for text in texts:
        try:
            data = text.encode()
        except UnicodeEncodeError:
            raise fault("A text holds half of a surrogate pair.") from None
        digest.update(b"%d" % len(data))
        digest.update(data)
    return encode_base64(digest.digest())


def message_id(data: str, signature: str) -> str:
    """Of a message object; both as the texts they are sent as (document, "Mid-level communication")."""
    return hash_len(data, signature)


def lao_id(organizer: str, creation: int, name: str) -> str:
    """Of a LAO."""
    return hash_len(organizer, str(creation), name)


def roll_call_id(lao: str, creation: int, name: str) -> str:
    """Of a roll call that is created."""
    return hash_len("R", lao, str(creation), name)


def roll_call_update_id(lao: str, previous: str, at: int) -> str:
    """Of an opening, reopening or closing; `previous` is the id it follows."""
    return hash_len("R", lao, previous, str(at))


def meeting_id(lao: str, creation: int, name: str) -> str:
    """Of a meeting."""
    return hash_len("M", lao, str(creation), name)


def election_id(lao: str, created_at: int, name: str) -> str:
    """Of an election."""
    return hash_len("Election", lao, str(created_at), name)


def question_id(election: str, question: str) -> str:
    """Of a question of an election."""
    return hash_len("Question", election, question)


def vote_id(election: str, question: str, vote: int | str) -> str:
    """Of one vote: an index in an open ballot, the encrypted text in a secret one."""
    return hash_len("Vote", election, question, str(vote))


def registered_votes(vote_ids: Iterable[str]) -> str:
    """What the end of an election says about the votes it counts: the hash of their ids in ascending order."""
    return hash_len(*sorted(vote_ids))


def consensus_instance_id(kind: str, subject: str, name: str) -> str:
    """Of a consensus about one property of one object."""
    return hash_len("consensus", kind, subject, name)
