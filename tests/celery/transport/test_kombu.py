"""Goal: what kombu tests of a transport holds with ours. Method: kombu's own integration tests, unchanged, on a store;
those that sleep for seconds in the slow test."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.celery.integration.sources import sources

LIMIT_S = 600
SUITE = Path(__file__).resolve().parents[2] / "support" / "celery" / "kombu_suite.py"


@pytest.mark.parametrize(
    "chosen",
    [
        "OfMessage or OfEventLoop or test_direct or test_topic",
        pytest.param("Of", marks=pytest.mark.slow),
    ],
    ids=["some", "all"],
)
def test_kombus_own_tests(tmp_path, chosen):
    shutil.copytree(sources("kombu") / "t" / "integration", tmp_path / "t" / "integration")
    (tmp_path / "t" / "__init__.py").touch()
    suite = tmp_path / "t" / "integration" / "test_cystore.py"
    shutil.copy(SUITE, suite)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "-o", "python_classes=Of*",
         "--rootdir", tmp_path, "-k", chosen, suite],
        cwd=tmp_path,
        env={**os.environ, "CYSTORE_TEST_STORE": str(tmp_path / "store"), "PYTHONPATH": f"{tmp_path}:{Path.cwd()}"},
        text=True,
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:]
