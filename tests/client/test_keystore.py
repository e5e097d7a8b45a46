"""Group keys in memory and in a file: by id, by time, readable by their owner only."""

from __future__ import annotations

from pathlib import Path

import pytest

from catchment.client.streamr import KeyStore
from catchment.client.streamr.keystore import MAX_KEYS
from catchment.client.streamr.streams import EncryptedStream
from catchment.client.streamr.values import Chain
from catchment.crypto.groupkeys import GroupKey
from catchment.errors import UserError
from catchment.wire.streamr.keyexchange import KeyRange

ONE, TWO, THREE = (GroupKey(name, bytes([number]) * 32) for number, name in enumerate(("one", "two", "three")))
PUBLISHER = "0x" + "ab" * 20


def test_our_own_keys_by_id_and_by_time() -> None:
    store = KeyStore()
    assert store.current("s") is None
    assert store.used_between("s", None) == []
    for key, start in ((ONE, 100), (TWO, 200), (THREE, 300)):
        store.add("s", key, start)
    assert store.current("s") == THREE
    assert store.find("s", "two") == TWO
    assert store.find("s", "four") is None
    assert store.find("t", "two") is None

    def used(start: int, end: int) -> list[str]:
        return [each.key.key_id for each in store.used_between("s", KeyRange(start, end))]

    assert [each.key for each in store.used_between("s", None)] == [THREE]
    assert used(0, 99) == []
    assert used(0, 100) == ["one"]
    assert used(150, 150) == ["one"]
    assert used(199, 200) == ["one", "two"]
    assert used(200, 299) == ["two"]
    assert used(0, 10_000) == ["one", "two", "three"]
    assert used(5000, 6000) == ["three"]


def test_keys_follow_each_other_in_time_whatever_the_clock_says() -> None:
    store = KeyStore()
    store.add("s", ONE, 100)
    store.add("s", TWO, 50)
    assert [each.start for each in store.used_between("s", KeyRange(0, 1000))] == [100, 101]


def test_keys_we_were_given_by_id_and_by_time() -> None:
    store = KeyStore()
    assert store.lookup("s", PUBLISHER, "one", 0) is None
    store.remember("s", PUBLISHER, ONE.key, key_id="one")
    assert store.lookup("s", PUBLISHER, "one", 0) == ONE.key
    assert store.lookup("s", PUBLISHER, None, 0) is None
    assert store.lookup("s", "0x" + "cd" * 20, "one", 0) is None
    for key, start in ((TWO, 200), (ONE, 100), (THREE, 300)):
        store.remember("s", PUBLISHER, key.key, start=start)
    assert [store.lookup("s", PUBLISHER, None, time) for time in (99, 100, 199, 200, 999)] == [
        ONE.key,  # clients 3.x date their first key a moment after the message they made it for
        ONE.key,
        ONE.key,
        TWO.key,
        THREE.key,
    ]
    store.remember("s", PUBLISHER, ONE.key, start=300)
    assert store.lookup("s", PUBLISHER, None, 999) == ONE.key


def test_a_publisher_cannot_fill_the_store() -> None:
    store = KeyStore()
    for number in range(MAX_KEYS + 5):
        key = TWO.key if number < 5 else ONE.key
        store.remember("s", PUBLISHER, key, key_id=str(number), start=number)
    assert store.lookup("s", PUBLISHER, "0", 0) is None
    assert store.lookup("s", PUBLISHER, str(MAX_KEYS), 0) == ONE.key
    assert store.lookup("s", PUBLISHER, None, 4) == ONE.key, "the oldest are forgotten"


def test_a_file_keeps_everything_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "keys.json"
    store = KeyStore(path)
    assert not path.exists()
    store.add("s", ONE, 100)
    store.add("s", TWO, 200)
    store.remember("s", PUBLISHER, THREE.key, key_id="three")
    store.remember("s", PUBLISHER, ONE.key, start=7)
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in path.parent.iterdir()] == ["keys.json"]
    again = KeyStore(path)
    assert again.current("s") == TWO
    assert again.find("s", "one") == ONE
    assert again.lookup("s", PUBLISHER, "three", 0) == THREE.key
    assert again.lookup("s", PUBLISHER, None, 7) == ONE.key
    assert ONE.key.hex() not in f"{store!r} {store}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "[]",
        '{"format":99}',
        '{"published":{"s":[{"key":"zz","id":"a"}]}}',
        '{"published":{"s":[{"key":"00"}]}}',
    ],
)
def test_a_file_that_is_no_key_store_is_said_to_be_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys.json"
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)
    with pytest.raises(UserError, match=r"keys\.json"):
        KeyStore(path)
    assert path.read_text(encoding="utf-8") == text


def test_a_file_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    KeyStore(path).add("s", ONE, 0)
    path.chmod(0o644)
    with pytest.raises(UserError, match="chmod 600"):
        KeyStore(path)


def test_a_file_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(UserError, match="cannot be written"):
        KeyStore(tmp_path / "file" / "keys.json").add("s", ONE, 0)


def test_new_keys_are_all_different() -> None:
    made = [KeyStore.new_key() for _ in range(50)]
    assert len({each.key for each in made}) == len({each.key_id for each in made}) == 50


def test_no_two_keys_are_used_in_one_millisecond() -> None:
    """Older readers know keys by the time they start: at every time exactly one fits."""
    store = KeyStore()
    stream = EncryptedStream("s", store)
    chains = [Chain("s", partition, signer=None) for partition in range(2)]
    used: list[tuple[int, str]] = []
    for number in range(60):
        latest = max((chain.last.timestamp for chain in chains if chain.last), default=-1)
        if number % 4 == 1:
            stream.rotate()
        if number % 7 == 2:
            stream.rekey(latest + 1)
        key, next_key, timestamp = stream.keys_for(1000 + number % 5, latest)
        chain = chains[number % 3 % 2]
        chain.make("{}", timestamp, key=key, next_key=next_key)
        assert chain.last is not None
        used.append((chain.last.timestamp, key.key_id))
    for timestamp, key_id in used:
        (fits,) = store.used_between("s", KeyRange(timestamp, timestamp))
        assert fits.key.key_id == key_id
    assert len({key_id for _, key_id in used}) > 8
