"""Makes the vectors beside it: `python tests/vectors/make_vectors.py`.

Every verdict is written down here by hand, next to what was done to the message; nothing asks the code under test for
its opinion. Only the signing itself is ours (`crypto.ethereum.Signer`, deterministic), and what is signed is put
together here a second time, from the documents. `tests/wire/test_vectors.py` fails when the files are not what this
script makes.

Files:
    ethereum.json: personal_sign by the documented keys below: [{name, private_key, address, payload, signature}]
    streamr_signatures.json: signed bytes and what they prove: [{name, raw, verdict, reason_contains}]
    streamr_versions.json: one message in every version: [{name, shown: {version: array as text}}]
    streamr_control_0_1.json: frames of control 0 and 1: [{name, version, frame, canonical, fields}]
    streamr_control.json: frames of control 2 and what they say: [{name, frame, canonical, fields}], where `canonical`
        says that writing them again gives the same bytes
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from catchment.crypto.ethereum import Signer, keccak256

KEYS = {name: hashlib.sha256(f"catchment test key: {name}".encode()).digest() for name in ("alice", "bob", "carol")}
"""Known to everyone: for tests only."""

SIGNERS = {name: Signer(key) for name, key in KEYS.items()}
ALICE = SIGNERS["alice"].address
ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
"""The order of secp256k1 (SEC 2, section 2.4.1)."""
MAX_SAFE = 2**53 - 1
TIME = 1_700_000_000_000

NAMES = (
    *("version", "id", "prev", "type", "content_type", "encryption"),
    *("group_key_id", "content", "new_group_key", "signature_type", "signature"),
)
ID_NAMES = ["stream", "partition", "timestamp", "sequence", "publisher", "chain"]


def checksum_case(address: str) -> str:
    """An address as EIP-55 writes it."""
    digits = address[2:].lower()
    digest = keccak256(digits.encode()).hex()
    return "0x" + "".join(
        digit.upper() if int(nibble, 16) > 7 else digit for digit, nibble in zip(digits, digest, strict=False)
    )


def message(**changes: Any) -> dict[str, Any]:
    """The elements of a message 32, unsigned as yet."""
    fields: dict[str, Any] = {
        "version": 32,
        "stream": "0xaa/river",
        "partition": 0,
        "timestamp": TIME,
        "sequence": 0,
        "publisher": ALICE,
        "chain": "chain-1",
        "prev": None,
        "type": 27,
        "content_type": 0,
        "encryption": 0,
        "group_key_id": None,
        "content": '{"level":3}',
        "new_group_key": None,
        "signature_type": 2,
        "signature": None,
    }
    assert not set(changes) - set(fields), changes
    return fields | changes


def payload(fields: dict[str, Any]) -> str:
    """What a signature of the message's type covers (Stream Protocol, table `signatureType`)."""
    publisher = fields["publisher"].lower()
    if fields["signature_type"] == 1:
        return "".join(str(part) for part in (fields["stream"], fields["timestamp"], publisher, fields["content"]))
    parts = [fields["stream"], fields["partition"], fields["timestamp"], fields["sequence"], publisher, fields["chain"]]
    parts += fields["prev"] or []
    parts += [fields["content"], fields["new_group_key"] or ""]
    return "".join(str(part) for part in parts)


def signed(*, by: str = "alice", **changes: Any) -> dict[str, Any]:
    """A message with the signature of one of the keys."""
    fields = message(**changes)
    return fields | {"signature": SIGNERS[by].sign(payload(fields).encode())}


def array(fields: dict[str, Any]) -> list[Any]:
    """The elements in their order."""
    return [[fields[part] for part in ID_NAMES] if name == "id" else fields[name] for name in NAMES]


def text(fields: dict[str, Any], **style: Any) -> str:
    """A message as clients write it."""
    return json.dumps(array(fields), **({"ensure_ascii": False, "separators": (",", ":")} | style))


def line(elements: list[Any]) -> str:
    """An array as clients write it."""
    return json.dumps(elements, ensure_ascii=False, separators=(",", ":"))


