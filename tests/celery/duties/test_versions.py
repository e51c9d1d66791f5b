"""Goal: Celery 5.4 to 5.7 work, and any other version is refused in one line. Method: the version check by itself;
and a slice of the other tests, with real workers, in an environment of each older version."""

from __future__ import annotations

import os
import subprocess
import sys

import celery
import pytest
from celery.backends import base

from cystore import StoreError
from cystore.celery import versions
from tests.celery.conftest import ROOT
from tools import setup_env

LIMIT_S = 900
PYTEST = (
    "-m",
    "pytest",
    "-q",
    "-p",
    "no:cacheprovider",
    "-o",
    "addopts=--import-mode=importlib",
    "-m",
    "not slow",
)
# Without what only 5.7 has: `AsyncResult.exists`, several result objects that wait for one task, delivery without a
# `sleep(0)`, and what only 5.6 has: a hook before each retry. An older kombu looks for a killed worker's tasks every
# 100 s: too late for the test.
SLICE = {
    "tests/celery/duties/test_workers.py": "not a_saved_group and not test_forget and not killed_loses_nothing",
    "tests/celery/lifecycle/test_events.py": "",
    "tests/celery/results/test_backend.py": "not told_apart_from_never_heard_of and not tried_again_where_the_app",
    "tests/celery/lifecycle/test_lifecycle.py": "",
    "tests/celery/results/test_waiting.py": "not without_a_pause and not parent_that_fails",
}


@pytest.mark.parametrize("version", ["5.4.0", "5.5.3", "5.6.3", "5.7.0", "5.7.0rc1", celery.__version__])
def test_supported_versions(version):
    versions.check(version)


@pytest.mark.parametrize("version", ["5.3.6", "4.4.7", "5.8.0", "6.0.0b1", "unknown"])
def test_other_versions_are_refused_in_one_line(version):
    """Seen: Celery 5.6.3 gave "cannot import name 'decompress_payload'"."""
    with pytest.raises(StoreError, match=r"supports Celery 5\.4 to 5\.7, and .* is installed") as refused:
        versions.check(version)
    assert isinstance(refused.value, ImportError)
    assert version in str(refused.value) and "\n" not in str(refused.value)


def test_import_of_the_plugin_checks_the_version():
    code = "import celery; celery.__version__ = '5.3.6'; import cystore.celery.backend"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    last = done.stderr.splitlines()[-1]
    assert last.startswith(
        "cystore.celery.versions.CeleryVersionError: cystore supports Celery 5.4 to 5.7"
    ), last


def test_older_celery_reads_what_a_newer_one_compressed():
    compress = base.compress_payload
    assert versions._decompressed(compress(b'{"status": "SUCCESS"}', "gzip")) == b'{"status": "SUCCESS"}'
    assert versions._decompressed(b'{"status": "SUCCESS"}') == b'{"status": "SUCCESS"}'


@pytest.mark.slow
@pytest.mark.parametrize("version", setup_env.OLDER_CELERY)
def test_a_slice_with_older_celery(version):
    """Seen: with 5.4 to 5.6 no chord could be opened, because only 5.7 has `Backend._ensure_retryable`."""
    python = setup_env.with_older_celery(version)
    code = "import celery; print(celery.__version__)"
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.startswith(f"{version}.")
    for path, chosen in SLICE.items():
        done = subprocess.run(
            [python, *PYTEST, "-k", chosen, path],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, f"Celery {version}, {path}:\n{done.stdout[-6000:]}{done.stderr[-2000:]}"
