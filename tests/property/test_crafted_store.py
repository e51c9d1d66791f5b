"""Goal: nothing that is read from a store is trusted. Method: stores of any content, made from whole ones by one to
four changes of bytes, numbers, JSON values, names and kinds of files. Every public call on them works or raises an
error of the store, in a process that would die if it hung; nothing outside of the store changes."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.processes.forks import Nursery
from tests.support.property import crafted

pytestmark = pytest.mark.unsanitized  # about whole stores; fuzz targets feed the kernels

quick = settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
MANY = int(os.environ.get("CYSTORE_CRAFTED") or 3000)


@pytest.fixture(scope="module")
def nursery():
    with Nursery() as nursery:
        nursery.do("from tests.support.property import crafted")
        yield nursery
    crafted.forget_templates()


def looks(folder):
    """Names, bytes and times of all that is in a folder."""
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_mtime_ns,
            path.read_bytes() if path.is_file() else None,
        )
        for path in sorted(folder.rglob("*"))
    }


def check(nursery, kind, changes):
    whole, store_settings = crafted.template(kind)
    with tempfile.TemporaryDirectory(prefix="cystore-crafted-", dir=whole.parents[1]) as folder:
        root, canary = Path(folder) / "store", Path(folder) / "canary"
        shutil.copytree(whole, root)
        (canary / "x" / "0").mkdir(parents=True)
        (canary / "x" / "0" / ("0" * 20)).write_bytes(bytes(4096))
        done = [crafted.change(root, one, canary) for one in changes]
        before = looks(canary)
        with nursery.fork() as child:
            try:
                told = child.do(
                    "from tests.support.property import crafted\ncrafted.use(root, given)",
                    root=str(root),
                    given=store_settings,
                )
            except BaseException as error:
                error.add_note(f"{kind}: {done}")
                raise
        assert looks(canary) == before, done
        assert sorted(path.name for path in Path(folder).iterdir()) == ["canary", "store"], done
        return told


@given(st.sampled_from(crafted.kinds()), crafted.changes)
@quick
def test_any_store_is_used_or_refused(nursery, kind, changes):
    check(nursery, kind, changes)


@pytest.mark.slow
@given(st.sampled_from(crafted.kinds()), crafted.changes)
@settings(quick, max_examples=MANY)
def test_many_stores_are_used_or_refused(nursery, kind, changes):
    check(nursery, kind, changes)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["plain", "crashed", "ext"])
def test_a_whole_store_is_used(nursery, kind):
    """Without a change every call works: the property is about something."""
    told = check(nursery, kind, [])
    assert [one for one in told if one[1]] == []