def documented_legacy() -> dict[str, Any]:
    """A message with the ETH_LEGACY signature of the document, which no client made: it covers the partition."""
    fields = message(signature_type=1, chain="", partition=4)
    covered = [fields[name] for name in ("stream", "partition", "timestamp", "publisher", "content")]
    return fields | {"signature": SIGNERS["alice"].sign("".join(map(str, covered)).encode())}


def with_signature(fields: dict[str, Any], *, r: int | None = None, s: int | None = None, v: int | None = None) -> str:
    """A message whose signature's parts were replaced."""
    made = bytes.fromhex(fields["signature"][2:])
    r = int.from_bytes(made[:32], "big") if r is None else r
    s = int.from_bytes(made[32:64], "big") if s is None else s
    v = made[64] if v is None else v
    return text(fields | {"signature": f"0x{r:064x}{s:064x}{v:02x}"})


def replaced(fields: dict[str, Any], position: int, value: Any) -> str:
    """A message with one element replaced by anything."""
    elements = array(fields)
    elements[position] = value
    return json.dumps(elements, separators=(",", ":"))


def replaced_in_id(fields: dict[str, Any], position: int, value: Any) -> str:
    """A message with one element of its id replaced by anything."""
    elements = array(fields)
    elements[1][position] = value
    return json.dumps(elements, separators=(",", ":"))


def accepted() -> dict[str, str]:
    """Signed by their publisher, however odd they look."""
    plain = signed()
    digits = bytes.fromhex(plain["signature"][2:])
    s, v = int.from_bytes(digits[32:64], "big"), digits[64]
    unicode = signed(stream="strömm/ä", content='{"x":"héllo 😀"}')
    aes = {"encryption": 2, "group_key_id": "key-1", "content": "00" * 16 + "9abef2710b"}
    rotation = '["key-2","' + "0f" * 48 + '"]'
    legacy = signed(signature_type=1, chain="")
    return {
        "plain": text(plain),
        "previous reference": text(signed(prev=[TIME - 1, 4])),
        "previous reference at the same time": text(signed(sequence=2, prev=[TIME, 1])),
        "gap in the sequence": text(signed(sequence=9, prev=[TIME, 1])),
        "unicode in stream and content": text(unicode),
        "unicode as escapes": text(unicode, ensure_ascii=True),
        "white space between elements": text(plain, separators=(" , ", ": ")),
        "line breaks between elements": text(plain, indent=1),
        "solidus as an escape": text(plain).replace("0xaa/river", "0xaa\\/river"),
        "letters as escapes": text(plain).replace("river", "\\u0072iver"),
        "publisher in checksum case": text(signed(publisher=checksum_case(ALICE))),
        "publisher in upper case": text(signed(publisher="0x" + ALICE[2:].upper())),
        "publisher with 0X": text(signed(publisher="0X" + ALICE[2:])),
        "signature without 0x": text(plain | {"signature": plain["signature"][2:]}),
        "signature with 0X": text(plain | {"signature": "0X" + plain["signature"][2:]}),
        "signature in upper case": text(plain | {"signature": "0x" + plain["signature"][2:].upper()}),
        "high s": with_signature(plain, s=ORDER - s, v=v ^ 7),
        "high s, v not turned": with_signature(plain, s=ORDER - s),
        "v is the other one": with_signature(plain, v=27 + (28 - v)),
        "v is 0": with_signature(plain, v=0),
        "v is 1": with_signature(plain, v=1),
        "v is 2": with_signature(plain, v=2),
        "v is 255": with_signature(plain, v=255),
        "encrypted": text(signed(**aes)),
        "encrypted, with a new group key": text(signed(**aes, new_group_key=rotation)),
        "new group key with spaces": text(signed(**aes, new_group_key='["key-2", "0f"]')),
        "group key id is not signed": text(signed(**aes) | {"group_key_id": "another"}),
        "group key request": text(signed(type=28, content='["r","s","PEM",["key-1"]]')),
        "group key response": text(signed(type=29, encryption=1, content='["r","s",[["key-1","0f"]]]')),
        "group key announce": text(signed(type=30, encryption=1, content='["s",[["key-1","0f"]]]')),
        "group key error": text(signed(type=31, content='["r","s","CODE","text",[]]')),
        "another partition": text(signed(partition=99)),
        "greatest numbers": text(signed(partition=MAX_SAFE, timestamp=MAX_SAFE, sequence=MAX_SAFE)),
        "all numbers zero": text(signed(timestamp=0)),
        "no chain": text(signed(chain="")),
        "legacy signature": text(legacy),
        "legacy signature does not cover the partition": text(legacy | {"partition": 5}),
        "nul in the content": text(signed(content='{"a":"\x00"}')),
        "content is not json": text(signed(content="\n\tnot json \u2028")),
        "long content": text(signed(content=json.dumps({"a": "x" * 20_000}))),
        "fields run together: the end of the stream is the partition": text(
            signed(stream="s1", partition=0) | {"stream": "s", "partition": 10}
        ),
        "another publisher": text(signed(publisher=SIGNERS["bob"].address, by="bob")),
        "legacy signature as documented, with the partition": text(documented_legacy()),
        "content as an object": text(plain).replace('"{\\"level\\":3}"', '{"level":3}'),
        "version 31": line(shown(plain, 31)),
        "version 31, encrypted": line(shown(signed(**aes), 31)),
        "version 31, new key and content": line(shown(signed(**aes | {"encryption": 3}), 31)),
        "version 31, key request in the object form": line(shown(signed(type=28, content='{"requestId":"r"}'), 31)),
        "version 31, content as an object": line(shown(plain, 31)).replace('"{\\"level\\":3}"', '{"level":3}'),
        "version 30": line(shown(plain, 30)),
        "version 30 with a previous reference": line(shown(signed(prev=[TIME - 1, 4]), 30)),
        "version 30, legacy signature": line(shown(legacy, 30)),
        "version 29, legacy signature": line(shown(legacy, 29)),
        "version 29, time to live and offsets are not signed": line(
            [*shown(legacy, 29)[:4], 60, 7, 6, *shown(legacy, 29)[7:]]
        ),
        "version 29, current signature of sequence 0 and no chain": line(shown(signed(chain=""), 29)),
    }


