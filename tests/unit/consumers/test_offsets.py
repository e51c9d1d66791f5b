"""Goal: a group's offsets are shared at once, survive kills and reopenings, are written in RocketMQ's bytes, and
damage is told. Method: one store, other processes that are killed, files that are edited while nobody has the store
open."""

from __future__ import annotations

import logging
import os

import pytest

import cystore
from cystore import clock
from cystore.consumers.offset_file import read_consumer_offsets, render
from cystore.consumers.table import HEADER_BYTES, ROW_BYTES
from cystore.metrics import metrics
from tests.support.process import Process

pytestmark = pytest.mark.unsanitized  # about one file

FILE, TABLE = "config/consumerOffset.json", "config/consumers.table"
ROCKETMQ = (
    '{\n\t"offsetTable":{\n\t\t"%RETRY%billing@billing":{0:4\n\t\t},\n'
    '\t\t"orders@billing":{0:250,1:7,10:3\n\t\t}\n\t}\n}'
)


def filled(path, count=10, queues=2):
    store = cystore.open(path)
    for number in range(count):
        store.put("orders", b"%d" % number, queue_id=number % queues)
    return store


def test_the_file_has_the_bytes_of_rocketmq(tmp_path):
    offsets = {
        ("orders", "billing", 10): 3,
        ("orders", "billing", 0): 250,
        ("orders", "billing", 1): 7,
        ("%RETRY%billing", "billing", 0): 4,
    }
    assert render(offsets, {}) == ROCKETMQ.encode()
    assert render({}, {}) == b'{\n\t"offsetTable":{}\n}'
    (tmp_path / "config").mkdir()
    (tmp_path / FILE).write_bytes(render(offsets, {}))
    assert read_consumer_offsets(tmp_path).offsets == offsets


def test_entries_that_are_no_groups_here_are_kept(tmp_path):
    long = "t@" + "g" * 200
    with filled(tmp_path / "s") as store:
        store.groups.commit("billing", "orders", 0, 2)
    text = (tmp_path / "s" / FILE).read_text()
    kept = f'"{long}":{{0:9}},"a@b@c":{{1:2}}'
    (tmp_path / "s" / FILE).write_text(text.replace('"offsetTable":{', f'"offsetTable":{{{kept},'))
    with cystore.open(tmp_path / "s") as store:
        assert store.groups.names() == ["billing"]
        store.groups.commit("billing", "orders", 0, 3)
    others = read_consumer_offsets(tmp_path / "s").others
    assert others == {long: {"0": 9}, "a@b@c": {"1": 2}}


def test_other_processes_see_an_offset_at_once_and_a_kill_of_all_loses_none(tmp_path):
    with filled(tmp_path / "s"):
        pass
    with Process() as one, Process() as two:
        for process in (one, two):
            process.do("import cystore; store = cystore.open(path)", path=str(tmp_path / "s"))
        one.do("store.groups.commit('billing', 'orders', 1, 4)")
        assert two.do("store.groups.offset('billing', 'orders', 1)") == 4
        two.do("store.groups.commit('billing', 'orders', 0, 3)")
        assert one.do("store.groups.offset('billing', 'orders', 0)") == 3
        one.kill()
        two.kill()
    assert not (tmp_path / "s" / FILE).exists()  # nobody saved: the table alone has them
    with cystore.open(tmp_path / "s") as store:
        assert store.groups.offsets("billing") == {("orders", 0): 3, ("orders", 1): 4}


@pytest.mark.parametrize(("boot", "offset"), [("this one", 3), ("another one", 2)])
def test_after_another_boot_the_file_counts(tmp_path, boot, offset):
    with filled(tmp_path / "s") as store:
        store.groups.commit("billing", "orders", 0, 2)
        assert store.groups.save()
        assert not store.groups.save()  # nothing changed
    with Process() as process:
        process.do(
            "import cystore; store = cystore.open(path); store.groups.commit('billing', 'orders', 0, 3)",
            path=str(tmp_path / "s"),
        )
        process.kill()
    table = bytearray((tmp_path / "s" / TABLE).read_bytes())
    if boot == "another one":
        table[24:60] = b"0" * 36  # as a power cut leaves it
    (tmp_path / "s" / TABLE).write_bytes(table)
    for read_only in (True, False):
        with cystore.open(tmp_path / "s", read_only=read_only) as store:
            assert store.groups.offset("billing", "orders", 0) == offset


