"""The CAs and the certificate of a client, read from its files for each new connection."""

from __future__ import annotations

import calendar
import contextlib
import os
import ssl
import time
from typing import Any, Optional, Union

from ._process import Guard
from .errors import Invalid

_PEM = Union[str, os.PathLike[str]]


class Certificates(ssl.SSLContext):
    """A certificate may be valid for an hour, and the client may run for weeks, so each new connection reads the
    files again. While the files cannot be used, because one of two is being replaced, the old content stays in use.

    `verify`: True, False, a file or a folder of CAs, or an `SSLContext`. `cert`: a file, or a tuple of a certificate,
    its key, and the key's password."""

    def __new__(cls, *_: Any) -> Certificates:
        return super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)

    def __init__(self, verify: Any, cert: Any) -> None:
        self._verify, self._chain = _checked_verify(verify), _checked_cert(cert)
        self._files = [file for file in (self._verify, *self._chain[:2]) if _is_file(file)]
        self._guard = Guard()
        try:
            self._contents = self._read()
            self._context = self._loaded()
        except (OSError, ssl.SSLError) as error:
            named = ", ".join(map(str, self._files))
            raise Invalid("invalid", f"verify and cert cannot be used ({named}): {error}") from None

    def wrap_socket(self, *arguments: Any, **named: Any) -> ssl.SSLSocket:
        return self._current().wrap_socket(*arguments, **named)

    def wrap_bio(self, *arguments: Any, **named: Any) -> ssl.SSLObject:
        return self._current().wrap_bio(*arguments, **named)

    def _current(self) -> ssl.SSLContext:
        """As the files have it now, or else as it was."""
        with self._guard:
            with contextlib.suppress(OSError, ssl.SSLError):
                contents = self._read()
                if contents != self._contents:
                    self._context = self._loaded()
                    self._contents = contents
            return self._context

    def ended(self) -> Optional[str]:
        """Words for an error if the client's certificate has ended by the clock here. A server ends the connection
        then, and often nothing comes through of its reason."""
        if not self._chain:
            return None
        try:
            with open(self._chain[0], encoding="ascii", errors="replace") as opened:
                ends = _end_of(opened.read())
        except (OSError, ValueError, IndexError):
            return None
        if time.time() <= ends:
            return None
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ends))
        return f"the client's certificate {self._chain[0]} has expired ({at}): put a new one in its place"

    def _read(self) -> list[bytes]:
        contents = []
        for file in self._files:
            with open(file, "rb") as opened:
                contents.append(opened.read())
        return contents

    def _loaded(self) -> ssl.SSLContext:
        if not isinstance(self._verify, ssl.SSLContext):
            context = _trusting(self._verify)
            self._present(context)
            context.set_alpn_protocols(["http/1.1"])
            return context
        # A pair that does not fit would take the caller's context its certificate.
        self._present(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        self._present(self._verify)
        return self._verify

    def _present(self, context: ssl.SSLContext) -> None:
        if self._chain:
            certificate, key, password = self._chain
            context.load_cert_chain(certificate, key, password)


def _end_of(pem: str) -> int:
    """The end of the first certificate, in seconds since 1970. Python's own function for this is private."""
    end = pem.index(ssl.PEM_FOOTER) + len(ssl.PEM_FOOTER)
    der = ssl.PEM_cert_to_DER_cert(pem[pem.index(ssl.PEM_HEADER) : end])
    at = _element(der, _element(der, 0)[1])[1]
    if der[at] == 0xA0:  # The version, which may be left out.
        at = _element(der, at)[2]
    for _ in range(3):  # The serial number, the signature's algorithm, the issuer.
        at = _element(der, at)[2]
    begin = _element(der, at)[1]
    kind, start, end = _element(der, _element(der, begin)[2])
    year = "%y" if kind == 0x17 else "%Y"
    return calendar.timegm(time.strptime(der[start:end].decode(), f"{year}%m%d%H%M%SZ"))


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """The kind of an element, and where its content starts and ends."""
    kind, length, start = der[at], der[at + 1], at + 2
    if length & 0x80:
        start += length & 0x7F
        length = int.from_bytes(der[at + 2 : start], "big")
    return kind, start, start + length


def _trusting(verify: Any) -> ssl.SSLContext:
    if verify is True:
        return ssl.create_default_context()
    if verify is False:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    return ssl.create_default_context(**{"capath" if os.path.isdir(verify) else "cafile": verify})


def _is_file(value: Any) -> bool:
    return isinstance(value, (str, os.PathLike)) and not os.path.isdir(value)


def _checked_verify(verify: Any) -> Any:
    if isinstance(verify, (bool, str, os.PathLike, ssl.SSLContext)):
        return verify
    raise Invalid("invalid", f"verify is {verify!r}: True, a file of CAs in PEM, or an ssl.SSLContext is needed")


def _checked_cert(cert: Any) -> tuple[Any, ...]:
    """Nothing, or a certificate, its key, and its password: without one, OpenSSL would ask at the terminal."""
    if cert is None:
        return ()
    chain = tuple(cert) if isinstance(cert, (tuple, list)) else (cert,)
    certificate, key, password, *more = (*chain, None, None, None)[: max(3, len(chain))]
    if not isinstance(certificate, (str, os.PathLike)) or not isinstance(key, (str, os.PathLike, type(None))) or more:
        kind = type(cert).__name__
        raise Invalid("invalid", f"cert is a {kind}: a file in PEM is needed, or a tuple (certificate, key)")
    return certificate, key, password or ""