def unsigned() -> dict[str, str]:
    """Nothing is claimed, nothing is proved."""
    nothing: dict[str, Any] = {"signature_type": 0}
    return {
        "unsigned": text(message(**nothing, publisher="visitor")),
        "unsigned, no publisher": text(message(**nothing, publisher="", chain="")),
        "unsigned, publisher made of a user name": text(
            message(**nothing, publisher="0x" + hashlib.sha256(b"username").hexdigest())
        ),
        "unsigned key exchange": text(message(**nothing, publisher="visitor", type=28)),
        "version 28": line(shown(message(), 28)),
        "version 29, unsigned": line(shown(message(**nothing, publisher="visitor", chain=""), 29)),
        "version 29, unsigned, no publisher": line(shown(message(**nothing, publisher="", chain=""), 29)),
        "version 30, unsigned": line(shown(message(**nothing, publisher="visitor"), 30)),
        "version 30, publisher and chain null": line(shown(message(**nothing, publisher=None, chain=None), 30)),
        "version 31, signature empty": line(shown(message(**nothing, publisher="visitor", signature=""), 31)),
        "unsigned, publisher not quite an address": text(message(**nothing, publisher="0x" + "a" * 39)),
    }


def unproved() -> dict[str, str]:
    """In the name of an address, which has a key, without its signature."""
    nothing: dict[str, Any] = {"signature_type": 0}
    return {
        "an address, unsigned": text(message(**nothing)),
        "an address in upper case, unsigned": text(message(**nothing, publisher="0X" + "AB" * 20)),
        "an address, unsigned key exchange": text(message(**nothing, type=28)),
    }


