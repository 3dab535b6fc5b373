"""Tells the client of a grant that a fence refused its token as stale."""

from __future__ import annotations

import contextlib
from typing import Iterator, Optional

from ._rejections import rejection
from .errors import Stale
from .rule import Pass


@contextlib.contextmanager
def reported(presented: Optional[Pass], resource: str, operation: str) -> Iterator[None]:
    """The error passes as it is. `operation`: a word, without anything of the content."""
    try:
        yield
    except Exception as error:
        grant = None if presented is None else presented._grant
        refused = None if presented is None or grant is None else rejection(error)
        if presented is not None and isinstance(refused, Stale) and refused.highest is not None:
            grant._refused(presented.lock, resource, operation, refused.highest)  # type: ignore[union-attr]
        raise
