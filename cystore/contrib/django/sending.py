"""Sending after the commit of Django's transaction."""

from __future__ import annotations

from typing import Any

from celery.canvas import Signature
from celery.result import ResultBase
from django.db import transaction


def send_on_commit(call: Signature, *, using: str | None = None, **options: Any) -> ResultBase:
    """Sends a signature, or a whole workflow, once the transaction is committed; at once without a transaction. After a
    rollback nothing is sent.

    Returns its result now, so that a row of the same transaction can keep its id. `options` are those of `apply_async`;
    `using` names the database. If the process dies between the commit and the sending, nothing is sent.
    """
    given = call.clone().set(**options)
    result: ResultBase = given.freeze()
    transaction.on_commit(lambda: given.apply_async(), using=using)
    return result