def test_a_file_that_was_restored_wins(tmp_path):
    with filled(tmp_path / "s") as store:
        store.groups.commit("billing", "orders", 0, 5)
    (tmp_path / "s" / FILE).write_text('{"offsetTable":{"orders@billing":{0:1},"orders@audit":{1:2}}}')
    with cystore.open(tmp_path / "s", read_only=True) as store:
        assert store.groups.names() == ["audit", "billing"]
    with cystore.open(tmp_path / "s") as store:
        assert store.groups.offset("billing", "orders", 0) == 1
        assert store.groups.offset("audit", "orders", 1) == 2


def test_a_damaged_file_is_read_from_its_copy_and_two_are_an_error(tmp_path, caplog):
    path = tmp_path / "s"
    with filled(path) as store:
        store.groups.commit("billing", "orders", 0, 1)
        store.groups.save()
        store.groups.commit("billing", "orders", 0, 2)
    (path / TABLE).unlink()
    (path / FILE).write_text('{"offsetTable":{"orders@billing":{0:-')
    with cystore.open(path) as store:
        assert store.groups.offset("billing", "orders", 0) == 1  # what the copy has
    (path / FILE).write_text("[")
    with caplog.at_level(logging.WARNING), cystore.open(path) as store:
        assert store.groups.offset("billing", "orders", 0) == 1  # the table is of this boot
    (path / TABLE).unlink()
    (path / FILE).write_text("[")
    (path / (FILE + ".bak")).write_text("[")
    with cystore.open(path) as store, pytest.raises(cystore.StoreFormatError, match="consumerOffset"):
        store.groups.names()
    assert (path / FILE).read_text() == "["  # nothing is lost


@pytest.mark.parametrize("at", [0, 8, 72, HEADER_BYTES + 40, HEADER_BYTES + 60])
def test_a_damaged_table_is_made_anew_from_the_file(tmp_path, at):
    with filled(tmp_path / "s") as store:
        store.groups.commit("billing", "orders", 0, 2)
    table = bytearray((tmp_path / "s" / TABLE).read_bytes())
    table[at] ^= 0xFF
    (tmp_path / "s" / TABLE).write_bytes(table)
    with cystore.open(tmp_path / "s") as store:
        assert store.groups.offsets("billing") == {("orders", 0): 2}


def test_a_row_that_is_damaged_while_the_store_is_open_is_told(tmp_path):
    with filled(tmp_path / "s") as store:
        store.groups.commit("billing", "orders", 0, 2)
        with Process() as other:
            other.do("import cystore; store = cystore.open(path)", path=str(tmp_path / "s"))
            with (tmp_path / "s" / TABLE).open("r+b") as table:
                table.seek(HEADER_BYTES + ROW_BYTES * 0 + 57)
                table.write(b"\xff")
            answer = other.do(
                "try: store.groups.names()\nexcept cystore.StoreFormatError as error: told = str(error)\ntold"
            )
    assert "damaged" in answer
    assert TABLE in answer


def test_offsets_and_names_out_of_bounds_are_refused(tmp_path):
    with filled(tmp_path / "s") as store:
        groups = store.groups
        with pytest.raises(cystore.OffsetError, match=r"ends at 5"):
            groups.commit("billing", "orders", 0, 6)
        with pytest.raises(cystore.OffsetError):
            groups.commit("billing", "unknown", 0, 1)
        for group in ("", "a b", "a@b", "g" * 121, "ü", 7, None, b"g"):
            with pytest.raises((cystore.StoreConfigError, TypeError)):
                groups.commit(group, "orders", 0, 1)
            if group is not None:
                with pytest.raises((cystore.StoreConfigError, TypeError)):
                    store.get("orders", 0, 0, group=group)
        for offset in (-1, 1.5, True, "1", 1 << 70):
            with pytest.raises((cystore.StoreConfigError, TypeError)):
                groups.commit("billing", "orders", 0, offset)
        assert groups.names() == []
    with pytest.raises(cystore.StoreClosedError):
        groups.names()
    with cystore.open(tmp_path / "s", read_only=True) as store:
        with pytest.raises(cystore.StoreNotWritableError):
            store.groups.commit("billing", "orders", 0, 1)
        assert store.groups.lags() == {}


def test_gets_that_name_a_group_are_counted_for_all_processes(tmp_path):
    with filled(tmp_path / "s") as store:
        found = store.get("orders", 0, 0, 2, group="audit")
        store.get("orders", 0, 2, raw=True, group="audit")
        with Process() as other:
            other.do("import cystore; store = cystore.open(path)", path=str(tmp_path / "s"))
            other.do("store.get('orders', 1, 0, group='audit')")
        reads = store.groups.reads("audit")
        assert reads["orders", 0][:2] == (2, 5)
        assert reads["orders", 0].bytes == sum(m.size_bytes for m in store.get("orders", 0, 0).messages)
        assert reads["orders", 1][:2] == (1, 5)
        last = found.messages[-1]
        store.get("orders", 0, 0, 2, group="audit")
        behind = store.groups.reads("audit")["orders", 0].behind_bytes
        assert behind == store.wrote_position - last.physical_offset - last.size_bytes
        assert store.groups.names() == []  # reading alone sets no offset
        assert store.get("nothing", 0, 0, group="audit").status is cystore.GetStatus.NO_MATCHED_LOGIC_QUEUE