def forged() -> dict[str, str]:
    """Signatures that are not the publisher's over this message."""
    plain = signed()
    chained = signed(prev=[TIME - 1, 0])
    rotating = signed(encryption=2, group_key_id="k", content="00ff", new_group_key='["k2","ff"]')
    upper = checksum_case(ALICE)
    fields = message(publisher=upper)
    cased = payload(fields).replace(upper.lower(), upper)
    digest_only = SIGNERS["alice"]._key.sign_recoverable(keccak256(payload(message()).encode()), hasher=None)
    return {
        "another key": text(signed(by="bob")),
        "content changed": text(plain | {"content": '{"level":4}'}),
        "content with a space more": text(plain | {"content": '{"level": 3}'}),
        "stream changed": text(plain | {"stream": "0xaa/rivers"}),
        "partition changed": text(plain | {"partition": 1}),
        "timestamp changed": text(plain | {"timestamp": TIME + 1}),
        "sequence changed": text(plain | {"sequence": 1}),
        "chain changed": text(plain | {"chain": "chain-2"}),
        "publisher changed": text(plain | {"publisher": SIGNERS["bob"].address}),
        "previous reference added": text(plain | {"prev": [TIME - 1, 0]}),
        "previous reference changed": text(chained | {"prev": [TIME - 2, 0]}),
        "previous reference taken away": text(chained | {"prev": None}),
        "new group key changed": text(rotating | {"new_group_key": '["k3","ff"]'}),
        "new group key taken away": text(rotating | {"new_group_key": None}),
        "new group key added": text(plain | {"new_group_key": '["k3","ff"]'}),
        "signed with the publisher in checksum case": text(
            fields | {"signature": SIGNERS["alice"].sign(cased.encode())}
        ),
        "signed without the prefix": text(
            message(signature="0x" + digest_only[:64].hex() + f"{digest_only[64] + 27:02x}")
        ),
        "legacy signature as the current type": text(signed(signature_type=1) | {"signature_type": 2}),
        "current signature as the legacy type": text(plain | {"signature_type": 1}),
        "signature without v": text(plain | {"signature": plain["signature"][:-2]}),
        "signature with a byte more": text(plain | {"signature": plain["signature"] + "00"}),
        "signature with half a byte more": text(plain | {"signature": plain["signature"] + "0"}),
        "signature with white space": text(
            plain | {"signature": plain["signature"][:66] + " " + plain["signature"][66:]}
        ),
        "signature is 0x": text(plain | {"signature": "0x"}),
        "signature is not hex": text(plain | {"signature": "0x" + "zz" * 65}),
        "signature in full-width digits": text(plain | {"signature": "0x" + "\uff11" * 130}),
        "signature is a word": text(plain | {"signature": "signature"}),
        "r is 0": with_signature(plain, r=0),
        "s is 0": with_signature(plain, s=0),
        "r is the order": with_signature(plain, r=ORDER),
        "s is the order": with_signature(plain, s=ORDER),
        "s is above the order": with_signature(plain, s=ORDER + 1),
        "all bits set": with_signature(plain, r=2**256 - 1, s=2**256 - 1, v=255),
        "all bits clear": with_signature(plain, r=0, s=0, v=0),
        "r and s changed places": with_signature(
            plain, r=int(plain["signature"][66:130], 16), s=int(plain["signature"][2:66], 16)
        ),
        "version 31, content changed": line(shown(plain | {"content": '{"level":4}'}, 31)),
        "version 31 of a message with a new group key": line(shown(rotating, 31)),
        "version 30, sequence changed": line(shown(plain | {"sequence": 1}, 30)),
        "version 29, content changed": line(shown(signed(signature_type=1, chain="") | {"content": "{}"}, 29)),
        "version 29, current signature of another sequence": line(shown(signed(chain="", sequence=1), 29)),
        "publisher is a word": text(signed(publisher="publisherId")),
        "publisher is empty": text(signed(publisher="")),
        "publisher without 0x": text(signed(publisher=ALICE[2:])),
        "publisher a digit short": text(signed(publisher=ALICE[:-1])),
        "publisher is not hex": text(signed(publisher="0x" + "g" * 40)),
        "publisher in full-width digits": text(signed(publisher="0x" + "\uff11" * 40)),
    }


