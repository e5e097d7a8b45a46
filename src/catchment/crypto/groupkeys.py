"""Group keys: AES-256-CTR for content, RSA-OAEP for handing keys over (facts/streamr.md, section 4).

What is random comes as an argument: keys and initialisation vectors are made by the client. (RSA-OAEP draws its own
seed inside OpenSSL.) CTR has no checksum: a wrong key gives other bytes, not an error. Integrity is the signature's,
which covers the ciphertext.
"""

from __future__ import annotations

from typing import Final

import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from catchment.errors import CatchmentError

KEY_BYTES: Final = 32
IV_BYTES: Final = 16
MIN_RSA_BITS: Final = 2048
"""A group key is as safe as the RSA key it is sent under; published clients make 4096 bits."""
MAX_RSA_BITS: Final = 8192
MAX_PEM: Final = 8192

_SHA1: Final = hashes.SHA1()  # noqa: S303 - what node's `crypto.publicEncrypt` uses; OAEP needs no collision resistance
_OAEP: Final = padding.OAEP(mgf=padding.MGF1(_SHA1), algorithm=_SHA1, label=None)


class CannotDecrypt(CatchmentError):
    """A ciphertext or a key is not what it must be. Says nothing about the plaintext."""


class GroupKey(msgspec.Struct, frozen=True):
    """A symmetric key of a stream; `repr` does not show it.

    Attributes:
        key_id: how messages and requests name it.
        key: 32 bytes.
    """

    key_id: str
    key: bytes

    def __post_init__(self) -> None:
        if len(self.key) != KEY_BYTES:
            raise ValueError(f"a group key has {KEY_BYTES} bytes, not {len(self.key)}")

    def __repr__(self) -> str:
        return f"GroupKey({self.key_id!r})"


def _ctr(key: bytes, iv: bytes, data: bytes) -> bytes:
    if len(key) != KEY_BYTES or len(iv) != IV_BYTES:
        raise ValueError("AES-256-CTR takes a key of 32 bytes and an initialisation vector of 16")
    # In counter mode encrypting and decrypting are the same.
    cipher = Cipher(algorithms.AES(key), modes.CTR(iv)).encryptor()
    return cipher.update(data) + cipher.finalize()


def encrypt(key: bytes, iv: bytes, plaintext: bytes) -> str:
    """AES-256-CTR, as content is written: hex of the IV, then hex of the ciphertext.

    Args:
        key: 32 bytes.
        iv: 16 bytes, never used twice under one key.
        plaintext: what to hide.
    """
    return iv.hex() + _ctr(key, iv, plaintext).hex()


def decrypt(key: bytes, content: str) -> bytes:
    """The reverse of `encrypt`.

    Raises:
        CannotDecrypt: the content is not hex, or too short to hold an IV.
    """
    data = _hex(content, "The encrypted content")
    if len(data) < IV_BYTES:
        raise CannotDecrypt("The encrypted content is too short to hold an initialisation vector.")
    return _ctr(key, data[:IV_BYTES], data[IV_BYTES:])


def encrypt_with_new_key(key: bytes, iv: bytes, new_key: bytes, plaintext: bytes) -> str:
    """NEW_KEY_AND_AES of message 31: the next key and the content, both under the old key."""
    if len(new_key) != KEY_BYTES:
        raise ValueError(f"a group key has {KEY_BYTES} bytes, not {len(new_key)}")
    return encrypt(key, iv, new_key + plaintext)


def decrypt_with_new_key(key: bytes, content: str) -> tuple[bytes, bytes]:
    """The new key and the plaintext of a NEW_KEY_AND_AES content.

    Raises:
        CannotDecrypt: the content is not hex, or too short to hold a key.
    """
    data = decrypt(key, content)
    if len(data) < KEY_BYTES:
        raise CannotDecrypt("The encrypted content is too short to hold a new key.")
    return data[:KEY_BYTES], data[KEY_BYTES:]


def open_new_key(key: bytes, sealed: str) -> bytes:
    """The key in a message 32's `newGroupKey`, encrypted with the message's own.

    Raises:
        CannotDecrypt: it is not hex, or not a key.
    """
    return _key(decrypt(key, sealed))


def load_public_key(pem: str) -> rsa.RSAPublicKey:
    """A reader's RSA key from its SPKI PEM.

    Raises:
        CannotDecrypt: it is no RSA key, or too small or too large to be used.
    """
    if len(pem) > MAX_PEM:
        raise CannotDecrypt("The RSA public key is too long.")
    try:
        key = serialization.load_pem_public_key(pem.encode())
    except (ValueError, UnicodeError, UnsupportedAlgorithm):
        raise CannotDecrypt("The RSA public key cannot be read as PEM.") from None
    if not isinstance(key, rsa.RSAPublicKey):
        raise CannotDecrypt("The public key is not an RSA key.")
    if not MIN_RSA_BITS <= key.key_size <= MAX_RSA_BITS:
        raise CannotDecrypt(f"The RSA key has {key.key_size} bits; {MIN_RSA_BITS} to {MAX_RSA_BITS} are taken.")
    return key


def seal(public_key: rsa.RSAPublicKey, key: bytes) -> str:
    """A group key for one reader: RSA-OAEP in hex.

    Raises:
        CannotDecrypt: the RSA key is not usable.
    """
    try:
        return public_key.encrypt(key, _OAEP).hex()
    except ValueError:
        raise CannotDecrypt("The RSA public key cannot encrypt.") from None


def load_private_key(pem: str) -> rsa.RSAPrivateKey:
    """Our own RSA key from its PKCS8 PEM.

    Raises:
        CannotDecrypt: it is no RSA key.
    """
    try:
        key = serialization.load_pem_private_key(pem.encode(), password=None)
    except (ValueError, TypeError, UnicodeError, UnsupportedAlgorithm):
        raise CannotDecrypt("The RSA private key cannot be read as PEM.") from None
    if not isinstance(key, rsa.RSAPrivateKey):
        raise CannotDecrypt("The private key is not an RSA key.")
    return key


def public_pem(key: rsa.RSAPrivateKey) -> str:
    """The public half as SPKI PEM, as it goes into a request."""
    encoding, layout = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_key().public_bytes(encoding, layout).decode()


def private_pem(key: rsa.RSAPrivateKey) -> str:
    """The key as PKCS8 PEM."""
    encoding, layout = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(encoding, layout, serialization.NoEncryption()).decode()


def unseal(private_key: rsa.RSAPrivateKey, sealed: str) -> bytes:
    """The group key inside a `seal`.

    Raises:
        CannotDecrypt: it was not made for this key, or holds no group key.
    """
    data = _hex(sealed, "The encrypted group key")
    try:
        opened = private_key.decrypt(data, _OAEP)
    except ValueError:
        raise CannotDecrypt("The group key was not encrypted for our RSA key.") from None
    return _key(opened)


def _key(opened: bytes) -> bytes:
    if len(opened) != KEY_BYTES:
        raise CannotDecrypt(f"A group key has {KEY_BYTES} bytes, not {len(opened)}.")
    return opened


def _hex(text: str, what: str) -> bytes:
    # bytes.fromhex passes over white space, which is no part of a ciphertext.
    try:
        if not text.isspace() and text.isalnum():
            return bytes.fromhex(text)
    except ValueError:
        pass
    raise CannotDecrypt(f"{what} is not hex.")