def test_lag_counts_messages_that_can_still_be_read(tmp_path):
    with filled(tmp_path / "s") as store:
        store.groups.commit("billing", "orders", 0, 3)
        store.groups.commit("billing", "orders", 1, 0)
        assert [(one.topic, one.queue_id, one.lag) for one in store.groups.lag("billing")] == [
            ("orders", 0, 2), ("orders", 1, 5),
        ]  # fmt: skip
        assert store.groups.lags() == {"billing": 7}
        store.put("orders", b"", queue_id=0)
        assert store.groups.lags() == {"billing": 8}
        store.delete_topic("orders")
        assert store.groups.lags() == {"billing": 0}


def later_than(time_ms):
    """Waits for the clock of the store: its stamps are in ms."""
    while clock.now_ms() <= time_ms:
        pass


def test_a_time_begins_at_the_first_message_at_or_after_it(tmp_path):
    """Seen: the nearer of two messages counted, so a group got a message that was stored before its time."""
    with cystore.open(tmp_path / "s") as store:
        groups, stamps = store.groups, []
        for number in range(3):
            stamps.append(store.put("orders", b"%d" % number).store_timestamp_ms)
            later_than(stamps[-1] + 9)
        for at_ms, offset in (
            (stamps[0] - 5, 0), (stamps[0] + 1, 1), (stamps[1], 1), (stamps[1] + 1, 2), (stamps[2] + 1, 3),
        ):  # fmt: skip
            assert groups.reset("billing", "orders", at_ms) == {0: offset}
            with store.consumer(f"from-{at_ms}", "orders", begin=at_ms) as consumer:
                given = [bytes(one.body) for one in consumer.poll(timeout_s=0)]
            assert given == [b"%d" % number for number in range(offset, 3)]
            assert groups.lags()["billing"] == 3 - offset


def test_reset_by_time_and_to_both_ends(tmp_path):
    with filled(tmp_path / "s", queues=1) as store:
        groups = store.groups
        third = store.get("orders", 0, 3).messages[0].store_timestamp_ms
        assert groups.reset("billing", "orders", "last") == {0: 10}
        assert groups.reset("billing", "orders", third)[0] <= 3
        assert groups.reset("billing", "orders", third - 60_000) == {0: 0}
        assert groups.reset("billing", "orders", "last", force=False)[0] <= 3
        assert groups.reset("billing", "orders", "first", queue_id=0) == {0: 0}
        assert groups.reset("billing", "orders", third + 3_600_000) == {0: 10}
        assert read_consumer_offsets(tmp_path / "s").offsets == {("orders", "billing", 0): 10}
        for to in ("middle", -1, None, 1.5):
            with pytest.raises((cystore.StoreConfigError, TypeError)):
                groups.reset("billing", "orders", to)
        with pytest.raises(cystore.StoreConfigError, match="no queue"):
            groups.reset("billing", "unknown", "first")
        assert groups.remove("billing") == 1
        assert groups.names() == []
        assert read_consumer_offsets(tmp_path / "s").offsets == {}


def test_pull_waits_for_a_message_and_follows_rocketmqs_rule_for_lost_offsets(tmp_path):
    with filled(tmp_path / "s", count=4, queues=1) as store, Process() as other:
        groups = store.groups
        assert len(groups.pull("billing", "orders", 0).messages) == 4
        groups.commit("billing", "orders", 0, 4)
        assert groups.pull("billing", "orders", 0).status is cystore.GetStatus.OFFSET_OVERFLOW_ONE
        other.do("import cystore; store = cystore.open(path)", path=str(tmp_path / "s"))
        other.send("store.put('orders', b'late')")
        (late,) = groups.pull("billing", "orders", 0, timeout_s=60).messages
        assert bytes(late.body) == b"late"
        assert other.answer() is not None
        other.do("store.close()")
        groups.commit("billing", "orders", 0, 2)
        store.delete_topic("orders")
        store.put("orders", b"new")
        lost = groups.pull("billing", "orders", 0)
        assert (lost.status, lost.next_offset) == (cystore.GetStatus.OFFSET_TOO_SMALL, 5)


