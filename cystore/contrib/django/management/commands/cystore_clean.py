"""`manage.py cystore_clean`: `cystore clean` for the store of the result backend."""

from __future__ import annotations

from cystore.cli.change.clean import COMMAND
from cystore.contrib.django.wrapped import StoreCommand


class Command(StoreCommand):
    """The command, as Django finds it."""

    command = COMMAND
