"""The bearer token of a client: a fixed one, or that of a file."""

from __future__ import annotations

import contextlib
import os
import re
from typing import Any, Union

import httpx

from .errors import Invalid


class Bearer:
    """The token that was given, that of a file, or that of the environment. No error repeats it: it is a secret."""

    def __init__(self, token: Any, file: Union[str, os.PathLike[str], None]) -> None:
        if token is not None and file is not None:
            raise Invalid("invalid", "token and token_file are both given: give one of them")
        self._file = file
        if file is not None:
            self._token = _checked(str(file), _read(file))
        else:
            name = "PALISADE_TOKEN" if token is None else "token"
            found = os.environ.get("PALISADE_TOKEN") if token is None else token
            self._token = "" if found is None else _checked(name, found)

    @property
    def is_set(self) -> bool:
        return self._token != ""

    def current(self) -> str:
        """The token as it is now, or "". A file is read again: its token may be replaced before it expires. While the
        file cannot be used, the last token stays."""
        if self._file is not None:
            with contextlib.suppress(Invalid):
                self._token = _checked(str(self._file), _read(self._file))
        return self._token

    def __call__(self, request: httpx.Request) -> httpx.Request:
        """As `auth` of httpx, which asks for each request."""
        token = self.current()
        if token:
            request.headers["Authorization"] = f"Bearer {token}"
        return request


def _read(file: Union[str, os.PathLike[str]]) -> str:
    if not isinstance(file, (str, os.PathLike)):
        # `open` takes a number for an open file, and closes that.
        raise Invalid("invalid", f"token_file is {file!r}: the path of a file is needed")
    try:
        with open(file, encoding="utf-8") as text:
            return text.read()
    except (OSError, ValueError) as error:
        raise Invalid("invalid", f"token_file cannot be read: {error}") from None


def _checked(name: str, token: Any) -> str:
    if not isinstance(token, str) or not re.fullmatch("[!-~]+", token.strip()):
        raise Invalid("invalid", f"{name}: a bearer token is printable ASCII without spaces")
    return token.strip()
