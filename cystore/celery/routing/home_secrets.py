"""The secrets of homes, with which their workers prove their answers: `cystore_answers_secret_file`.

The setting names a file with the secret of all homes, or is a dict of such files by the ids of homes. A client with the
setting believes no answer without a proof.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from celery.exceptions import ImproperlyConfigured

from cystore.celery.routing.messages import SECRET_SETTING, ProtocolError, checked_home
from cystore.errors import StoreError

NOBODYS = b""  # of a home that the setting leaves out: it cannot prove anything


class HomeSecrets:
    """The setting of an app, read once. Raises ImproperlyConfigured."""

    def __init__(self, conf: Any) -> None:
        given = conf.get(SECRET_SETTING)
        self._all: bytes | None = None
        self._of: dict[str, bytes] = {}
        self._some = bool(given)
        if isinstance(given, Mapping):
            for home, file in given.items():
                try:
                    self._of[checked_home(home, SECRET_SETTING)] = _secret_in(str(file))
                except ProtocolError as error:
                    raise ImproperlyConfigured(f"{error}: {home!r}") from None
        elif given:
            self._all = _secret_in(str(given))

    def of(self, home: str) -> bytes | None:
        """The secret of a home. None if the app has none: then answers need no proof, and get none."""
        if not self._some:
            return None
        return self._all if self._all is not None else self._of.get(home, NOBODYS)


@functools.lru_cache(64)
def _secret_in(file: str) -> bytes:
    from cystore.ha.link.secret import secret_in  # few apps have a secret

    try:
        return secret_in(file, SECRET_SETTING)
    except StoreError as error:
        raise ImproperlyConfigured(str(error)) from error
