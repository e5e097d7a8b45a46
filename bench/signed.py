"""Signed messages for the generator, and what checking their signatures costs coincurve alone.

python bench/signed.py make FILE COUNT      one message 32 a line, from four publishers, in the order of their times
python bench/signed.py check FILE NAME      check them all with coincurve, prints what it took as JSON

`coincurve` verifies against the publisher's known key, the cheapest way there is; `coincurve recover` recovers the key
from each signature. Both get digests and parsed signatures: nothing is counted but the curve.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from os import sched_getaffinity
from pathlib import Path

from coincurve import PublicKey
from coincurve.ecdsa import cdata_to_der, deserialize_recoverable, recoverable_convert

from catchment.client.streamr import Chain, now_ms
from catchment.crypto.ethereum import Signer, personal_digest
from catchment.wire.streamr import message

PUBLISHERS = 4
FIRST_NUMBER = 1_000_000_000
CONTENT = 300
CHUNK = 256


def make(file: Path, count: int) -> None:
    """Write the messages; their contents are numbered as the generator numbers its own."""
    chains = [Chain("bench", 0, signer=Signer(bytes([number + 1]) * 32)) for number in range(PUBLISHERS)]
    first = now_ms() - count
    with file.open("wb") as out:
        for number in range(count):
            head = f'{{"n":{FIRST_NUMBER + number},"x":"'
            content = head + "a" * (CONTENT - len(head) - 2) + '"}'
            out.write(chains[number % PUBLISHERS].make(content, first + number) + b"\n")


Work = tuple[bytes, bytes, bytes]
"""Signature with recovery id, the same as DER, digest."""


def prepare(line: bytes) -> Work:
    read = message.decode(line)
    assert read.signature is not None
    made = bytes.fromhex(read.signature.removeprefix("0x"))
    recoverable = made[:64] + bytes([made[64] - 27])
    der = cdata_to_der(recoverable_convert(deserialize_recoverable(recoverable)))
    return recoverable, der, personal_digest(message.signed_payload(read))


def check(file: Path, name: str) -> dict[str, float]:
    """Check all of them on every core this process may use."""
    work = [prepare(line) for line in file.read_bytes().splitlines()]
    keys = [PublicKey.from_signature_and_message(work[n][0], work[n][2], hasher=None) for n in range(PUBLISHERS)]

    def verify(start: int) -> None:
        for number in range(start, min(start + CHUNK, len(work))):
            _, der, digest = work[number]
            assert keys[number % PUBLISHERS].verify(der, digest, hasher=None)

    def recover(start: int) -> None:
        for number in range(start, min(start + CHUNK, len(work))):
            recoverable, _, digest = work[number]
            assert PublicKey.from_signature_and_message(recoverable, digest, hasher=None)

    ways: dict[str, Callable[[int], None]] = {"coincurve": verify, "coincurve recover": recover}
    with ThreadPoolExecutor(len(sched_getaffinity(0))) as pool:
        list(pool.map(ways[name], range(0, min(len(work), 2000), CHUNK)))  # the threads are up, the caches warm
        started, cpu = time.perf_counter(), time.process_time()
        list(pool.map(ways[name], range(0, len(work), CHUNK)))
        seconds, used = time.perf_counter() - started, time.process_time() - cpu
    return {"count": len(work), "seconds": seconds, "cpu_seconds": used}


def main(arguments: list[str]) -> int:
    action, file, what = arguments
    if action == "make":
        make(Path(file), int(what))
    else:
        sys.stdout.write(json.dumps(check(Path(file), what)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
