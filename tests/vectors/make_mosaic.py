"""Makes the Mosaic vectors beside it: `python tests/vectors/make_mosaic.py`.

Put together from the documents (facts/mosaic.md, spec/mosaic-messages.md) with plain integers (`edwards.py`) and
nothing of the code under test; verdicts are written by hand. `tests/wire/mosaic/test_vectors.py` fails when the files
are not what this script makes.

Files:
    mosaic_signatures.json: [{name, public_key, data, signature, valid}]
    mosaic_records.json: [{name, record, verdict}], the verdict being "ok", "bad_id", "bad_signature", or the result
        code of a record that is refused before it is proven
    mosaic_filters.json: [{name, filter, result}], the result being "narrow", "open" or "INVALID"
    mosaic_frames.json: [{name, layout, frame, fields}]
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from blake3 import blake3

sys.path.insert(0, str(Path(__file__).parent))

import edwards

SEEDS = {name: hashlib.sha256(f"catchment test key: {name}".encode()).digest() for name in ("alice", "bob")}
"""Known to everyone: for tests only."""
SECRETS = {name: edwards.secret_of(seed) for name, seed in SEEDS.items()}
KEYS = {name: edwards.encode(edwards.multiply(secret, edwards.BASE)) for name, secret in SECRETS.items()}
TIME = 1_790_000_000_123_456_789
KIND = 0x000000630001001C


def sign(name: str, data: bytes) -> bytes:
    """As RFC 8032 makes it, so that there is only one."""
    prefix = hashlib.sha512(SEEDS[name]).digest()[32:]
    hashed = blake3(data).digest(64)
    nonce = int.from_bytes(hashlib.sha512(edwards.DOM2 + prefix + hashed).digest(), "little") % edwards.L
    return edwards.sign(SECRETS[name], data, nonce=nonce)[1]


def signatures() -> list[Any]:
    """Honest ones, broken ones, and those only someone who means to can make."""
    data = b"a record, or anything else"
    alice, made = KEYS["alice"], sign("alice", data)
    s = int.from_bytes(made[32:], "little")
    cases: list[tuple[str, bytes, bytes, bytes, bool]] = [
        ("honest", alice, data, made, True),
        ("honest, nothing signed", alice, b"", sign("alice", b""), True),
        ("honest, another key", KEYS["bob"], data, sign("bob", data), True),
        ("somebody else's key", KEYS["bob"], data, made, False),
        ("other data", alice, data + b"!", made, False),
        ("R flipped", alice, data, bytes((made[0] ^ 1,)) + made[1:], False),
        ("S flipped", alice, data, made[:32] + bytes((made[32] ^ 1,)) + made[33:], False),
        ("S not below the order", alice, data, made[:32] + (s + edwards.L).to_bytes(32, "little"), False),
        ("S zero", alice, data, made[:32] + bytes(32), False),
        ("S negated", alice, data, made[:32] + (edwards.L - s).to_bytes(32, "little"), False),
        ("a byte short", alice, data, made[:-1], False),
        ("a byte long", alice, data, made + b"\0", False),
        ("empty", alice, data, b"", False),
        ("R not on the curve", alice, data, b"\2" + bytes(31) + made[32:], False),
        ("R not below the prime", alice, data, b"\xee" + b"\xff" * 30 + b"\x7f" + made[32:], False),
        ("key not on the curve", b"\2" + bytes(31), data, made, False),
        ("key not below the prime", b"\xee" + b"\xff" * 30 + b"\x7f", data, made, False),
    ]
    for number in range(1, 8):
        public, tricky = edwards.sign(SECRETS["alice"], data, nonce=1000 + number, r_torsion=number)
        cases.append((f"R with a part of small order, {number}", public, data, tricky, True))
        public, tricky = edwards.sign(SECRETS["alice"], data, nonce=2000 + number, key_torsion=number)
        cases.append((f"key with a part of small order, {number}", public, data, tricky, True))
        public, tricky = edwards.sign(SECRETS["bob"], data, nonce=3000, key_torsion=number, r_torsion=8 - number)
        cases.append((f"both with a part of small order, {number}", public, data, tricky, True))
    for number, point in enumerate(edwards.TORSION):
        # With such a key [k]A vanishes under the cofactor, so R = [S]B would pass for any data.
        public = edwards.encode(point)
        forged = edwards.encode(edwards.multiply(5, edwards.BASE)) + (5).to_bytes(32, "little")
        cases.append((f"key of small order, {number}", public, data, forged, False))
    public, small = edwards.sign(SECRETS["alice"], data, nonce=0, r_torsion=3)
    cases.append(("R of small order", public, data, small, True))
    # R written in a second way: y = 1 (x = 0) with a sign.
    zero = b"\1" + bytes(30) + b"\x80"
    k = edwards.challenge(zero, alice, data)
    cases.append(
        (
            "R written in a second way",
            alice,
            data,
            zero + (k * SECRETS["alice"] % edwards.L).to_bytes(32, "little"),
            False,
        )
    )
    return [
        {"name": name, "public_key": public.hex(), "data": data_.hex(), "signature": signature.hex(), "valid": valid}
        for name, public, data_, signature, valid in cases
    ]


def padded(data: bytes) -> bytes:
    """Zeros behind, to whole words of 8."""
    return data + bytes(-len(data) % 8)


def record(by: str = "alice", **changes: Any) -> bytes:
    """A record, field by field."""
    values: dict[str, Any] = {
        "nonce": bytes.fromhex("8102030405060708"),
        "kind": KIND,
        "author": KEYS[by],
        "signer": KEYS[by],
        "time": TIME,
        "flags": bytes(8),
        "tags": b"",
        "payload": b"what is to be said",
        "len_s": 64,
    } | changes
    tags, payload = values["tags"], values["payload"]
    signed = (
        values["nonce"]
        + values["kind"].to_bytes(8, "big")
        + values["author"]
        + values["signer"]
        + values["time"].to_bytes(8, "big")
        + values["flags"]
        + values.get("len_t", len(tags)).to_bytes(2, "little")
        + values["len_s"].to_bytes(2, "little")
        + values.get("len_p", len(payload)).to_bytes(4, "little")
        + padded(tags)
        + padded(payload)
    )
    hashed = blake3(signed).digest(64)
    return values["time"].to_bytes(8, "big") + hashed[:40] + signed + sign(by, signed)


def tag(kind: int, value: bytes) -> bytes:
    """One tag."""
    return (4 + len(value)).to_bytes(2, "little") + kind.to_bytes(2, "little") + value


def change(data: bytes, at: int, bits: int = 1) -> bytes:
    """One byte altered."""
    return data[:at] + bytes((data[at] ^ bits,)) + data[at + 1 :]


def records() -> list[Any]:
    """Sound ones in all shapes, and one for each rule that can be broken."""
    url = tag(0x24, bytes(4) + b"https://example.org")
    notify = tag(0x1, bytes(4) + KEYS["bob"])
    plain = record()
    eighths = [tag(0x100 + number, b"v") for number in range(1001)]
    cases = [
        ("plain", plain, "ok"),
        ("no payload", record(payload=b""), "ok"),
        ("payload of whole words", record(payload=b"x" * 16), "ok"),
        ("one tag", record(tags=notify), "ok"),
        ("two tags", record(tags=notify + url), "ok"),
        ("the shortest tag", record(tags=tag(7, b"")), "ok"),
        ("tags that end in padding", record(tags=url + bytes(5)), "ok"),
        ("as many tags as may be", record(tags=b"".join(eighths[:1000])), "ok"),
        ("author and signer differ", record("bob", author=KEYS["alice"]), "ok"),
        ("flags of compression and author", record(flags=b"\5" + bytes(7)), "ok"),
        ("flags that are ignored", record(flags=bytes(3) + b"\xff" * 5), "ok"),
        ("the first moment", record(time=0), "ok"),
        ("the last moment", record(time=2**63 - 1), "ok"),
        ("every kind of duplicates: ephemeral", record(kind=KIND | 1), "ok"),
        ("every kind of duplicates: replaceable", record(kind=KIND | 2), "ok"),
        ("every kind of duplicates: versioned", record(kind=KIND | 3), "ok"),
        ("for the author only", record(kind=KIND & ~0xF), "ok"),
        ("the largest", record(payload=b"z" * (1_048_576 - 216)), "ok"),
        ("id's hash altered", change(plain, 20), "bad_id"),
        ("payload altered", change(plain, 153), "bad_id"),
        ("nonce altered", change(plain, 50), "bad_id"),
        ("padding altered", change(record(payload=b"x"), 155), "bad_id"),
        ("signature altered", change(plain, len(plain) - 40), "bad_signature"),
        ("R altered", change(plain, len(plain) - 64), "bad_signature"),
        ("signed by somebody else", record("bob", signer=KEYS["alice"]), "bad_signature"),
        ("author's key of small order", record(author=b"\1" + bytes(31)), "bad_signature"),
        ("author's key not on the curve", record(author=b"\2" + bytes(31)), "bad_signature"),
        ("signer's key of small order", record(signer=b"\1" + bytes(31)), "bad_signature"),
        ("empty", b"", "INVALID"),
        ("header only", plain[:152], "INVALID"),
        ("a word short", plain[:-8], "INVALID"),
        ("a word long", plain + bytes(8), "INVALID"),
        ("id's timestamp altered", change(plain, 7), "INVALID"),
        ("a time beyond times", record(time=2**63), "INVALID"),
        ("nonce without its first bit", record(nonce=bytes.fromhex("0102030405060708")), "INVALID"),
        ("a reserved flag", record(flags=b"\2" + bytes(7)), "INVALID"),
        ("a reserved flag, second byte", record(flags=b"\0\1" + bytes(6)), "INVALID"),
        ("a reserved flag, third byte", record(flags=b"\0\0\x80" + bytes(5)), "INVALID"),
        ("another signature scheme", record(flags=b"\x40" + bytes(7)), "INVALID"),
        ("a signature of another length", record(len_s=56), "INVALID"),
        ("a reserved bit of the kind", record(kind=KIND | 0x20), "INVALID"),
        ("tags longer than said", record(tags=notify, len_t=8), "INVALID"),
        ("a tag that overruns", record(tags=b"\xff\xff\1\0" + bytes(4)), "INVALID"),
        ("a tag shorter than its header", record(tags=b"\3\0\1\0"), "INVALID"),
        ("half a tag", record(tags=url + b"\1"), "INVALID"),
        ("payload longer than there is", record(len_p=2**32 - 1), "INVALID"),
        ("too many tags", record(tags=b"".join(eighths)), "TOO_LARGE"),
        ("too large", record(payload=b"z" * (1_048_577 - 216)), "TOO_LARGE"),
    ]
    # What is large is kept as how to make it.
    return [
        {"name": name, "record": shortened(data), "verdict": verdict, "blake3": blake3(data).hexdigest()}
        for name, data, verdict in cases
    ]


def shortened(data: bytes) -> Any:
    """Hexadecimal digits, long runs of one byte as [byte, how often]."""
    parts: list[Any] = []
    at = run = 0
    while run < len(data):
        end = run
        while end < len(data) and data[end] == data[run]:
            end += 1
        if end - run > 1000:
            parts += [data[at:run].hex(), [data[run], end - run]]
            at = end
        run = end
    return [*parts, data[at:].hex()]


def element(kind: int, data: bytes) -> bytes:
    """One element of a filter."""
    return bytes((kind, 1 + len(padded(data)) // 8)) + bytes(6) + padded(data)


def whole(*elements: bytes) -> bytes:
    """A filter."""
    body = b"".join(elements)
    return (8 + len(body)).to_bytes(2, "little") + bytes(6) + body


def filters() -> list[Any]:
    """Every element, and one for each rule that can be broken."""
    alice, bob = KEYS["alice"], KEYS["bob"]
    time = TIME.to_bytes(8, "big")
    kind = KIND.to_bytes(8, "big")
    url = tag(0x24, bytes(4) + b"https://example.org")
    cases = [
        ("nothing", whole(), "open"),
        ("authors", whole(element(1, alice + bob)), "narrow"),
        ("signing keys", whole(element(2, alice)), "narrow"),
        ("kinds", whole(element(3, kind)), "narrow"),
        ("timestamps", whole(element(4, time)), "narrow"),
        ("included tags", whole(element(5, url)), "narrow"),
        ("included tags twice", whole(element(5, url), element(5, tag(1, bytes(4) + bob))), "narrow"),
        ("since", whole(element(0x80, time)), "open"),
        ("until", whole(element(0x81, time)), "open"),
        ("received since", whole(element(0x82, time)), "open"),
        ("received until", whole(element(0x83, time)), "open"),
        ("excluded ids", whole(element(0x84, time + bytes(24))), "open"),
        ("excluded tags", whole(element(0x85, url)), "open"),
        ("a second element of a kind that counts once", whole(element(1, alice), element(1, bob)), "narrow"),
        ("63 authors", whole(element(1, alice * 63)), "narrow"),
        ("254 kinds", whole(element(3, kind * 254)), "narrow"),
        ("no authors", whole(element(1, b"")), "narrow"),
        ("reserved bytes that are not zero", b"\x10\0" + b"\1" * 6 + b"\3\1" + b"\1" * 6, "narrow"),
        ("empty", b"", "INVALID"),
        ("less than a header", b"\4\0\0\0", "INVALID"),
        ("a length that is too great", whole(element(1, alice))[:-8], "INVALID"),
        ("bytes behind", whole(element(1, alice)) + bytes(8), "INVALID"),
        ("no whole words", b"\x0c\0" + bytes(10), "INVALID"),
        ("an element of length zero", b"\x10\0" + bytes(6) + b"\1\0" + bytes(6), "INVALID"),
        ("an element that overruns", b"\x10\0" + bytes(6) + b"\1\2" + bytes(6), "INVALID"),
        ("an unknown element", whole(element(0x44, alice)), "INVALID"),
        ("part of a key", whole(element(1, alice + bytes(8))), "INVALID"),
        ("two times where one is meant", whole(element(0x80, time * 2)), "INVALID"),
        ("no time where one is meant", whole(element(0x81, b"")), "INVALID"),
        ("a time beyond times", whole(element(0x80, b"\x80" + bytes(7))), "INVALID"),
        ("a tag that overruns", whole(element(5, b"\xff\0\1\0" + bytes(4))), "INVALID"),
        ("a tag shorter than its header", whole(element(0x85, b"\2\0\1\0" + bytes(4))), "INVALID"),
    ]
    return [{"name": name, "filter": data.hex(), "result": result} for name, data, result in cases]


def frames() -> list[Any]:
    """Each message in each layout, byte by byte after the document and facts/mosaic.md, section 3.1."""
    body = whole(element(1, KEYS["alice"]))
    raw = record()
    subject = KEYS["bob"]
    signature = sign("alice", b"nonce")
    apps = bytes.fromhex("0000000063000000")
    refs = raw[:96]
    q = b"\x34\x12"

    def u24(data: bytes) -> bytes:
        return data[:1] + len(data).to_bytes(3, "little") + data[4:]

    def u32(data: bytes) -> bytes:
        return data[:4] + len(data).to_bytes(4, "little") + data[8:]

    query = {"query_id": q.hex()}
    about = {"subject": subject.hex()}
    rows: list[tuple[str, bytes, bytes, dict[str, Any]]] = [
        ("HELLO", u24(b"\x10" + bytes(5) + b"\2\0" + apps), u32(b"\x10\0\0\2" + bytes(4) + apps),
         {"version": 2, "applications": [0, 99]}),
        ("HELLO, nothing wanted", u24(b"\x10" + bytes(7)), u32(b"\x10" + bytes(7)), {"version": 0}),
        ("HELLO_AUTH", u24(b"\x11" + bytes(7) + signature), u32(b"\x11" + bytes(7) + signature),
         {"body": signature.hex()}),
        ("GET", u24(b"\1\0\0\0" + q + b"\0\0" + refs), u32(b"\1\0" + q + bytes(4) + refs),
         query | {"references": [refs[:48].hex(), refs[48:].hex()]}),
        ("QUERY", u24(b"\2\0\0\0" + q + b"\x64\1" + body), u32(b"\2\0" + q + bytes(4) + b"\x64\1" + bytes(6) + body),
         query | {"limit": 356, "body": body.hex()}),
        ("SUBSCRIBE", u24(b"\3\0\0\0" + q + b"\0\0" + body), u32(b"\3\0" + q + bytes(12) + body),
         query | {"limit": 0, "body": body.hex()}),
        ("UNSUBSCRIBE", u24(b"\4\0\0\0" + q + b"\0\0"), u32(b"\4\0" + q + bytes(4)), query),
        ("SUBMISSION", u24(b"\5" + bytes(7) + raw), u32(b"\5" + bytes(7) + raw), {"body": raw.hex()}),
        ("DHT_LOOKUP", u24(b"\6\0\0\0\1\0\0\0" + subject), u32(b"\6\1" + bytes(6) + subject), about | {"server": 1}),
        ("BLOB_SUBMISSION", b"\7\0\3" + bytes(5) + subject + b"abc", u32(b"\7" + bytes(7) + subject + b"abc"),
         about | {"body": "616263"}),
        ("BLOB_GET", b"\x08" + bytes(7) + subject, u32(b"\x08" + bytes(7) + subject), about),
        ("HELLO_ACK", u24(b"\x90\0\0\0\3\0\0\0" + apps), u32(b"\x90\3\0\0" + bytes(4) + apps),
         {"result": "DUPLICATE", "version": 0, "applications": [0, 99]}),
        ("RECORD", u24(b"\x80\0\0\0" + q + b"\0\0" + raw), u32(b"\x80\0" + q + bytes(4) + raw),
         query | {"body": raw.hex()}),
        ("LOCALLY_COMPLETE", u24(b"\x81\0\0\0" + q + b"\0\0"), u32(b"\x81\0" + q + bytes(4)), query),
        ("QUERY_CLOSED", u24(b"\x82\0\0\0" + q + b"\x25\0"), u32(b"\x82\x25" + q + bytes(4)),
         query | {"result": "TOO_OPEN"}),
        ("SUBMISSION_RESULT", u24(b"\x83\0\0\0\x26\0\0\0" + subject), u32(b"\x83\x26" + bytes(6) + subject),
         about | {"result": "TOO_LARGE"}),
        ("DHT_RESPONSE", u24(b"\x84\0\0\0\1\0\0\0S\n"), u32(b"\x84\1" + bytes(6) + b"S\n"),
         {"result": "SUCCESS", "body": "530a"}),
        ("BLOB_SUBMISSION_RESULT", b"\x85\2" + bytes(6) + subject, u32(b"\x85\2" + bytes(6) + subject),
         about | {"result": "ACCEPTED"}),
        ("BLOB_RESULT", b"\x86\1\3" + bytes(5) + subject + b"abc", u32(b"\x86\1" + bytes(6) + subject + b"abc"),
         about | {"result": "SUCCESS", "body": "616263"}),
        ("BLOB_RESULT, not found", b"\x86\x10" + bytes(6) + subject, u32(b"\x86\x10" + bytes(6) + subject),
         about | {"result": "NOT_FOUND"}),
        ("UNRECOGNIZED", u24(b"\xf0" + bytes(7)), u32(b"\xf0" + bytes(7)), {}),
        ("CLOSING", b"\xfe\x40" + bytes(6), u32(b"\xfe\x40" + bytes(6)), {"result": "SHUTTING_DOWN"}),
    ]  # fmt: skip
    return [
        {"name": name, "layout": layout, "frame": frame.hex(), "fields": fields}
        for name, *both, fields in rows
        for layout, frame in zip("AB", both, strict=True)
    ]


FILES = {
    "mosaic_signatures.json": signatures,
    "mosaic_records.json": records,
    "mosaic_filters.json": filters,
    "mosaic_frames.json": frames,
}


def render(cases: list[Any]) -> str:
    """A file: one case a line, so that a change shows as one."""
    return "[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n"


if __name__ == "__main__":
    for file, make in FILES.items():
        Path(__file__).with_name(file).write_text(render(make()), encoding="utf-8")
