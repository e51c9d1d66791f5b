"""An object store on this host that speaks S3, from PyPI (moto); for tests of what reads stores by URL."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

BUCKET = "bucket"
SECRET = "hush-hush-0123456789"
# Names its place, and ends with its input.
PROGRAM = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print("{}:{}".format(*server.get_host_and_port()), flush=True)
sys.stdin.read()
server.stop()
"""


@dataclass(frozen=True)
class S3Server:
    """`options` are those of the file system: with them pyarrow finds it. Any key is let in, until `refuse`."""

    endpoint: str

    @property
    def options(self) -> dict[str, str]:
        return {
            "endpoint_override": self.endpoint,
            "scheme": "http",
            "region": "us-east-1",
            "access_key": "AKIATEST",
            "secret_key": SECRET,
        }

    @property
    def system(self) -> Any:
        from pyarrow.fs import S3FileSystem

        return S3FileSystem(**self.options, allow_bucket_creation=True)

    def copy(self, folder: Path, name: str) -> str:
        """Log and consume queues of the store in a folder as objects; the URL of the copy."""
        system = self.system
        system.create_dir(BUCKET)
        for path in sorted([*folder.glob("commitlog/*"), *folder.glob("consumequeue/*/*/*")]):
            if path.is_file():
                with system.open_output_stream(f"{BUCKET}/{name}/{path.relative_to(folder)}") as out:
                    out.write(path.read_bytes())
        return f"s3://{BUCKET}/{name}"

    def refuse(self) -> None:
        """From now on keys are checked, and nobody has any."""
        where, plain = f"http://{self.endpoint}/moto-api/reset-auth", {"Content-Type": "text/plain"}
        request = urllib.request.Request(where, b"0", plain, method="POST")
        urllib.request.urlopen(request).close()


@contextmanager
def object_store() -> Iterator[S3Server]:
    """Empty; ends with the block. In a process of its own, for deltalake keeps Python's lock while it waits for an
    answer."""
    pytest.importorskip("moto", reason="pip install 'cystore[s3-tests]'")
    command = [sys.executable, "-c", PROGRAM]
    server = subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert server.stdin is not None and server.stdout is not None
    with server:  # closes its input, which ends it
        endpoint = server.stdout.readline().strip()
        assert endpoint, "the server did not start"
        yield S3Server(endpoint)
