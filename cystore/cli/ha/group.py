"""The commands of `cystore ha`."""

from __future__ import annotations

from cystore.cli.ha.orders import DEMOTE, PROMOTE
from cystore.cli.ha.run import COMMAND as RUN
from cystore.cli.ha.status import STATUS
from cystore.operate.command import Group

COMMAND = Group(
    name="ha",
    summary="replication: how a store and its peers stand, and who is master",
    description="A master ships its log to slaves on other hosts: see docs/replication.md.",
    commands=(STATUS, PROMOTE, DEMOTE, RUN),
)
