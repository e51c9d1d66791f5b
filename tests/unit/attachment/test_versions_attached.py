"""Goal: who meets processes of another version learns which versions and which processes. Method: a live process
whose control block says that another version made it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from cystore import StoreFormatError, layout
from cystore.engine.inspect.control_head import OURS, ask_to_leave, read_head
from cystore.system.ranges import file_ranges
from tests.support.process import Process
from tests.support.small_stores import open_small

pytestmark = pytest.mark.unsanitized  # about two builds, of which one is plain

AT = {field.name: at for field, at in layout.CONTROL_FIELDS}
ANOTHER = layout.LAYOUT_VERSION + 1


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def other(path):
    """A process that is attached."""
    with Process() as process:
        process.do(
            "from tests.support.small_stores import open_small; store = open_small(path)", path=str(path)
        )
        process.do("store.put('T', b'1')")
        yield process


def make_another_version(path, release=b"0.0.9", version=ANOTHER):
    text = version.to_bytes(4, sys.byteorder) + bytes(4) + release.ljust(32, b"\0")
    file_ranges.write_at(path / "control", [(AT["fingerprint"], b"\x11" * 8), (AT["layout_version"], text)])


def info(path, *options: str) -> str:
    command = [sys.executable, "-m", "cystore", "info", str(path), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_head_keeps_its_places():
    """A later version must find these in the block of an earlier one: they never move."""
    names = ("magic", "fingerprint", "pid_namespace", "boot_id", "c_library", "generation")
    assert [AT[name] for name in names] == [0, 8, 24, 64, 104, 144]
    assert (AT["layout_version"], AT["handover"], AT["release"]) == (152, 156, 160)
    shape = (
        "commit_log_file_bytes",
        "consume_queue_file_bytes",
        "max_hash_slot_num",
        "max_index_num",
        "max_queues",
    )
    assert [AT[name] for name in shape] == [32, 40, 48, 52, 56]
    assert (AT["wrote"], AT["dispatched"], AT["min_physical_offset"]) == (192, 1152, 1224)


def test_the_error_names_both_versions_and_the_processes(path, other):
    """Seen: "the control block has another layout: another version of cystore is attached", and nothing else."""
    make_another_version(path)
    with pytest.raises(StoreFormatError) as refused:
        open_small(path)
    text = str(refused.value)
    assert f"attached is cystore 0.0.9, layout {ANOTHER} (1111111111111111)" in text
    assert f"this is {OURS}" in text and str(layout.LAYOUT_VERSION) in str(OURS)
    assert f"Attached: {other.pid} {sys.executable}" in text
    assert f"cystore handover {path}" in text


def test_a_version_before_the_head_is_named_by_its_layout(path, other):
    make_another_version(path, release=b"")
    with pytest.raises(StoreFormatError, match="attached is an older cystore, layout 1111111111111111"):
        open_small(path)


def test_info_shows_versions_and_processes(path, other):
    found = json.loads(info(path, "--json"))["attached"]
    assert found["is_ours"] and found["release"] == layout.RELEASE and not found["handover"]
    assert [process["pid"] for process in found["processes"]] == [other.pid]
    assert "attached with: cystore" in info(path)


def test_info_of_another_version_still_shows_the_files(path, other):
    make_another_version(path)
    found = json.loads(info(path, "--json"))
    assert found["attached"]["release"] == "0.0.9" and found["attached"]["layout_version"] == ANOTHER
    assert [process["pid"] for process in found["attached"]["processes"]] == [other.pid]
    assert found["segments"] and found["positions"]["wrote"] > 0 and found["queues"][0]["next_offset"] == 1
    make_another_version(path, version=1)  # whose block does not tell its positions
    assert "positions" not in json.loads(info(path, "--json"))
    shown = info(path)
    assert "ANOTHER VERSION" in shown and str(other.pid) in shown and str(OURS) in shown


def test_the_handover_word_is_seen_by_those_who_are_attached(path):
    with open_small(path) as store:
        control = store._attached().control
        assert not control.handover
        ask_to_leave(path)
        assert control.handover and read_head(path).handover
        ask_to_leave(path, asked=False)
        assert not control.handover
        store.put("T", b"1")
