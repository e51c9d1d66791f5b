"""Stores that no program of ours makes: a whole store, changed in one to four places by somebody who knows the formats.

`use` runs every public call on such a store, in a process that dies when it hangs or takes too much memory.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import resource
import shutil
import signal
import socket
import tempfile
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import strategies as st

import cystore
from cystore.cli.program import main as command
from cystore.engine.manifest import manifest_file
from tests.support.golden import stores as golden
from tests.support.golden.cystore_config import cystore_config
from tests.support.small_stores import SETTINGS

DEADLINE_S = 85  # of sleep; below the time that a test waits for an answer
CPU_S = 30
MEMORY_BYTES = 3 << 30  # of address space
FILE_BYTES = 64 << 20  # no number in a store makes a file longer than this
HUGE = 1 << 40  # a sparse file of a terabyte
DEEP = "[" * 50_000
LONG_DIGITS = "9" * 5000

NUMBERS = [0, 1, -1, 255, (1 << 31) - 1, 1 << 31, -(1 << 31), 1 << 40, (1 << 63) - 1, -(1 << 63)]
# JSON texts; the deep one and the long number cannot be made with json.dumps.
TEXTS = [
    "-1", "0", "1", str(1 << 31), str((1 << 63) - 1), str(1 << 63), str(1 << 70), str(-(1 << 70)), LONG_DIGITS, "1.5",
    "1e999", "NaN",
    "null", "true", '""', '"x"', r'"\ud800"', r'"\u0000"', '"../../canary/x"', '"/abs"', "[]", "{}", "[[]]",
    '{"../../canary/x": {"0": 5}}',
    '{"\\ud800": {"0": 5}}', '{"T": {"-1": 5, "99999999999": 5, "x": 1}}', "[[0, 1, 2], [3]]", DEEP,
]  # fmt: skip
NAMES = [
    "9" * 20,
    "9" * 17,
    "0" * 20,
    "0" * 17,
    "1" + "0" * 18 + "1",
    "-" + "1" * 19,
    "²" * 20,
    "x",
    "99999999999",
    "%RETRY%x y",
]
KINDS = (
    "bytes",
    "number",
    "json",
    "truncate",
    "extend",
    "huge",
    "fifo",
    "folder",
    "link",
    "socket",
    "rename",
    "delete",
    "copy",
    "hole",
)


class Change(NamedTuple):
    """One change: its kind, and numbers that choose the file, the place and the value."""

    kind: str
    file: int
    place: int
    value: int


changes = st.lists(
    st.builds(
        Change,
        st.sampled_from(KINDS),
        st.integers(0, 1 << 12),
        st.integers(0, 1 << 20),
        st.integers(0, 1 << 12),
    ),
    min_size=1,
    max_size=4,
)


# ------------------------------------------------------------------------------------------------ whole stores


def _memory() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@cache
def template(kind: str) -> tuple[Path, dict[str, Any]]:
    """A whole store, and its settings; it is copied and never changed."""
    folder = Path(tempfile.mkdtemp(dir=_memory(), prefix="cystore-whole-"))
    _folders.append(folder)
    if kind in golden.NAMES:
        one = golden.unpack(kind, folder)
        return one.store, {**cystore_config(one.spec), "services": "none"}
    settings = {
        **SETTINGS,
        "max_queues": 64,
        "enable_consume_queue_ext": kind == "ext",
        "message_delay_level": "0s 1h",
    }
    root = folder / "store"
    with cystore.open(root, **settings) as store:
        for number in range(120):
            store.put("T", b"%d" % number * 40, queue_id=number % 2, keys=(f"k{number % 5}",), tags="red")
            if number % 30 == 0:
                store.put("D", b"later", delay_level=2)
        store.hold("me", 0)
        store.flush()
        if kind == "crashed":
            shutil.copytree(root, folder / "copy")
            root = folder / "copy"
    return root, settings


_folders: list[Path] = []


def forget_templates() -> None:
    """Removes the whole stores."""
    template.cache_clear()
    while _folders:
        shutil.rmtree(_folders.pop())


def kinds() -> list[str]:
    """The whole stores there are."""
    ours = ["plain", "ext", "crashed"]
    return ours + [
        name
        for name in ("a_clean", "b_crash", "d_ext", "h_multi_index")
        if (golden.folder() / f"{name}.tar.gz").is_file()
    ]


# ------------------------------------------------------------------------------------------------ changes


def _small_json(root: Path) -> list[Path]:
    return [root / "manifest", *sorted((root / "config").glob("*.json*"))]


def change(root: Path, one: Change, canary: Path) -> str:
    """Does it; says what was done."""
    found = [path for path in sorted(root.rglob("*")) if not path.is_dir() or path.is_symlink()]
    files = [path for path in found if path.is_file() and not path.is_symlink()]
    if one.kind == "json" or (one.kind == "hole"):
        return _change_json(root, one)
    if not files:
        return "nothing left"
    # Each folder alike: most files are queues'.
    folders = sorted({path.relative_to(root).parts[0] for path in files})
    folder = folders[one.file % len(folders)]
    inside = [path for path in files if path.relative_to(root).parts[0] == folder]
    path = inside[one.file // len(folders) % len(inside)]
    told = f"{one.kind} {path.relative_to(root)} {one.place} {one.value}"
    _CHANGES[one.kind](path, one, canary)
    return told


def _place(path: Path, one: Change) -> int:
    """Mostly where something is written."""
    data = path.read_bytes() if path.stat().st_size < 1 << 24 else b""
    used = len(data.rstrip(b"\0")) or len(data) or 1
    return one.place % (min(used, 200) if one.place % 2 else used)


def _overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def _bytes(path: Path, one: Change, canary: Path) -> None:
    _overwrite(
        path, _place(path, one), (b"\0", b"\xff", b"\x80", b"\x7f")[one.value % 4] * (1 + one.value % 70)
    )


def _number(path: Path, one: Change, canary: Path) -> None:
    number, width = NUMBERS[one.value % len(NUMBERS)], (4, 8)[one.value // len(NUMBERS) % 2]
    _overwrite(path, _place(path, one) & ~3, (number & (1 << 8 * width) - 1).to_bytes(width, "big"))


def _replace(make: Callable[[Path], object]) -> Callable[[Path, Change, Path], None]:
    def done(path: Path, one: Change, canary: Path) -> None:
        """The file itself, or the folder that it is in."""
        target = path.parent if one.value % 4 == 0 and path.parent.name not in ("store", "copy") else path
        shutil.rmtree(target) if target.is_dir() else target.unlink()
        make(target)

    return done


def _socket(path: Path) -> None:
    fd = os.open(path.parent, os.O_PATH)
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(f"/proc/self/fd/{fd}/{path.name}")  # paths of sockets are short
    finally:
        os.close(fd)


def _link(path: Path, one: Change, canary: Path) -> None:
    target = canary if one.value % 3 == 0 else canary / "x" / "0" / ("0" * 20)
    _replace(lambda at: at.symlink_to(target))(path, one, canary)


def _rename(path: Path, one: Change, canary: Path) -> None:
    target = path.parent if one.place % 3 == 0 and path.parent.name not in ("store", "copy") else path
    name = target.with_name(NAMES[one.value % len(NAMES)])
    if not name.exists():
        target.rename(name)


def _copy(path: Path, one: Change, canary: Path) -> None:
    name = path.with_name(NAMES[one.value % len(NAMES)])
    if not name.exists():
        shutil.copy(path, name)


_CHANGES: dict[str, Callable[[Path, Change, Path], object]] = {
    "bytes": _bytes,
    "number": _number,
    "truncate": lambda path, one, canary: os.truncate(path, one.place % max(path.stat().st_size, 1)),
    "extend": lambda path, one, canary: os.truncate(path, path.stat().st_size + 1 + one.place % 70_000),
    "huge": lambda path, one, canary: os.truncate(path, HUGE),
    "fifo": _replace(os.mkfifo),
    "folder": _replace(lambda path: (path / "inner").mkdir(parents=True)),
    "socket": _replace(_socket),
    "link": _link,
    "rename": _rename,
    "copy": _copy,
    "delete": lambda path, one, canary: path.unlink(),
}


def _change_json(root: Path, one: Change) -> str:
    """Another value somewhere in a JSON text, with a right checksum."""
    candidates = [
        path
        for path in _small_json(root)
        if path.is_file() and not path.is_symlink() and path.stat().st_size < 1 << 24
    ]
    if not candidates:
        return "no JSON left"
    path = candidates[0] if one.kind == "hole" else candidates[one.file % len(candidates)]
    slots = manifest_file.read_slots(path) if path.name == "manifest" else []
    if path.name == "manifest" and not slots:
        return "the manifest is damaged"
    try:
        content = json.loads(slots[0].payload if slots else path.read_bytes())
        if not isinstance(content, dict):
            return "no map any more"
    except (ValueError, RecursionError):
        return "no JSON any more"
    value = TEXTS[one.value % len(TEXTS)]
    if one.kind == "hole":
        begin = NUMBERS[one.place % len(NUMBERS)] if one.place % 3 else 16 * 1024 * (one.place % 9) + 100
        row = {"begin": begin, "end": begin + 100 + one.value % 20_000, "reason": "crafted"}
        known = content.get("damaged")
        content["damaged"] = [*(known if isinstance(known, list) else []), row]
        value, told = "0", f"{row}"
    else:
        mark, told = "\x7fhere\x7f", value[:40]
        content = _with(content, one.place, mark)
        text = json.dumps(content).replace(json.dumps(mark), value)
    data = json.dumps(content).encode() if one.kind == "hole" else text.encode()
    if slots:
        size = slots[0].slot_bytes
        while manifest_file.HEADER_BYTES + len(data) > size:
            size *= 2
        slot = manifest_file.render_slot(slots[0].sequence, data, size).ljust(size, b"\0")
        path.write_bytes(slot + slot)
    else:
        path.write_bytes(data)
    return f"{path.name}: {told} at {one.place}"


def _with(content: Any, place: int, mark: str) -> Any:
    """A JSON value with the mark somewhere in it: in place of a value, or as one more."""
    if isinstance(content, dict) and content:
        keys = sorted(content)
        key = keys[place % len(keys)]
        if place // len(keys) % 3 == 0:
            return {**content, key: mark}
        return {**content, key: _with(content[key], place // len(keys) // 3, mark)}
    if isinstance(content, list) and content:
        at = place % len(content)
        return [*content[:at], _with(content[at], place // len(content), mark), *content[at + 1 :]]
    if isinstance(content, list):
        return [mark]
    return mark


# ------------------------------------------------------------------------------------------------ in the child


def guard() -> None:
    """This process dies when it hangs; it cannot take much memory, or make a long file."""
    logging.getLogger("cystore").setLevel(logging.CRITICAL + 1)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(DEADLINE_S)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


class Outcomes(list):
    """The result of each call: its name and the error's, or nothing. A foreign error goes through."""

    def __call__(self, name: str, work: Callable[[], Any]) -> Any:
        try:
            done = work()
        except cystore.StoreError as error:
            self.append([name, f"{type(error).__name__}: {error}"[:200]])
            return None
        except BaseException as error:
            trace = "".join(traceback.format_exception(error)[-8:])
            raise AssertionError(f"{trace}from {name}, after {self[-3:]}") from error
        self.append([name, ""])
        return done


