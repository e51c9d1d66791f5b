"""`cystore ha run`: `cystore serve` for a member of a group, which also makes the store."""

from __future__ import annotations

from cystore.cli.timed.serve import add_once, keep_open
from cystore.operate.command import Command

COMMAND = Command(
    name="run",
    summary="has a store open with its services",
    description=(
        "Has the store at PATH open with all services, until Ctrl-C: for a host where no other program does, for\n"
        "example a member of a group that only replicates. When the processes of the store are asked to leave it,\n"
        "because the log of a returned master must be truncated, it closes the store and opens it again."
    ),
    examples=(
        "cystore ha run /var/lib/app/store --config /etc/app/cystore.toml",
        "cystore ha run /var/lib/app/store --set broker_role=elected --set ha_group=orders --set ha_member=host-2",
    ),
    add_arguments=add_once,
    run=keep_open,
)