def test_the_benchmark_of_groups_measures_what_it_says(tmp_path):
    from benchmarks.store.groups import lag_ms, message_us

    assert 0 < lag_ms(tmp_path / "lag", groups=20, rounds=3) < 1000
    assert set(message_us(tmp_path / "messages", 100)) == {"poll and ack", "iteration and ack", "get alone"}


def test_a_snapshot_has_the_offsets(tmp_path):
    from cystore.config import StoreConfig
    from cystore.operate.backup import take

    with filled(tmp_path / "s") as store:
        store.groups.commit("billing", "orders", 0, 2)
        take(tmp_path / "s", tmp_path / "copy", StoreConfig())
    assert not (tmp_path / "copy" / TABLE).exists()
    with cystore.open(tmp_path / "copy") as store:
        assert store.groups.offset("billing", "orders", 0) == 2


def rows_of(path):
    return (path / TABLE).read_bytes()[72]  # of the header, below 256


def test_rows_of_groups_that_are_gone_leave_with_the_last_process(tmp_path):
    with filled(tmp_path) as store:
        store.groups.commit("stays", "orders", 1, 4)
        for number in range(100):
            store.groups.commit(f"passing-{number}", "orders", 0, 1)
            store.groups.remove(f"passing-{number}")
        assert rows_of(tmp_path) == 101
    with cystore.open(tmp_path) as store:
        assert store.groups.offset("stays", "orders", 1) == 4
        assert store.groups.offset("passing-1", "orders", 0) is None
        store.groups.commit("passing-1", "orders", 0, 2)
        assert rows_of(tmp_path) == 2
        with cystore.open(tmp_path, read_only=True) as reader:
            assert reader.groups.offset("passing-1", "orders", 0) == 2
            assert reader.groups.offset("stays", "orders", 1) == 4


def test_a_table_that_is_full_is_a_typed_error(tmp_path, monkeypatch):
    monkeypatch.setattr("cystore.consumers.table.ROWS_MAX", 2)
    with filled(tmp_path) as store:
        for name in ("a", "b"):
            store.groups.commit(name, "orders", 0, 1)
        with pytest.raises(cystore.StoreResourceError, match="remove groups") as error:
            store.groups.commit("c", "orders", 0, 1)
        assert error.value.path == tmp_path / TABLE
        assert len(store.get("orders", 0, 0, group="c").messages) == 5
        store.groups.commit("a", "orders", 0, 2)


def test_a_commit_beside_a_close_writes_to_no_other_file(tmp_path, monkeypatch):
    """Seen: EBADF in the thread of a consumer. The close had closed the table's descriptor under a call; the next file
    that was opened got its number, and the call wrote there."""
    with filled(tmp_path / "s") as store:
        store.groups.commit("billing", "orders", 0, 1)
        table, pwrite, others = store.groups._table().table, os.pwrite, []

        def after_a_close(fd: int, data: bytes, at: int) -> int:
            monkeypatch.undo()
            table.close()
            others.extend((tmp_path / f"other{n}").open("wb") for n in range(4))
            return pwrite(fd, data, at)

        monkeypatch.setattr("cystore.consumers.table.os.pwrite", after_a_close)
        store.groups.commit("billing", "orders", 0, 2)
        with pytest.raises(cystore.StoreClosedError):
            store.groups.commit("billing", "orders", 0, 3)
        assert [os.fstat(other.fileno()).st_size for other in others] == [0] * 4
        for other in others:
            other.close()
    with cystore.open(tmp_path / "s") as store:
        assert store.groups.offset("billing", "orders", 0) == 2


def test_the_group_of_transactions_is_none_of_the_programs(tmp_path):
    """Seen: CID_RMQ_SYS_TRANS stood among the groups, with a lag that no program works off."""
    with cystore.open(tmp_path / "s", transaction_timeout_ms=0) as store:
        store.put("orders", b"1")
        store.groups.commit("billing", "orders", 0, 0)
        store.commit(store.begin("orders", b"2"))
        store.begin("orders", b"3")
        store.check_transactions(lambda half, message: None)
        assert store.groups.lags() == {"billing": 2} and store.groups.names() == ["billing"]
        assert (
            list(store.groups.lags(internal=True))
            == store.groups.names(internal=True)
            == ["CID_RMQ_SYS_TRANS"]
        )
        found = {one.name: one.samples for one in metrics(store)}
        assert [labels for labels, _ in found["cystore_group_lag_messages"]] == [{"group": "billing"}]
        assert [labels for labels, _ in found["cystore_internal_group_lag_messages"]] == [
            {"group": "CID_RMQ_SYS_TRANS"}
        ]
