"""Goal: `import cystore` loads what every store needs and no more. Method: the names of the modules that a new
process has loaded."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
LOADED = "import sys, cystore; print(*sorted(set(sys.modules) - before))"


@pytest.mark.unsanitized  # Python code is the same there
def test_import_loads_nothing_that_only_some_processes_need():
    program = f"import sys; before = set(sys.modules); {LOADED}"
    done = subprocess.run([sys.executable, "-c", program], text=True, capture_output=True, check=True)
    loaded = done.stdout.split()
    assert "cystore.store" in loaded
    assert not [name for name in LATER if name in loaded]


def test_a_process_that_joins_others_loads_no_recovery(tmp_path):
    loaded = "[name for name in __import__('sys').modules if name.startswith('cystore.recovery.')]"
    with Process() as first, Process() as second:
        for process in (first, second):
            process.do("import cystore")
            process.do(f"store = cystore.open({str(tmp_path / 'store')!r})")
        assert "cystore.recovery.recover" in first.do(loaded)
        assert "cystore.recovery.recover" not in second.do(loaded)
