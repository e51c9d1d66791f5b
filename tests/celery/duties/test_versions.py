"""Goal: Celery 5.4 to 5.7 work, and any other version is refused in one line. Method: the version check by itself;
and a slice of the other tests, with real workers, in an environment of each older version."""

from __future__ import annotations

import subprocess
import sys

import celery
import pytest
from celery.backends import base
from kombu.exceptions import DecodeError, EncodeError

from cystore import StoreError
from cystore.celery import versions
from cystore.celery.results.encoding import encode_meta
from tests.celery.conftest import ROOT
from tools import matrix, setup_env


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


@pytest.mark.parametrize("method", ["gzip", "bzip2", "lzma"])
def test_older_celery_reads_what_a_newer_one_compressed(method):
    packed = base.compress_payload(b'{"status": "SUCCESS"}', method)
    assert versions.decompress_payload(packed) == b'{"status": "SUCCESS"}'
    assert versions.decompress_payload(b'{"status": "SUCCESS"}') == b'{"status": "SUCCESS"}'
    for bad in (packed[:-9], versions.COMPRESSED + b"application/none\0x", versions.COMPRESSED + b"\xff\0"):
        with pytest.raises(DecodeError, match="a compressed result"):
            versions.decompress_payload(bad)


INFLATES = """
import bz2, lzma, resource, sys, zlib
from kombu.exceptions import DecodeError
from cystore.celery import versions
from cystore.celery.results.encoding import encode_meta
method, size = sys.argv[1], 1 << 29
worker = {"gzip": zlib.compressobj, "bz2": bz2.BZ2Compressor, "lzma": lambda: lzma.LZMACompressor(preset=0)}[method]()
packed = b"".join([*(worker.compress(bytes(1 << 20)) for _ in range(size >> 20)), worker.flush()])
kind = {"gzip": b"x-gzip", "bz2": b"x-bz2", "lzma": b"x-lzma"}[method]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    versions.decompress_payload(versions.COMPRESSED + b"application/" + kind + b"\\0" + packed)
except DecodeError as error:
    print("refused" if "more than 67108864 bytes" in str(error) else error)
grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(grown_kib < 4 * versions.DECOMPRESSED_BYTES_MAX >> 10)
"""


@pytest.mark.parametrize("method", ["gzip", "bz2", "lzma"])
def test_a_small_answer_does_not_fill_the_memory(method):
    """Seen: an answer of 0.6 MiB took 1.2 GiB in the client."""
    done = subprocess.run(
        [sys.executable, "-c", INFLATES, method], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["refused", "True"]


def test_a_result_that_no_reader_takes_is_not_stored():
    with pytest.raises(EncodeError, match=r"task\[t\] has more than 67108864 bytes before its compression"):
        encode_meta(
            {"status": "SUCCESS", "task_id": "t", "result": None},
            lambda meta: base.compress_payload(bytes(versions.DECOMPRESSED_BYTES_MAX + 1), "gzip"),
            lambda error: error,
            name=None,
            limit_bytes=1 << 22,
        )


@pytest.mark.slow
@pytest.mark.parametrize("version", setup_env.OLDER_CELERY)
def test_a_slice_with_older_celery(version):
    """Seen: with 5.4 to 5.6 no chord could be opened, because only 5.7 has `Backend._ensure_retryable`."""
    wanted = (*setup_env.OLDER_CELERY[version], *setup_env.BESIDE_CELERY)
    python = setup_env.environment(f"Celery-{version}", wanted)
    code = "import celery; print(celery.__version__)"
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.startswith(f"{version}.")
    passed, failed = matrix.run(python, matrix.OF_CELERY)
    assert passed and not failed, "\n".join(failed)
