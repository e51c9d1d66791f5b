"""The role of a store: master, or slave of a master. The manifest keeps it, so every process that opens the store
knows it."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any, NamedTuple, get_args

from cystore._native.derived.delay import Delivered
from cystore._native.memory.control import Control
from cystore.config import BrokerRole, StoreConfig
from cystore.engine.manifest.manifest import Facts, Manifest, read_facts
from cystore.errors import StoreConfigError
from cystore.ha.link.address import address_of, endpoints_of, masters_of
from cystore.layout import FLAGS
from cystore.system import files
from cystore.system.platform import born_ns

log = logging.getLogger("cystore")

ROLES = get_args(BrokerRole)
SECTION = "replication"  # in the manifest
PLACE = "place"  # in the manifest of a member of a group, and of a slave that became the master
EVERYWHERE = ("0.0.0.0", "::")  # to listen on
FLAG_SLAVE = FLAGS["FLAG_SLAVE"][0]


class Role(NamedTuple):
    """`master`: the address that a slave follows, or the addresses where it looks for its master, with commas between;
    "" for a master. `group`, `member`, `etcd`: for a store whose master is elected."""

    broker_role: str = "async_master"
    master: str = ""
    group: str = ""
    member: str = ""
    etcd: str = ""

    @property
    def is_slave(self) -> bool:
        return self.broker_role == "slave"

    @property
    def is_elected(self) -> bool:
        """Whether the master is elected through etcd."""
        return self.broker_role == "elected"

    def as_json(self) -> dict[str, str]:
        """The role in the manifest's form."""
        known = {"role": self.broker_role, "master": self.master}
        return (
            {**known, "group": self.group, "member": self.member, "etcd": self.etcd}
            if self.is_elected
            else known
        )


def role_of(facts: Facts) -> Role:
    """The role in the manifest."""
    found: Any = facts.sections.get(SECTION)
    if not isinstance(found, dict) or found.get("role") not in ROLES:
        return Role()
    texts = [found.get(name) for name in ("master", "group", "member", "etcd")]
    return Role(found["role"], *(text if isinstance(text, str) else "" for text in texts))


def place_of(root: Path) -> str:
    """What a directory has, and no copy of it: its inode, and when it was made, because ext4 gives the inode of a
    removed directory to the next one. The device is no part of it, because its number may change when the host
    starts."""
    with files.translated(root):
        return f"{os.stat(root).st_ino}-{born_ns(root)}"


def is_copied(root: Path, facts: Facts) -> bool:
    """Whether a store is a copy: its manifest was written in another directory, by a member of a group, or by a slave
    that became the master. The log of the copy may be old, and the other directory may be in use."""
    return facts.sections.get(PLACE) not in (None, place_of(root))


def keep_place(manifest: Manifest, root: Path) -> None:
    """Notes that this directory, and no copy of it, has the role in its manifest."""
    place = place_of(root)
    if manifest.snapshot().sections.get(PLACE) != place:
        manifest.set_section(PLACE, place)


def master_of(manifest: Manifest, root: Path) -> str:
    """The address of a slave's master, or of the elected one; "" if it is not known. Of a slave that looks for its
    master at several addresses, and does not follow now, all of them."""
    from cystore.ha.status import read_status  # nearly no open needs it

    given = role_of(manifest.snapshot()).master
    if given and "," not in given:
        return given
    status = read_status(root)
    return status.master if not given or (status.connected and not status.is_old) else given


def enter_role(manifest: Manifest, config: StoreConfig) -> None:
    """Stores the role that the settings give, for every process; without one, the store keeps its role. Raises
    StoreConfigError."""
    known = role = role_of(manifest.snapshot())
    if config.gives("broker_role"):
        slave = config.broker_role == "slave"
        role = Role(config.broker_role, config.ha_master_address or known.master if slave else "")
        if role.is_elected:
            role = _elected(known, config)
    elif config.ha_master_address and known.is_slave:
        role = Role("slave", config.ha_master_address)
    elif config.ha_master_address:
        raise StoreConfigError('ha_master_address is the setting of a slave: give broker_role="slave" too')
    if role.is_slave:
        if not role.master:
            raise StoreConfigError("a slave needs ha_master_address, HOST:PORT of its master")
        masters_of(role.master)
    was_slave = known.is_slave or PLACE in manifest.snapshot().sections
    if was_slave and config.gives("broker_role") and not role.is_slave and not role.is_elected:
        keep_place(manifest, manifest.path.parent)
    if role != known:
        if role.is_slave and not known.is_slave and not known.is_elected:
            _forget_confirmed(manifest.path.parent)
        manifest.set_section(SECTION, role.as_json())
        now = f"a slave of {role.master}" if role.is_slave else role.broker_role
        if role.is_elected:
            now = f"{role.member} of group {role.group}, whose master is elected"
        log.info("%s: now %s", manifest.path.parent, now)


