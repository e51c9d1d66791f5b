"""Goal: an import from a source folder without kernels says what to do. Method: a copy of the Python files alone."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import cystore

IMPORT = "import cystore"


@pytest.mark.unsanitized  # such a build is imported from its own folder, wherever one stands
def test_import_from_an_unbuilt_source_folder_says_what_to_do(tmp_path):
    """Seen: after `pip install .` the README's example, run in the clone, ended in "No module named
    'cystore._native.record.message'"."""
    package = Path(cystore.__file__).parent
    shutil.copytree(package, tmp_path / "cystore", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    done = subprocess.run(
        [sys.executable, "-c", IMPORT], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: cystore in {tmp_path} is not built"), done.stderr
    assert "make build" in last and "python -P" in last
    assert "No module named" not in done.stderr
