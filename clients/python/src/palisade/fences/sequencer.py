"""Sequencers: fencing tokens that the authority has signed, checked for a resource of your own, without asking anybody.

    keys = Keys(jwks)                                  # the text of the authority's /.well-known/jwks.json
    sequencer = keys.check(text, "orders", writes=True)
    decide(record, pass_of(sequencer), operation, Rule(max_jump=None))

A holder gets `text` from `grant.sequencer()`. It does not expire: the fence still compares its token with the highest
one, and no bound of a jump applies to it. When the authority's keys change, make new `Keys`. They need the package
cryptography: `pip install 'palisade-client[sequencer]'`."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from typing import Any, Optional, Union

from .._model import MAX_TOKEN, slot_key
from ..errors import Invalid, PalisadeError

#: The header of a request that carries a sequencer.
HEADER = "X-Fencing-Sequencer"
#: The longest sequencer that is looked at, in bytes.
MAX_BYTES = 4_096

_EXCLUSIVE, _SHARED, _PERMITS = _MODES = ("exclusive", "shared", "permits")
_PARTS = "it must have three parts in base64url, with dots between them"


class BadSequencer(PalisadeError):
    """The sequencer is not believed here. `code` is `bad_sequencer`, `wrong_authority` or `wrong_lock`."""


@dataclass(frozen=True)
class Sequencer:
    """The content of a sequencer whose signature was verified. A fence accepts it like a grant."""

    authority: str
    lock: str
    #: `exclusive`, `shared` or `permits`.
    mode: str
    token: int
    #: Of a semaphore, rising; none for other locks.
    slots: tuple[int, ...] = ()
    #: The grant's principal; None where the authority does not know it.
    principal: Optional[str] = None

    def covers(self, resource: str) -> None:
        """Raises `BadSequencer` (`wrong_lock`) unless it is for this resource: the one with the lock's name, or for
        permits one of `LOCK~SLOT`. Without this check, a holder of any lock could raise every fence."""
        held = [slot_key(self.lock, slot) for slot in self.slots] if self.mode == _PERMITS else [self.lock]
        if resource not in held:
            raise BadSequencer(
                "wrong_lock",
                f"the sequencer is for {', '.join(held)}, and this resource is {resource}: acquire that lock",
            )


class Keys:
    """The public keys of one authority: the text of its /.well-known/jwks.json. Keys of other kinds than Ed25519 are
    left out. Raises `Invalid` for any other text."""

    def __init__(self, jwks: Union[str, bytes]) -> None:
        try:
            from cryptography.exceptions import InvalidSignature  # noqa: PLC0415
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415
        except ImportError:
            raise ImportError(
                "sequencers are checked with the package cryptography: pip install 'palisade-client[sequencer]'"
            ) from None
        self._invalid_signature = InvalidSignature
        found = _object((jwks.encode(errors="replace") if isinstance(jwks, str) else jwks).strip())
        listed = found.get("keys") if found else None
        if not found or not isinstance(listed, list) or not all(isinstance(key, dict) for key in listed):
            raise _bad_keys("this is not a set of keys")
        if not _is_name(found.get("issuer")):
            raise _bad_keys(f"issuer is {found.get('issuer')!r}, which is not the name of an authority")
        #: The authority whose keys these are.
        self.issuer: str = found["issuer"]
        self._keys: dict[str, Ed25519PublicKey] = {}
        for key in listed:
            if key.get("kty") != "OKP" or key.get("crv") != "Ed25519":
                continue
            kid, x = key.get("kid"), _decoded(key["x"]) if isinstance(key.get("x"), str) else None
            if not isinstance(kid, str):
                raise _bad_keys("a key has no kid")
            if x is None or len(x) != 32:
                raise _bad_keys(f"x of the key {kid!r} is not 32 bytes")
            if kid in self._keys:
                raise _bad_keys(f"two keys are called {kid!r}")
            self._keys[kid] = Ed25519PublicKey.from_public_bytes(x)
        if not self._keys:
            raise _bad_keys("it has no key for Ed25519")

    def check(self, text: str, resource: str, *, writes: bool) -> Sequencer:
        """Checks a sequencer that was presented at a resource: that the authority issued it, that it is for this
        resource, and that a reader does not write. Raises `BadSequencer`."""
        sequencer = self.verify(text)
        sequencer.covers(resource)
        if writes and sequencer.mode == _SHARED:
            raise _bad("the sequencer is a reader's (mode shared), and this request writes")
        return sequencer

    def verify(self, text: str) -> Sequencer:
        """Checks that the authority issued it, and returns its content. `Sequencer.covers` checks that it is for the
        resource at hand. Raises `BadSequencer`."""
        if len(text) > MAX_BYTES:
            raise _malformed(f"it is longer than {MAX_BYTES} bytes")
        signed, _, last = text.rpartition(".")
        header, payload, signature = (_decoded(part) for part in (*_two(signed), last))
        if header is None or payload is None or signature is None:
            raise _malformed(_PARTS)
        named = _object(header)
        if not named or named.keys() != {"alg", "kid", "typ"} or not all(type(name) is str for name in named.values()):
            raise _malformed("its header must have alg, kid and typ, once each")
        # Never taken from the sequencer: "none" is an algorithm, too.
        if named["alg"] != "EdDSA":
            raise _bad(f"the sequencer's algorithm is {named['alg'][:64]!r}: only EdDSA is accepted")
        if named["typ"] != "palisade-sequencer":
            raise _malformed("its typ is not palisade-sequencer")
        key = self._keys.get(named["kid"])
        if key is None:
            raise _bad(
                f"the sequencer names the key {named['kid'][:64]!r}, which is not known here: get the authority's "
                "/.well-known/jwks.json again"
            )
        try:
            key.verify(signature, signed.encode("ascii"))
        except self._invalid_signature:
            raise _bad("the sequencer's signature is wrong: the authority did not issue it") from None
        return self._read(_object(payload))

    def _read(self, claims: Optional[dict[str, Any]]) -> Sequencer:
        """Reads the payload, whose signature was verified."""
        known = {"iss", "lock", "mode", "token", "slots", "sub"}
        claims = claims or {}
        slots, principal, token = claims.get("slots", []), claims.get("sub"), claims.get("token")
        if (
            not claims.keys() <= known
            or not isinstance(claims.get("iss"), str)
            or claims.get("mode") not in _MODES
            or not isinstance(slots, list)
            or not all(type(slot) is int and 0 <= slot < 2**32 for slot in slots)
            or not isinstance(principal, (str, type(None)))
        ):
            raise _malformed("its payload is not that of a sequencer")
        if claims["iss"] != self.issuer:
            named = claims["iss"][:64]
            raise BadSequencer(
                "wrong_authority", f"authority {named} issued the sequencer, and the keys here belong to {self.issuer}"
            )
        if 0 in slots or slots != sorted(set(slots)) or bool(slots) != (claims["mode"] == _PERMITS):
            raise _malformed("its slots do not fit its mode")
        if not _is_name(claims.get("lock")):
            raise _malformed("its lock is not a name")
        if type(token) is not int or not 1 <= token <= MAX_TOKEN:
            raise _malformed("its token is out of range")
        return Sequencer(self.issuer, claims["lock"], claims["mode"], token, tuple(slots), principal)


def _two(signed: str) -> list[str]:
    two = signed.split(".")
    if len(two) != 2:
        raise _malformed(_PARTS)
    return two


def _decoded(part: str) -> Optional[bytes]:
    """Base64url in its one spelling: without padding, and with no bits after the last byte."""
    if not re.fullmatch(r"[A-Za-z0-9_-]*", part) or len(part) % 4 == 1:
        return None
    found = base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
    return found if base64.urlsafe_b64encode(found).decode().rstrip("=") == part else None


def _object(text: bytes) -> Optional[dict[str, Any]]:
    """A JSON object, in UTF-8 and with nothing before it, in which no member stands twice: two readers could take
    different ones."""

    def once(members: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(members)
        if len(found) != len(members):
            raise ValueError("a member occurs twice")
        return found

    if not text.startswith(b"{"):
        return None
    try:
        found: dict[str, Any] = json.loads(text.decode(), object_pairs_hook=once)
    except (ValueError, RecursionError):  # the latter for very deep arrays, which anybody can send
        return None
    return found


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[ -~]{1,255}", value) is not None


def _bad(message: str) -> BadSequencer:
    return BadSequencer("bad_sequencer", message)


def _malformed(why: str) -> BadSequencer:
    return _bad(f"the sequencer is malformed: {why}")


def _bad_keys(why: str) -> Invalid:
    return Invalid("invalid", f"{why}; it should be what the authority has at /.well-known/jwks.json")