def malformed() -> dict[str, tuple[str, str]]:
    """What is no message 32, and a word of the reason."""
    plain = signed()
    whole = text(plain)
    surrogate = text(signed()).replace("level", "\\ud800")
    return {
        "empty": ("", "not valid JSON"),
        "not json": ("hello", "not valid JSON"),
        "truncated": (whole[:-1], "not valid JSON"),
        "bytes after the end": (whole + "]", "not valid JSON"),
        "lone surrogate": (surrogate, "not valid JSON"),
        "an object": ("{}", "array that begins with its version"),
        "an empty array": ("[]", "array that begins with its version"),
        "version is a float": (replaced(plain, 0, 32.0), "array that begins with its version"),
        "version 33": (replaced(plain, 0, 33), "version 33 is not supported"),
        "version 27": (replaced(plain, 0, 27), "version 27 is not supported"),
        "an element too few": (json.dumps(array(plain)[:-1]), "Message 32"),
        "an element too many": (json.dumps([*array(plain), None]), "Message 32"),
        "an element of the id too few": (replaced(plain, 1, array(plain)[1][:-1]), "msgId"),
        "an element of the id too many": (replaced(plain, 1, [*array(plain)[1], ""]), "at most length 6"),
        "stream is empty": (replaced_in_id(plain, 0, ""), "msgId.streamId"),
        "stream is null": (replaced_in_id(plain, 0, None), "msgId.streamId"),
        "partition is negative": (replaced_in_id(plain, 1, -1), "msgId.streamPartition"),
        "timestamp is a float": (replaced_in_id(plain, 2, float(TIME)), "msgId.timestamp"),
        "timestamp is text": (replaced_in_id(plain, 2, str(TIME)), "msgId.timestamp"),
        "timestamp is true": (replaced_in_id(plain, 2, True), "msgId.timestamp"),
        "timestamp is negative": (replaced_in_id(plain, 2, -1), "msgId.timestamp"),
        "timestamp is beyond 2**53": (replaced_in_id(plain, 2, 2**53), "msgId.timestamp"),
        "timestamp is beyond 2**64": (replaced_in_id(plain, 2, 2**70), "msgId.timestamp"),
        "sequence is null": (replaced_in_id(plain, 3, None), "msgId.sequenceNumber"),
        "publisher is null": (replaced_in_id(plain, 4, None), "msgId.publisherId"),
        "chain is a number": (replaced_in_id(plain, 5, 7), "msgId.msgChainId"),
        "previous reference is the message": (text(signed(prev=[TIME, 0])), "must come before"),
        "previous reference is after the message": (text(signed(prev=[TIME + 1, 0])), "must come before"),
        "previous reference is a number": (replaced(plain, 2, TIME), "prevMsgRef"),
        "previous reference without sequence": (replaced(plain, 2, [TIME - 1]), "prevMsgRef"),
        "previous reference with an element more": (replaced(plain, 2, [TIME - 1, 0, 0]), "at most length 2"),
        "unknown message type": (replaced(plain, 3, 26), "messageType"),
        "unknown content type": (replaced(plain, 4, 1), "contentType"),
        "unknown encryption type": (replaced(plain, 5, 3), "encryptionType"),
        "group key id is a number": (replaced(plain, 6, 1), "groupKeyId"),
        "content is empty": (replaced(plain, 7, ""), "content"),
        "content is null": (replaced(plain, 7, None), "content"),
        "new group key is an array": (replaced(plain, 8, ["k", "ff"]), "newGroupKey"),
        "unknown signature type": (replaced(plain, 9, 3), "signatureType"),
        "signature is null": (replaced(plain, 10, None), "there is no signature"),
        "signature is empty": (replaced(plain, 10, ""), "there is no signature"),
        "signature is a number": (replaced(plain, 10, 5), "signature"),
        "unsigned with a signature": (replaced(plain, 9, 0), "there is a signature"),
        "content is an array": (replaced(plain, 7, [1]), "content"),
        "version 31, unknown encryption type": (line(shown(plain | {"encryption": 4}, 31)), "encryptionType"),
        "version 31, publisher null": (line(shown(plain | {"publisher": None}, 31)), "msgId.publisherId"),
        "version 31, an element too many": (line([*shown(plain, 31), None]), "Message 31"),
        "version 30, an element too few": (line(shown(plain, 30)[:-1]), "Message 30"),
        "version 30, previous reference is the message": (line(shown(signed(prev=[TIME, 0]), 30)), "must come before"),
        "version 29, unknown signature type": (line(shown(plain | {"signature_type": 3}, 29)), "signatureType"),
        "version 29, signature missing": (line(shown(plain | {"signature": None}, 29)), "there is no signature"),
        "version 28, another content type": (line([*shown(plain, 28)[:7], 28, "{}"]), "contentType"),
        "version 28, offset is text": (line([*shown(plain, 28)[:5], "7", None, 27, "{}"]), "offset"),
        "version 28 with a signature": (line([*shown(plain, 28), 0, None, None]), "Message 28"),
    }


