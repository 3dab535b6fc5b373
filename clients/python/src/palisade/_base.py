"""The part of a client that threads and asyncio share."""

from __future__ import annotations

import os
from typing import Any, Callable, Optional, Sequence, Union

from ._bearer import Bearer
from ._exchange import Exchange
from ._model import Duration
from ._process import OfOneProcess
from ._reports import Reports
from ._requests import Requests
from ._transport import SyncHttp


class BaseClient(OfOneProcess):
    def __init__(
        self,
        url: Union[str, Sequence[str], None] = None,
        *,
        patience: Duration = "5s",
        margin: Duration = 0,
        token: Optional[str] = None,
        token_file: Union[str, os.PathLike[str], None] = None,
        verify: Any = True,
        cert: Any = None,
        report_refusals: bool = True,
        notices: bool = True,
    ) -> None:
        self._requests = Requests(url, patience, margin, Bearer(token, token_file), verify, cert)
        self._reports = Reports(report_refusals, self._requests.endpoints, self._background_exchange())
        self._open(notices)

    def _open(self, notices: bool) -> None:
        """Makes the transport, and the listening."""
        raise NotImplementedError

    def _background_exchange(self) -> Callable[[], Exchange]:
        """It keeps no reference to the client."""
        settings = self._requests.settings
        return lambda: SyncHttp(settings)

    @property
    def reports_dropped(self) -> int:
        """How many refusals of a fence this process could not report: nobody answered, or too many came at once."""
        return self._reports.dropped
