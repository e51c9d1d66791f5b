"""Goal: records that damage took under a live process can be put back, and then queues, index and log say the same
again. Method: damage that dispatch steps over, a backup of the bytes, and what `verify` and every read say
afterwards."""

from __future__ import annotations

import pytest

from cystore.config import StoreConfig
from cystore.recovery.restore import listed, restore
from cystore.verify import verify
from tests.support.small_stores import LOG_BYTES, SETTINGS, open_small

pytestmark = pytest.mark.unsanitized  # about files in quarantine/

BODY_AT = 88  # in a record with IPv4 hosts
DAMAGED = (50, 51, 99)  # the last one is the newest record when it is hit


@pytest.mark.parametrize("record_format", ["cystore", "rocketmq"])
@pytest.mark.parametrize("ext", [False, True])
def test_what_dispatch_stepped_over_is_put_back(tmp_path, record_format, ext):
    path, shape = (
        tmp_path / "s",
        {
            "record_format": record_format,
            "enable_consume_queue_ext": ext,
            "check_at_load_bytes": 0,  # a load looks at three files only, and the damage is far behind them
        },
    )
    config = StoreConfig(**SETTINGS, **shape)
    with open_small(path, **shape) as store:
        puts = [store.put("T", b"%d" % n, keys=f"k{n}", tags="a") for n in range(100)]
        assert puts[-1].physical_offset < LOG_BYTES
        log = path / "commitlog" / ("0" * 20)
        whole = log.read_bytes()
        with log.open("r+b") as file:
            for n in DAMAGED:
                file.seek(puts[n].physical_offset + BODY_AT)
                file.write(b"?")
        store.dispatch()
        assert len(store.stats()["holes"]) == 2
        assert store.put("T", b"100").queue_offset == 100
        for _ in range(6):
            store.put("U", b"x" * (LOG_BYTES * 3 // 4))
    for one in listed(path):
        backup = tmp_path / "backup"
        backup.write_bytes(whole[one.begin : one.end])
        assert restore(path, one.name, config, backup).ranges == ((one.begin, one.end),)
    with open_small(path, **shape) as store:
        assert store.stats()["holes"] == [] and not store.recovery.new_holes
        for n in range(101):
            assert store.get("T", 0, n, 1).messages[0].body == b"%d" % n
        assert all(len(store.query("T", f"k{n}")) == 1 for n in range(100))
        assert store.put("T", b"101").queue_offset == 101
    assert list(verify(path, config)) == []