def signatures() -> list[dict[str, str]]:
    """The whole of streamr_signatures.json."""
    cases = [(name, raw, "ok", "") for name, raw in accepted().items()]
    cases += [(name, raw, "unsigned", "") for name, raw in unsigned().items()]
    cases += [(name, raw, "bad_signature", "The signature is not") for name, raw in forged().items()]
    cases += [(name, raw, "bad_signature", "is missing") for name, raw in unproved().items()]
    cases += [(name, raw, "malformed", reason) for name, (raw, reason) in malformed().items()]
    return [
        {"name": name, "raw": raw, "verdict": verdict, "reason_contains": reason}
        for name, raw, verdict, reason in cases
    ]


def ethereum() -> list[dict[str, str]]:
    """The whole of ethereum.json."""
    payloads = {"short": "data-to-sign", "empty": "", "unicode": "strömm 😀", "long": "x" * 1000}
    return [
        {
            "name": f"{who}, {name}",
            "private_key": KEYS[who].hex(),
            "address": signer.address,
            "payload": said,
            "signature": signer.sign(said.encode()),
        }
        for who, signer in SIGNERS.items()
        for name, said in payloads.items()
    ]


def control() -> list[dict[str, Any]]:
    """The whole of streamr_control.json: name, elements, whether it is what we would write, the fields it gives."""
    inner = array(signed())
    stream = {"stream_id": "s", "stream_partition": 3}
    first = {"stream_id": "s", "stream_partition": 0}
    token = {"session_token": "tok"}
    chain = {"publisher_id": "pub", "msg_chain_id": "ch"}
    cases: list[tuple[str, list[Any], bool, dict[str, Any]]] = [
        ("broadcast", [2, 0, "", inner], True, {}),
        ("unicast", [2, 1, "r", inner], True, {}),
        ("publish", [2, 8, "r", inner, "tok"], True, token),
        ("publish, no token", [2, 8, "r", inner], False, {}),
        ("publish, token null", [2, 8, "r", inner, None], True, {}),
        ("publish, empty id", [2, 8, "", inner, None], True, {}),
        ("publish, unicode id", [2, 8, "ä😀", inner, None], True, {}),
        ("subscribe", [2, 9, "r", "s", 3, "tok"], True, stream | token),
        ("subscribe, token null", [2, 9, "r", "s", 3, None], True, stream),
        ("subscribe, no token", [2, 9, "r", "s", 3], False, stream),
        ("subscribe, partition null", [2, 9, "r", "s", None, "tok"], False, first | token),
        ("subscribe, no partition", [2, 9, "r", "s"], False, first),
        ("subscribe, no id, as in the wrapped example", [2, 9, "s", 3, "tok"], False, stream | token),
        ("subscribe, no id and no token", [2, 9, "s", 3], False, stream),
        ("unsubscribe", [2, 10, "r", "s", 3], True, stream),
        ("unsubscribe, partition null", [2, 10, "r", "s", None], False, first),
        ("unsubscribe, no partition", [2, 10, "r", "s"], False, first),
        ("resend last", [2, 11, "r", "s", 3, 7, "tok"], True, stream | token | {"number_last": 7}),
        ("resend last, none", [2, 11, "r", "s", 3, 0], False, stream | {"number_last": 0}),
        ("resend last, partition null", [2, 11, "r", "s", None, 7, None], False, first | {"number_last": 7}),
        (
            "resend from, as shipped",
            [2, 12, "r", "s", 3, [5, 6], "pub", "tok"],
            True,
            stream | token | {"from_msg_ref": [5, 6], "publisher_id": "pub"},
        ),
        (
            "resend from, as documented",
            [2, 12, "r", "s", 3, [5, 6], "pub", "ch", "tok"],
            False,
            stream | token | chain | {"from_msg_ref": [5, 6]},
        ),
        ("resend from, no token", [2, 12, "r", "s", 3, [5, 6], None], False, stream | {"from_msg_ref": [5, 6]}),
        (
            "resend from, sequence null",
            [2, 12, "r", "s", None, [5, None], None, None],
            False,
            first | {"from_msg_ref": [5, None]},
        ),
        (
            "resend from, no sequence",
            [2, 12, "r", "s", 3, [5], None, None],
            False,
            stream | {"from_msg_ref": [5, None]},
        ),
        (
            "resend range",
            [2, 13, "r", "s", 3, [5, 6], [7, 8], "pub", "ch", "tok"],
            True,
            stream | token | chain | {"from_msg_ref": [5, 6], "to_msg_ref": [7, 8]},
        ),
        (
            "resend range, everyone, no token",
            [2, 13, "r", "s", 3, [5, 6], [7], None, None],
            False,
            stream | {"from_msg_ref": [5, 6], "to_msg_ref": [7, None]},
        ),
        ("error", [2, 7, "r", "text", "CODE"], True, {"error_message": "text", "error_code": "CODE"}),
        ("acknowledged", [2, 100, "r", "stored"], True, {"outcome": "stored"}),
    ]
    for number, name in enumerate(("subscribed", "unsubscribed", "resending", "resent", "no resend"), start=2):
        cases.append((name, [2, number, "r", "s", 3], True, stream))
        cases.append((f"{name}, no partition", [2, number, "r", "s"], False, first))
    made = []
    for name, elements, canonical, said in cases:
        fields = said | {"type": elements[1], "request_id": "" if "no id" in name else elements[2]}
        if elements[1] in (0, 1, 8):
            fields["message"] = json.dumps(inner, ensure_ascii=False, separators=(",", ":"))
        frame = json.dumps(elements, ensure_ascii=False, separators=(",", ":"))
        made.append({"name": name, "frame": frame, "canonical": canonical, "fields": fields})
    return made


