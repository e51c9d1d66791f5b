"""Goal: the Java driver sees and writes what the golden stores hold, so its word about our stores can be taken. Method:
the golden stores are dumped again, and some of them written again from their specs; only times may differ."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.golden import stores
from tests.support.interop.rocketmq import ANSWER_TIMEOUT_S, Refused

TIMES = {
    "storeTimestamp",
    "physicMsgTimestamp",
    "logicsMsgTimestamp",
    "indexMsgTimestamp",
    "extStoreTime",
    "beginTimestamp",
    "endTimestamp",
    "crc32OfRecord",
}
# Delays take their time, an index name needs pauses, and the rest are crashes and derived stores: those are dumped
# only.
WRITTEN_AGAIN = ("a_clean", "d_ext", "e_batch", "g_ipv6", "i_transaction", "k_edge")


@pytest.fixture
def all_golden(tmp_path):
    absent = [name for name in stores.NAMES if not (stores.folder() / f"{name}.tar.gz").is_file()]
    if absent:
        pytest.skip(f"golden stores not in {stores.folder()} (set CYSTORE_GOLDEN): {absent}")
    return [stores.unpack(name, tmp_path) for name in stores.NAMES]


def test_golden_stores_give_their_dump_and_their_files(rocketmq, all_golden, tmp_path):
    def check(golden):
        rows = rocketmq.dump(golden.store, golden.spec["config"], tmp_path / f"{golden.name}.jsonl")
        assert rows == golden.rows, golden.name
        assert rocketmq.after(golden.store) == (golden.path / "after.txt").read_text(encoding="utf-8"), (
            golden.name
        )

    with ThreadPoolExecutor(len(all_golden)) as pool:
        assert len(list(pool.map(check, all_golden))) == len(stores.NAMES)


def test_golden_specs_give_their_stores(rocketmq, all_golden, tmp_path):
    def check(golden):
        again = tmp_path / "again" / golden.name
        rocketmq.write(golden.spec, again).result(ANSWER_TIMEOUT_S)
        rows = rocketmq.dump(again, golden.spec["config"], tmp_path / f"{golden.name}.jsonl")
        assert without_times(rows) == without_times(golden.rows), golden.name

    chosen = [golden for golden in all_golden if golden.name in WRITTEN_AGAIN]
    with ThreadPoolExecutor(len(chosen)) as pool:
        assert len(list(pool.map(check, chosen))) == len(WRITTEN_AGAIN)


def without_times(rows: list[dict]) -> list[str]:
    return [
        json.dumps({name: value for name, value in row.items() if name not in TIMES})
        for row in rows
        if row["type"] != "offsetByTime"
    ]


def test_a_refusal_says_why(rocketmq, all_golden):
    golden = all_golden[0]
    with (
        pytest.raises(Refused, match="no setting noSuchSetting"),
        rocketmq.opened(golden.store, {"noSuchSetting": 1}),
    ):
        pass
    segment = golden.store / "commitlog" / f"{0:020}"
    segment.write_bytes(segment.read_bytes()[:-1])
    with (
        pytest.raises(Refused, match=f"{segment.name}.*length not matched"),
        rocketmq.opened(golden.store, golden.spec["config"]),
    ):
        pass
