"""Goal: sealed segments are read from an object store as from a folder, by ranges, and what is missing or refused
there is told with its URL and without a secret. Method: a server on this host that speaks S3; copies of a small store
in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import cystore
from tests.support.s3 import BUCKET, SECRET, S3Server, object_store
from tests.support.small_stores import LOG_BYTES, open_small

pytest.importorskip("pyarrow", reason="pip install 'cystore[arrow]'")

from cystore.columns.object_store import ObjectStore
from cystore.columns.sealed import SealedLog
from cystore.errors import OffsetError, StoreFormatError, StoreIOError, StorePermissionError
from tests.unit.columns.test_sealed import expected, fill, rows_of

pytestmark = pytest.mark.unsanitized


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with object_store() as started:
        yield started


@pytest.fixture
def store(tmp_path) -> Iterator[cystore.MessageStore]:
    with open_small(tmp_path / "store") as opened:
        fill(opened, 400)
        opened.dispatch()
        opened.flush()
        yield opened


@pytest.fixture
def url(server, store, request) -> str:
    return server.copy(store.path, request.node.name)


def log_at(url: str, server: S3Server) -> SealedLog:
    return SealedLog(*ObjectStore.of(url, server.options))


def test_rows_are_those_of_the_host(server, store, url):
    log = log_at(url, server)
    assert log.end == len(list((store.path / "commitlog").glob("0*"))) * LOG_BYTES - LOG_BYTES
    assert rows_of(log, window=9000) == expected(store, end=log.end)
    assert {queue: found.min_offset for queue, found in log.queue_ranges.items()} == dict.fromkeys(
        store.snapshot().queue_ranges, 0
    )


def test_the_environment_says_where_and_who(server, store, url, monkeypatch):
    for name, value in {
        "AWS_ACCESS_KEY_ID": "AKIATEST",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_ENDPOINT_URL": f"http://{server.endpoint}",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    log = SealedLog(*ObjectStore.of(url, {}))
    assert rows_of(log) == expected(store, end=log.end)


def test_wildcards_find_stores(server, store):
    urls = [server.copy(store.path, f"many/host-{number}/store") for number in (1, 2)]
    storage, pattern = ObjectStore.of(f"s3://{BUCKET}/many/host-*/store", server.options)
    assert storage.matching(pattern) == urls


def test_what_is_missing_is_named(server, store, url):
    for place, message in (
        ("s3://no-such-bucket/store", "there is no bucket no-such-bucket"),
        (f"s3://{BUCKET}/no-such-store", "there is no store here"),
        (f"{url}/consumequeue", "there is no segment here"),
    ):
        with pytest.raises(StoreFormatError, match=message) as error:
            log_at(place, server)
        assert str(error.value.path).startswith(place)


def test_objects_that_are_gone_or_cut(server, store, url):
    log = log_at(url, server)
    wanted = expected(store, end=log.end)
    key = f"{url.removeprefix('s3://')}/commitlog/{LOG_BYTES:020d}"
    with server.system.open_output_stream(key) as out:
        out.write(b"x" * 100)
    with pytest.raises(StoreFormatError, match="the file ends at 100, before 1000: copy it again") as error:
        rows_of(log)
    assert error.value.path == f"s3://{key}"
    with pytest.raises(StoreFormatError, match="the segment has 100 bytes, the others have 16384") as error:
        log_at(url, server)
    server.system.delete_file(key)
    with pytest.raises(OffsetError, match="removed after the read was planned") as error:
        rows_of(log)
    assert error.value.path == f"s3://{key}"
    with pytest.raises(OffsetError, match="missing between others") as error:
        log_at(url, server)
    assert error.value.path == f"s3://{key}"
    left = [row for row in wanted if not LOG_BYTES <= row["physical_offset"] < 2 * LOG_BYTES]
    assert rows_of(log, fail_on_data_loss=False) == left


def test_nobody_answers():
    options = {
        "endpoint_override": "127.0.0.1:1",
        "scheme": "http",
        "region": "us-east-1",
        "access_key": "AKIATEST",
        "secret_key": SECRET,
    }
    with pytest.raises(StoreIOError) as error:
        SealedLog(*ObjectStore.of("s3://bucket/store", options))
    assert "s3://bucket/store" in str(error.value) and SECRET not in str(error.value)


def test_a_key_that_is_not_let_in_is_not_shown(store):
    with object_store() as server:
        url = server.copy(store.path, "store")
        server.refuse()
        with pytest.raises(StorePermissionError, match="access refused") as error:
            log_at(url, server)
    assert url in str(error.value)
    assert SECRET not in str(error.value) and "AKIATEST" not in str(error.value)