def use(root: str, settings: dict[str, Any]) -> list[list[str]]:
    """Every public call, and the commands; what each said."""
    guard()
    told = Outcomes()
    for how in ({"read_only": True}, {}, {"file_reserved_time_h": 0}):
        store = told(f"open {how}", lambda how=how: cystore.open(root, **{**settings, **how}))
        if store is not None:
            try:
                _calls(store, told, bool(how.get("read_only")))
            finally:
                told("close", store.close)
    for words in (
        ["info", root],
        ["verify", root],
        ["quarantine", "list", root],
        ["rebuild", root],
        ["verify", root],
    ):
        told(" ".join(words[:1]), lambda words=words: _command(words, settings))
    store = told("open again", lambda: cystore.open(root, **settings))
    if store is not None:
        _calls(store, told, False)
        told("close", store.close)
    return told


def _command(words: list[str], settings: dict[str, Any]) -> None:
    given = [
        word
        for name, value in settings.items()
        if name != "services"
        for word in ("--set", f"{name}={value}")
    ]
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = command([*words, *given])
    assert code in (0, 1, 2), (words, code, out.getvalue())
    assert "Traceback" not in out.getvalue(), out.getvalue()


def _calls(store: cystore.MessageStore, told: Outcomes, read_only: bool) -> None:
    topics = told("topics", store.topics) or {}
    queues = [(topic, queue_id) for topic, queues in topics.items() for queue_id in queues][:6]
    if not read_only:
        told("put", lambda: store.put("T", b"new", keys=("new",), flush="sync"))
        told("put_many", lambda: store.put_many([cystore.Message(topic="N", body=b"n", keys=("k1",))] * 3))
        told("dispatch", lambda: store.dispatch(timeout_s=10))
        told("deliver", lambda: store.deliver(timeout_s=10))
    for topic, queue_id in [("T", 0), *queues]:
        told("get", lambda t=topic, q=queue_id: _read_queue(store, t, q))
        told("offset_by_time", lambda t=topic, q=queue_id: store.offset_by_time(t, q, 1_600_000_000_000))
        told("next_queue_offset", lambda t=topic, q=queue_id: store.next_queue_offset(t, q))
    for topic, key in (("T", "k1"), ("T", "new"), ("N", "k1")):
        told("query", lambda t=topic, k=key: store.query(t, k))
    told("scan", lambda: sum(1 for _ in store.scan()))
    told("stats", store.stats)
    told("holds", lambda: dict(store.holds()))
    told("settings", lambda: store.settings)
    told("snapshot", store.snapshot)
    if not read_only:
        told("flush", store.flush)
        told("scrub", store.scrub)
        told("hold", lambda: store.hold("you", 0))
        told("release", lambda: [store.release("you"), store.release("me")])
        told("clean", store.clean)
        told("delete_topic", lambda: store.delete_topic("N"))
        told("remove_unused_queues", store.remove_unused_queues)
        told("checkpoint", store.checkpoint)
        told("put", lambda: store.put("T", b"newer", keys=("new",), flush="sync"))
        told("flush", store.flush)


def _read_queue(store: cystore.MessageStore, topic: str, queue_id: int) -> None:
    at = 0
    for _ in range(40):
        got = store.get(topic, queue_id, at)
        if got.next_offset <= at:
            break
        at = got.next_offset