def versions() -> list[dict[str, Any]]:
    """The whole of streamr_versions.json: what each version has of a message, put together from the documents."""
    aes: dict[str, Any] = {"encryption": 2, "group_key_id": "key-1", "content": "00" * 16 + "9abef2710b"}
    cases = {
        "plain": signed(),
        "previous reference": signed(sequence=3, prev=[TIME - 1, 4]),
        "unicode": signed(stream="str\u00f6mm/\u00e4", partition=2, content='{"x":"h\u00e9llo \U0001f600"}'),
        "encrypted": signed(**aes),
        "legacy signature": signed(signature_type=1, chain=""),
        "unsigned": message(signature_type=0, publisher="visitor"),
        "unsigned, no publisher": message(signature_type=0, publisher="", chain=""),
    }
    return [
        {
            "name": name,
            "shown": {
                str(version): json.dumps(shown(fields, version), ensure_ascii=False, separators=(",", ":"))
                for version in (28, 29, 30, 31, 32)
            },
        }
        for name, fields in cases.items()
    ]


def shown(fields: dict[str, Any], version: int) -> list[Any]:
    """The array of a message 32 in another version."""
    msg_id, end = [fields[name] for name in ID_NAMES], [fields["signature_type"], fields["signature"]]
    head = [version, msg_id, fields["prev"], fields["type"]]
    if version >= 32:
        return array(fields)
    if version == 31:
        return [*head, fields["encryption"], fields["content"], *end]
    if version == 30:
        return [*head, fields["content"], *end]
    previous = fields["prev"][0] if fields["prev"] else None
    oldest = [version, *msg_id[:3], 0, fields["timestamp"], previous, 27, fields["content"]]
    return oldest if version == 28 else [*oldest, end[0], fields["publisher"] or None, end[1]]


