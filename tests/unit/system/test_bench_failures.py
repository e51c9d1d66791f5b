"""Goal: a peer that fails is named in one line, and the rest is still shown; too long a run is refused before it
begins, and none puts more than it says. Method: parts and peers that fail, in place of the real ones."""

from __future__ import annotations

import pytest

from benchmarks.peers import rocketmq_peer
from benchmarks.store import loopback, replication, shipping, writes
from benchmarks.suite.failures import MeasureError, reason
from cystore.config import INT_MAX

pytestmark = pytest.mark.unsanitized  # Python alone

JAVA = """java.lang.IllegalStateException: put: [CREATE_MAPEDFILE_FAILED, null]
\tat cystore.bench.Load.append(Load.java:103)
"""
PYTHON = """Traceback (most recent call last):
  File "x.py", line 1, in <module>
benchmarks.suite.failures.MeasureError: RocketMQ, put: no space
"""


@pytest.mark.parametrize(
    ("errors", "words"),
    [(JAVA, JAVA.splitlines()[0]), (PYTHON, "RocketMQ, put: no space"), ("", "exit code 3")],
)
def test_the_reason_is_one_line(errors, words):
    assert reason(errors, 3) == words


def test_a_peer_that_fails_is_a_row_and_the_others_are_shown(capsys, monkeypatch):
    def run(part, *_):
        if part is writes.rocketmq_sustained:
            raise MeasureError("rocketmq_sustained: put: [CREATE_MAPEDFILE_FAILED, null]")
        return 100.0

    monkeypatch.setattr(writes, "run", run)
    assert writes.main(["rate"]) == 1
    shown = capsys.readouterr().out.splitlines()
    assert "beside LMDB" in "\n".join(shown)
    assert shown[-1] == (
        "| rate | not measured: rocketmq_sustained: put: [CREATE_MAPEDFILE_FAILED, null] |  | **missed** |"
    )


def test_a_part_that_fails_in_its_process_has_one_line(tmp_path):
    with pytest.raises(MeasureError, match=r"^prepared: [^\n]+$"):
        writes.run(writes.prepared, tmp_path, -1)


def test_the_measure_of_replication_goes_on_without_its_peer(capsys, monkeypatch):
    def ask(case, *_):
        raise MeasureError(f"RocketMQ, {case}: put: [CREATE_MAPEDFILE_FAILED, null]")

    monkeypatch.setattr(rocketmq_peer, "ask", ask)
    monkeypatch.setattr(replication, "replicated", lambda *_: {})
    assert replication.main(["--turns", "1"]) == 1
    assert capsys.readouterr().out.splitlines()[1:] == [
        f"not measured: RocketMQ, {case}: put: [CREATE_MAPEDFILE_FAILED, null]"
        for case in ("ship", "replicated")
    ]


@pytest.mark.parametrize("option", ["--count", "--replicated"])
def test_more_puts_than_a_log_file_holds_are_refused(capsys, option):
    with pytest.raises(SystemExit):
        replication.main([option, "10000000"])
    assert f"{option}: 10,000,000; the puts of all rounds must fit in one log file" in capsys.readouterr().err


def test_the_log_of_the_longest_run_has_a_length_that_is_allowed(tmp_path, monkeypatch):
    class Opened(Exception):
        pass

    def opened(*_, mapped_file_size_commit_log_bytes, **__):
        raise Opened(mapped_file_size_commit_log_bytes)

    monkeypatch.setattr(loopback.cystore, "open", opened)
    most = loopback.most_puts(shipping.room(replication.PAIRS))
    for count, fits in ((most, True), (most + loopback.MIB // loopback.RECORD_BYTES, False)):
        with pytest.raises(Opened) as found:
            shipping.shipped(tmp_path, count, replication.PAIRS, 0)
        assert (found.value.args[0] <= INT_MAX) is fits
    assert most >= 50_000


@pytest.mark.parametrize("count", [1, 100, 101, 250])
def test_puts_with_a_pace_are_as_many_as_were_asked_for(count):
    """Seen: the last burst was always a whole one, so the time of up to 99 puts more was shared out."""

    class Counts:
        def __init__(self):
            self.puts = 0

        def put(self, *_, **__):
            self.puts += 1

    store = Counts()
    shipping._paced(store, count, 1_000_000)
    assert store.puts == count