def looking_for(masters: str, root: Path, config: StoreConfig) -> StoreConfig:
    """The settings for a store by a URL with hosts: a new store, or a slave, follows the master among them. A member of
    a group knows its master from etcd, and a master has none. Raises StoreFormatError, StoreConfigError."""
    from cystore.engine.inspect.recognize import is_store  # nearly no open needs it

    given = [name for name in ("broker_role", "ha_master_address") if config.gives(name)]
    if given:
        raise StoreConfigError(f"the URL names the hosts of the master: do not give {given[0]} too")
    if root.exists() and is_store(root) and not role_of(read_facts(root)[0]).is_slave:
        return config
    return config.but(broker_role="slave", ha_master_address=masters)


def _forget_confirmed(root: Path) -> None:
    """Forgets the confirmed position of an earlier time as a slave or a member: the store was a master since then, and
    its readers saw its whole log."""
    from cystore.ha.epochs.confirmed_file import limit_confirmed
    from cystore.ha.status import read_status, write_status  # nearly no open needs it

    limit_confirmed(root, 0)
    status = read_status(root)
    if status.confirmed:
        write_status(root, status.with_facts(confirmed=0))


def _elected(known: Role, config: StoreConfig) -> Role:
    """The member by the settings; missing settings come from the manifest. Raises StoreConfigError."""
    from cystore.ha.link.wire import NAME  # nearly no open needs it

    role = Role(
        "elected",
        group=config.ha_group or known.group,
        member=config.ha_member or known.member,
        etcd=config.ha_etcd_endpoints or known.etcd,
    )
    for setting, name in (("ha_group", role.group), ("ha_member", role.member)):
        if not NAME.fullmatch(name):
            raise StoreConfigError(f"{setting} must be 1 to 64 letters, digits, dots, - and _, not {name!r}")
    endpoints_of(role.etcd)
    if config.ha_listen_port:
        host, _ = address_of(advertised(config), "ha_advertised_address")
        if host in EVERYWHERE:
            raise StoreConfigError(f"other members cannot connect to {host}: give ha_advertised_address")
    return role


def advertised(config: StoreConfig) -> str:
    """The address at which other members reach this member when it is master."""
    return config.ha_advertised_address or f"{config.ha_listen_host}:{config.ha_listen_port}"


def check_pooled(manifest: Manifest, config: StoreConfig) -> None:
    """Raises StoreConfigError for a pool of buffers in a store that may be a slave: what its master sends goes to the
    segments (MessageStoreConfig.isTransientStorePoolEnable)."""
    role = config.broker_role if config.gives("broker_role") else role_of(manifest.snapshot()).broker_role
    if role in ("slave", "elected"):
        raise StoreConfigError(f"transient_store_pool_enable: a store with broker_role {role!r} has no pool")


def show_role(manifest: Manifest, control: Control) -> None:
    """Sets or clears the flag that tells the appends of every process that the store is a slave. A store whose master
    is elected is a slave until it has an epoch."""
    role = role_of(manifest.snapshot())
    if not role.is_elected and not role.is_slave:  # the master says what is confirmed in a slave
        control.confirming = 0  # a process that opened the store as a member still reads it
    if role.is_elected:
        if control.epoch == 0:
            control.set_flag(FLAG_SLAVE)
    elif role.is_slave:
        control.set_flag(FLAG_SLAVE)
    elif control.flags & FLAG_SLAVE:
        end_slave(control)


def end_slave(control: Control) -> None:
    """Accepts appends from now on. Marks the deliveries as unfinished: the master's deliveries are counted before this
    store delivers a message."""
    Delivered(control).unfinished = True
    control.clear_flag(FLAG_SLAVE)