def older_control() -> list[dict[str, Any]]:
    """The whole of streamr_control_0_1.json."""
    inner = array(signed())
    stream = {"stream_id": "s", "stream_partition": 3}
    first = {"stream_id": "s", "stream_partition": 0}
    resend = stream | {"request_id": "r"}
    token = {"session_token": "tok"}
    chain = {"publisher_id": "pub", "msg_chain_id": "ch"}
    refs = {"from_msg_ref": [5, 6], "to_msg_ref": [7, 8]}
    from_ref = {"from_msg_ref": [5, 6]}
    payload_0 = {"stream": "s", "partition": 3}
    cases: list[tuple[str, Any, bool, int, dict[str, Any]]] = [
        ("broadcast", [1, 0, inner], True, 0, {}),
        ("unicast", [1, 1, "r", inner], True, 1, {"request_id": "r"}),
        ("subscribed", [1, 2, "s", 3], True, 2, stream),
        ("unsubscribed", [1, 3, "s", 3], True, 3, stream),
        ("resending", [1, 4, "s", 3, "r"], True, 4, resend),
        ("resent", [1, 5, "s", 3, "r"], True, 5, resend),
        ("no resend", [1, 6, "s", 3, "r"], True, 6, resend),
        ("error", [1, 7, "text"], True, 7, {"error_message": "text"}),
        ("publish", [1, 8, inner, "tok"], True, 8, token),
        ("publish, token null", [1, 8, inner, None], True, 8, {}),
        ("publish, no token", [1, 8, inner], False, 8, {}),
        ("subscribe", [1, 9, "s", 3, "tok"], True, 9, stream | token),
        ("subscribe, no token", [1, 9, "s", 3], False, 9, stream),
        ("subscribe, no partition", [1, 9, "s"], False, 9, first),
        ("unsubscribe", [1, 10, "s", 3], True, 10, stream),
        ("resend last", [1, 11, "s", 3, "r", 7, "tok"], True, 11, resend | token | {"number_last": 7}),
        ("resend from", [1, 12, "s", 3, "r", [5, 6], "pub", "ch", "tok"], True, 12, resend | token | chain | from_ref),
        ("resend from, everyone", [1, 12, "s", 3, "r", [5, 6], None, None], False, 12, resend | from_ref),
        (
            "resend range",
            [1, 13, "s", 3, "r", [5, 6], [7, 8], "pub", "ch", "tok"],
            True,
            13,
            resend | token | chain | refs,
        ),
        ("acknowledged", [1, 100, "stored"], True, 100, {"outcome": "stored"}),
        ("broadcast", [0, 0, None, inner], True, 0, {}),
        ("broadcast, as in 2018", [0, 0, "", inner], False, 0, {}),
        ("unicast", [0, 1, "r", inner], True, 1, {"request_id": "r"}),
        ("subscribed", [0, 2, None, payload_0], True, 2, stream),
        ("subscribed, no partition", [0, 2, None, {"stream": "s"}], False, 2, first),
        ("unsubscribed", [0, 3, None, payload_0], True, 3, stream),
        ("unsubscribed, as in 2018", [0, 3, "", payload_0], False, 3, stream),
        ("resending", [0, 4, None, payload_0 | {"sub": "r"}], True, 4, resend),
        ("resending, as documented", [0, 4, None, payload_0], False, 4, stream),
        ("resent", [0, 5, None, payload_0 | {"sub": "r"}], True, 5, resend),
        ("no resend", [0, 6, None, payload_0 | {"sub": "r"}], True, 6, resend),
        ("error", [0, 7, None, {"error": "text"}], True, 7, {"error_message": "text"}),
        ("acknowledged", [0, 100, None, {"outcome": "stored"}], True, 100, {"outcome": "stored"}),
    ]
    made = []
    for name, elements, canonical, kind, said in cases:
        fields = said | {"type": kind}
        if kind in (0, 1, 8):
            fields["message"] = json.dumps(inner, ensure_ascii=False, separators=(",", ":"))
        frame = json.dumps(elements, ensure_ascii=False, separators=(",", ":"))
        made.append({"name": name, "version": elements[0], "frame": frame, "canonical": canonical, "fields": fields})
    return made


FILES = {
    "streamr_versions.json": versions,
    "streamr_control_0_1.json": older_control,
    "ethereum.json": ethereum,
    "streamr_signatures.json": signatures,
    "streamr_control.json": control,
}


def render(cases: list[Any]) -> str:
    """A file: one case a line, so that a change shows as one."""
    return "[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n"


if __name__ == "__main__":
    for file, make in FILES.items():
        Path(__file__).with_name(file).write_text(render(make()), encoding="utf-8")
