"""Goal: nobody else can put something in the place of a store or of a file in it, and a store says so before it
writes. Method: directories with every wrong owner, mode and link; other users in processes of their own, which takes
root to make."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

import cystore
from cystore import StoreConfigError, StorePermissionError
from cystore.columns.arrow import places_of
from cystore.config_sources import resolve
from cystore.ha.election.etcd import Etcd
from cystore.ha.link.secret import secret_in
from cystore.operate import backup
from cystore.system import files, folders, ownership
from cystore.system.links import real_path
from tests.support.disks.access import access, check_access, no_umask
from tests.support.process import Failed
from tests.support.small_stores import open_small
from tests.support.users import (
    ALICE,
    BOB,
    COMMANDS,
    EVE,
    NEEDS_ROOT,
    TEAM,
    User,
    common_place,
    needs_root,
)

pytestmark = pytest.mark.unsanitized  # about owners and modes of files, which no kernel looks at


@pytest.fixture
def place() -> Iterator[Path]:
    with common_place() as folder:
        yield folder


def fill(root: Path, **more: object) -> None:
    """A store with a file of each kind in it."""
    with open_small(root, **more) as store:
        for _ in range(3):
            store.put("T", b"body", keys=("key",))
    with open_small(root, **more) as store:
        store.put("T", b"body", keys=("key",))


@pytest.fixture
def umask() -> Iterator[None]:
    with no_umask():
        yield


def test_what_is_made_is_for_the_owner_alone(tmp_path, umask):
    fill(tmp_path / "a" / "store")
    assert len(access(tmp_path / "a")) > 10
    check_access(tmp_path / "a")


@pytest.mark.parametrize("umask", [0, 0o022, 0o077])
def test_what_is_made_is_for_the_group_that_is_named(tmp_path, umask):
    group = TEAM if os.geteuid() == 0 else os.getgid()
    before = os.umask(umask)
    try:
        fill(tmp_path / "store", group=str(group))
    finally:
        os.umask(before)
    check_access(tmp_path / "store", file=0o660, folder=0o2770)
    assert {path.stat().st_gid for path in (tmp_path / "store").rglob("*")} == {group}


def test_an_empty_directory_of_ours_is_shared_and_a_store_is_not(tmp_path):
    group = str(TEAM if os.geteuid() == 0 else os.getgid())
    (tmp_path / "empty").mkdir(mode=0o755)
    fill(tmp_path / "empty", group=group)
    assert stat.S_IMODE((tmp_path / "empty").stat().st_mode) == 0o2770
    fill(tmp_path / "private")
    with pytest.raises(StorePermissionError, match=r"chgrp -R .* find .* -type d"):
        open_small(tmp_path / "private", group=group)


def test_a_group_that_nobody_knows_is_named():
    with pytest.raises(StoreConfigError, match="no group 'no-such-group'"):
        ownership.group_id("no-such-group")
    assert (
        ownership.group_id("root") == 0 and ownership.group_id("77") == 77 and ownership.group_id("") is None
    )


WRITABLE = {
    "the store": ("", 0o777),
    "the store, with a sticky bit": ("", 0o1777),
    "the folder above": ("..", 0o777),
    "a folder inside": ("commitlog", 0o777),
    "a file inside": ("lock", 0o666),
}


@pytest.mark.parametrize("name", WRITABLE)
def test_a_store_that_everybody_may_write_to_is_refused(tmp_path, name):
    root = tmp_path / "above" / "store"
    fill(root)
    inside, mode = WRITABLE[name]
    place = root.parent if inside == ".." else root / inside
    before = stat.S_IMODE(place.stat().st_mode)
    place.chmod(mode)
    listed = access(root)
    with pytest.raises(StorePermissionError, match=r"every user may write|that every user may") as error:
        open_small(root)
    assert error.value.path == place and "chmod go-w" in str(error.value)
    assert access(root) == listed, "nothing is written before the look"
    with open_small(root, read_only=True) as store:
        assert store.get("T", 0, 0).messages
    with open_small(root, allow_any_owner=True) as store:
        assert store.put("T", b"") is not None
    place.chmod(before)
    open_small(root).close()


def test_below_a_sticky_directory_a_store_of_ours_is_safe(tmp_path):
    fill(tmp_path / "above" / "store")
    (tmp_path / "above").chmod(0o1777)
    open_small(tmp_path / "above" / "store").close()
    open_small(tmp_path / "above" / "new").close()


def test_nothing_is_made_below_a_directory_that_everybody_may_write_to(tmp_path):
    (tmp_path / "above").mkdir()
    (tmp_path / "above").chmod(0o777)
    with pytest.raises(StorePermissionError, match="sticky bit"):
        open_small(tmp_path / "above" / "new" / "store")
    assert not list((tmp_path / "above").iterdir())


PLACES = (
    *(
        "lock",
        "checkpoint",
        "commitlog",
        "consumequeue",
        "index",
        "config",
        "tmp",
        "abort",
        "control",
        "quarantine",
    ),
    *("commitlog/00000000000000000000", "commitlog/CYSTORE", "consumequeue/T", "consumequeue/T/0"),
    *("consumequeue/T/0/00000000000000000000", "index/FIRST", "config/queueOffset.json"),
)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("name", PLACES)
def test_a_link_in_the_place_of_anything_in_a_store_is_refused(tmp_path, name, read_only):
    root = tmp_path / "store"
    fill(root)
    if name.endswith("FIRST"):
        name = f"index/{min(os.listdir(root / 'index'))}"
    place, outside = root / name, tmp_path / "outside"
    if place.exists():
        place.rename(outside)
    else:
        outside.mkdir()
    place.symlink_to(outside)
    before = access(outside)
    if read_only and name in ("tmp", "abort", "control", "quarantine"):
        return  # a reader alone in the store opens none of them
    with pytest.raises(StorePermissionError, match="symbolic link") as error:
        open_small(root, read_only=read_only).put("T", b"")
    assert Path(str(error.value.path)) == place
    assert access(outside) == before


def test_a_link_that_appears_later_is_refused_when_it_is_met(tmp_path, caplog):
    """As the folder of a queue, and as that of the log."""
    (tmp_path / "outside").mkdir()
    with open_small(tmp_path / "store") as store:
        store.put("T", b"")
        (tmp_path / "store" / "consumequeue").mkdir(exist_ok=True)
        (tmp_path / "store" / "consumequeue" / "U").symlink_to(tmp_path / "outside")
        store.put("U", b"")
        with pytest.raises(StorePermissionError, match="consumequeue/U"):
            store.dispatch()
        assert not store.get("U", 0, 0).messages
        assert "consumequeue/U" in caplog.text, "a read goes on without it, and says so"
        assert len(store.get("T", 0, 0).messages) == 1
        (tmp_path / "store" / "consumequeue" / "U").unlink()
        assert len(store.get("U", 0, 0).messages) == 1
    assert not list((tmp_path / "outside").iterdir())


def _unknown(*_arguments: object) -> NoReturn:
    raise OSError(errno.ENOSYS, "a kernel that does not know the call")


@pytest.mark.parametrize("way", ["openat2", "part by part"])
def test_links_on_the_way_to_a_file_are_not_followed(tmp_path, monkeypatch, way):
    if way != "openat2":
        monkeypatch.setattr(folders, "open_beneath", _unknown)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to("folder")
    assert files.read_all(tmp_path / "folder" / "file") == b"x"
    for verb in (
        lambda: files.read_all(tmp_path / "link" / "file"),
        lambda: files.make_directory(tmp_path / "link" / "more"),
        lambda: files.make_directory(tmp_path / "link"),
        lambda: files.write_whole(tmp_path, tmp_path / "link" / "new", b""),
        lambda: files.sync_directory(tmp_path / "link"),
        lambda: files.entries(tmp_path),
        lambda: files.entries(tmp_path / "link"),
    ):
        with pytest.raises(StorePermissionError, match=r"symbolic link .*/link\]"):
            verb()
    assert os.listdir(tmp_path / "folder") == ["file"]
    with pytest.raises(cystore.StoreIOError, match=r"not a folder.*/file\]"):
        files.read_all(tmp_path / "folder" / "file" / "more")


def test_a_link_to_a_store_is_resolved_once(tmp_path):
    """A later change of the link does not matter to a process that has the store open, nor to a child that attaches
    again."""
    (tmp_path / "link").symlink_to("real")
    store = open_small(tmp_path / "link")
    store.put("T", b"1")
    (tmp_path / "other").mkdir()
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to("other")
    child = os.fork()
    if child == 0:
        try:
            store.put("T", b"2")
            store.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert len(store.get("T", 0, 0).messages) == 2
    store.close()
    assert not list((tmp_path / "other").iterdir())


# ----------------------------------------------------------------------------------------------- other users


@needs_root
@pytest.mark.may_skip(NEEDS_ROOT)
def test_another_users_store_can_be_read_and_not_written(place):
    (place / "alice").mkdir()
    os.chown(place / "alice", ALICE, ALICE)
    root = str(place / "alice" / "store")
    with User(ALICE) as alice, User(BOB) as bob:
        assert alice.do("put(root)", root=root) == 0
        os.chmod(root, 0o755)
        for path in Path(root).rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        with pytest.raises(Failed, match=rf"user {ALICE}.*read_only=True|user {ALICE}, who could"):
            bob.do("put(root)", root=root)
        assert bob.do("bodies(root, read_only=True)", root=root) == [f"by {ALICE}"]
        for name, *more in COMMANDS:
            found = bob.do("command(name, root, *more)", name=name, root=root, more=more)
            assert found == (1 if name == "query" else 0), name
        # And while its owner has it open.
        alice.do("store = cystore.open(root, **settings)")
        with pytest.raises(Failed, match=r"access refused.*/control"):
            bob.do("bodies(root, read_only=True)")
        (Path(root) / "control").chmod(0o644)
        assert bob.do("bodies(root, read_only=True)") == [f"by {ALICE}"]
        alice.do("store.close()")


@needs_root
@pytest.mark.may_skip(NEEDS_ROOT)
def test_root_reads_another_users_store_and_leaves_the_writing_to_its_owner(place):
    (place / "alice").mkdir()
    os.chown(place / "alice", ALICE, ALICE)
    root = place / "alice" / "store"
    with User(ALICE) as alice:
        alice.do("put(root)", root=str(root))
    before = access(root)
    with pytest.raises(StorePermissionError, match=rf"user {ALICE}"):
        open_small(root)
    assert access(root) == before
    with open_small(root, read_only=True) as store:
        assert len(store.get("T", 0, 0).messages) == 1
    os.chown(place / "alice", 0, 0)
    with pytest.raises(StorePermissionError, match=rf"belongs to user {ALICE}.*run this as that user"):
        open_small(root)


@needs_root
@pytest.mark.may_skip(NEEDS_ROOT)
def test_a_store_below_another_users_directory_is_refused(place):
    (place / "eve").mkdir()
    os.chown(place / "eve", EVE, EVE)
    (place / "eve" / "alice").mkdir()
    os.chown(place / "eve" / "alice", ALICE, ALICE)
    with User(ALICE) as alice, pytest.raises(Failed, match=rf"user {EVE}, who could put another"):
        alice.do("put(root)", root=str(place / "eve" / "alice" / "store"))
    assert not list((place / "eve" / "alice").iterdir())


@needs_root
@pytest.mark.may_skip(NEEDS_ROOT)
def test_group_bits_count_unless_the_group_is_ones_own(place):
    (place / "alice").mkdir()
    os.chown(place / "alice", ALICE, ALICE)
    (place / "alice").chmod(0o775)
    root = str(place / "alice" / "store")
    with User(ALICE, TEAM) as alice:
        assert alice.do("put(root)", root=root) == 0
        os.chown(place / "alice", ALICE, TEAM)
        with pytest.raises(Failed, match=rf"that group {TEAM} may write to"):
            alice.do("put(root)")


@needs_root
@pytest.mark.may_skip(NEEDS_ROOT)
@pytest.mark.sampled(1)
@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_a_group_shares_a_store_and_others_stay_outside(place, umask):
    """By two users in turn, and at once: each finds what the other made."""
    (place / "shared").mkdir()
    os.chown(place / "shared", 0, TEAM)
    (place / "shared").chmod(0o2770)
    root = str(place / "shared" / "store")
    with User(ALICE, TEAM, umask=umask) as alice, User(BOB, TEAM, umask=umask) as bob, User(EVE) as eve:
        for number, user in enumerate((alice, bob, alice)):
            assert user.do("put(root, group=group)", root=root, group=str(TEAM)) == number
        alice.do("store = cystore.open(root, **settings, group=group)")
        bob.do("store = cystore.open(root, **settings, group=group)")
        for number in range(400):  # over several segments, queues and files of the index
            user, other = (alice, bob) if number % 2 else (bob, alice)
            assert user.do("store.put(f'T{n % 7}', b'x' * 100, keys=str(n)).size_bytes", n=number)
            if number % 50 == 0:
                assert other.do("len(store.query(f'T{n % 7}', str(n)))", n=number) == 1
        bob.do("store.close()")
        alice.do("store.close()")
        with pytest.raises(Failed, match="access refused"):
            eve.do("put(root, group=group)", root=root, group=str(TEAM))
        with pytest.raises(Failed, match=rf"group {TEAM} may write.*setting group"):
            alice.do("put(root)")
    modes = access(Path(root))
    assert modes == {name: 0o2770 if (Path(root) / name).is_dir() else 0o660 for name in modes}


def test_rebuild_looks_before_it_removes_anything(tmp_path):
    root = tmp_path / "above" / "store"
    fill(root)
    before = access(root)

    def refusal() -> str:
        command = [sys.executable, "-m", "cystore", "rebuild", str(root)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        return done.stderr

    (tmp_path / "above").chmod(0o777)
    assert "sticky bit" in refusal()
    assert access(root) == before
    (tmp_path / "above").chmod(0o755)
    root.chmod(0o757)
    assert "every user may write to it" in refusal()


def sticky(place: Path) -> Path:
    """A folder like /tmp."""
    folder = place / "tmp"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


@needs_root
@pytest.mark.may_skip(NEEDS_ROOT)
def test_a_link_of_another_user_does_not_lead_to_a_store(place):
    """Seen: root's store in a folder like /tmp became another one."""
    fill(place / "store")
    (place / "secret").write_text("a secret of sixteen bytes")
    (place / "secret").chmod(0o600)
    folder = sticky(place)
    for name, target, owner in (
        ("mine", "../store", 0), ("eves", "../store", EVE), ("above", "..", EVE), ("key", "../secret", EVE),
        ("through", "eves", 0),
    ):  # fmt: skip
        (folder / name).symlink_to(target)
        os.lchown(folder / name, owner, owner)
    with cystore.open(folder / "mine", read_only=True) as store:
        assert store.path == place / "store"
    for name in ("eves", "above/store", "through"):
        path, link = folder / name, folder / ("above" if "above" in name else "eves")
        for call in (
            lambda path=path: cystore.open(path),
            lambda path=path: cystore.open(path, read_only=True),
            lambda path=path: cystore.open(path, allow_any_owner=True),
            lambda path=path: places_of(str(path)),
            lambda path=path: backup.take(path, place / "copy", cystore.StoreConfig()),
        ):
            with pytest.raises(StorePermissionError, match=f"link of another user .user id {EVE}.") as caught:
                call()
            assert str(caught.value.path) == str(link)
        for command in ("info", "verify", "clean", "topics"):
            words = [sys.executable, "-m", "cystore", command, str(path)]
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            assert done.returncode == 2 and "a symbolic link of another user" in done.stderr, done
            assert "Traceback" not in done.stderr
    with pytest.raises(StorePermissionError, match="link of another user"):
        secret_in(folder / "key", "ha_secret_file")
    with pytest.raises(StorePermissionError, match="link of another user"):
        cystore.StoreConfig.from_toml(folder / "key")
    with pytest.raises(StorePermissionError, match="link of another user"):
        resolve({}, file=folder / "key")
    for name in ("ha_etcd_ca_file", "ha_etcd_certificate_file", "ha_etcd_key_file"):
        with pytest.raises(StorePermissionError, match="link of another user"):
            Etcd(cystore.StoreConfig(**{name: str(folder / "key")}), "http://127.0.0.1:1", 0.1)
    words = [sys.executable, "-m", "cystore", "info", str(place / "store"), "--config", str(folder / "key")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (
        done.returncode == 2
        and done.stderr.count("\n") == 1
        and "a symbolic link of another user" in done.stderr
    )
    assert secret_in(place / "secret", "ha_secret_file") == b"a secret of sixteen bytes"


def test_links_resolve_as_the_system_resolves_them(tmp_path, monkeypatch):
    (tmp_path / "a" / "b").mkdir(parents=True)
    for name, target in (
        ("up", "a/b/.."), ("abs", str(tmp_path / "a")), ("two", "up/b"), ("gone", "none/../x"), ("dots", "./a//b/"),
    ):  # fmt: skip
        (tmp_path / name).symlink_to(target)
    monkeypatch.chdir(tmp_path / "a")
    for text in (
        "up",
        "abs/b",
        "two/../..",
        "gone",
        "dots",
        "missing/../a",
        "two",
        "abs/../up",
        "/",
        "//tmp/..",
        ".",
    ):
        for form in (text, str(tmp_path / text), f"../{text}"):
            assert str(real_path(form)) == os.path.realpath(form), form
    (tmp_path / "round").symlink_to("round")
    with pytest.raises(cystore.StoreError):
        cystore.open(tmp_path / "round" / "store")
    with pytest.raises(cystore.StoreConfigError):
        cystore.open("nul\0nul")


USER_NAMESPACE = ["unshare", "--user", "--map-root-user"]


@needs_root
@pytest.mark.may_skip(NEEDS_ROOT)
@pytest.mark.may_skip("no user namespace can be made")
def test_an_owner_that_the_user_namespace_does_not_map(place):
    """As a container sees a directory of its host."""
    if subprocess.run([*USER_NAMESPACE, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no user namespace can be made")
    fill(place / "store")
    for folder, _, names in os.walk(place / "store"):
        os.chmod(folder, 0o755)
        for name in (".", *names):
            os.chown(Path(folder, name), ALICE, ALICE)
    open_it = f"import cystore; cystore.open({str(place / 'store')!r})"
    words = [*USER_NAMESPACE, sys.executable, "-c", open_it]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    for text in ("does not map", "--userns=keep-id", "allow_any_owner"):
        assert text in done.stderr
