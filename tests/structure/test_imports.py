"""Goal: `import cystore` loads what every store needs and no more. Method: the names of the modules that a new
process has loaded."""

from __future__ import annotations

import subprocess
import sys

import pytest

import cystore
from tests.support.process import Process

# What few processes need, and what takes long: each is loaded where it is used.
LATER = (
    "cystore.attachment.other_layout",
    "cystore.columns",
    "cystore.derived.reading.snapshot",
    "cystore.operate",
    "cystore.recovery.actions",
    "cystore.recovery.outcome",
    "cystore.recovery.recover",
    "cystore.recovery.walk.log_reader",
    "cystore.recovery.walk.findings",
    "cystore.services.scrub",
    "cystore.verify",
    "concurrent.futures",
    "datetime",
    "difflib",
    "multiprocessing",
    "platform",
    "socket",
    "subprocess",
    "tempfile",
    "tomllib",
    "uuid",
)
# Only a process that opens a store needs these.
OPENING = (
    "cystore.attachment",
    "cystore.derived",
    "cystore.services",
    "cystore.store",
    "cystore.surface",
    "logging",
)


def loaded_by(program: str) -> set[str]:
    """The modules that a new process has loaded after `program`, without those of Python's own start."""
    whole = f"import sys; before = set(sys.modules); {program}; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", whole], text=True, capture_output=True, check=True)
    return set(done.stdout.split())


@pytest.mark.unsanitized  # Python code is the same there
def test_import_loads_nothing_that_only_some_processes_need():
    loaded = loaded_by("import cystore")
    assert "cystore.errors" in loaded
    assert loaded.isdisjoint((*LATER, *OPENING))


@pytest.mark.unsanitized
@pytest.mark.parametrize("arrow", [True, False])
def test_dir_shows_the_public_names_and_each_can_be_had(arrow):
    hide = "" if arrow else "sys.modules['pyarrow'] = None; "
    program = f"import inspect, sys, cystore; {hide}print(*(name for name, _ in inspect.getmembers(cystore)))"
    done = subprocess.run([sys.executable, "-c", program], text=True, capture_output=True, check=True)
    later = {"Consumer", "Dispatcher", "HalfMessage"} | ({"scan", "to_arrow"} if arrow else set())
    assert set(done.stdout.split()) == {*cystore.__all__, *later, "__version__"}


@pytest.mark.unsanitized
def test_the_first_open_loads_the_store_and_nothing_that_only_some_processes_need():
    loaded = loaded_by("import cystore; cystore.open")
    assert loaded >= {*OPENING}
    assert loaded.isdisjoint(LATER)


def test_a_process_that_joins_others_loads_no_recovery(tmp_path):
    loaded = "[name for name in __import__('sys').modules if name.startswith('cystore.recovery.')]"
    with Process(fresh=True) as first, Process(fresh=True) as second:
        for process in (first, second):
            process.do("import cystore")
            process.do(f"store = cystore.open({str(tmp_path / 'store')!r})")
        assert "cystore.recovery.recover" in first.do(loaded)
        assert "cystore.recovery.recover" not in second.do(loaded)


@pytest.mark.celery
def test_a_program_of_celery_loads_no_part_that_opens_stores():
    loaded = loaded_by("import celery.bin.celery")
    ours = [name for name in (*LATER, *OPENING, "cystore.celery.backend") if name.startswith("cystore.")]
    assert "cystore.celery.commands" in loaded
    assert loaded.isdisjoint(ours)


@pytest.mark.celery
def test_a_worker_that_puts_its_opening_off_loads_no_part_that_opens_stores():
    """Its thread loads them, after the pool is forked."""
    loaded = loaded_by("import celery.apps.worker, cystore.celery.duties.worker_steps")
    assert "cystore.celery.backend" in loaded
    files = ("ctypes", "cystore.engine.log", "cystore.engine.manifest", "cystore.ha", "cystore.system.files")
    assert loaded.isdisjoint([*files, *(name for name in OPENING if name.startswith("cystore."))])
