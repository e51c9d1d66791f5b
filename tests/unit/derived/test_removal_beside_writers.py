"""Goal: queue files are removed and made anew while several processes dispatch, and no message loses its entry (I2).
Method: several processes of one store take turns, or work at once; what is on the disk must be right without
healing."""

from __future__ import annotations

import pytest

from cystore._native.derived import queue as kernel
from cystore.derived.dispatch import remove
from tests.support.checks import check_chain
from tests.support.process import Process
from tests.support.small_stores import open_small
from tests.unit.derived.test_topic_removal import bodies, verified

pytestmark = pytest.mark.unsanitized  # about files and processes

OPEN = "import cystore; store = cystore.open(path, **settings)"
PUT = "offset = store.put('T', body.encode(), tags='t').queue_offset; store.dispatch(); offset"
READ = "[bytes(m.body).decode() for m in store.get('T', 0, at).messages]"
HEALED = "store.stats()['healed_entries']"


@pytest.mark.parametrize("ext", [False, True])
def test_two_dispatchers_go_on_in_the_new_file(tmp_path, ext):
    """Seen: the first dispatcher made the file anew, and the second one continued in the file that was gone. `get` said
    MESSAGE_WAS_REMOVING, or healed the queue."""
    path = tmp_path / "s"
    given = {"path": str(path), "settings": {"services": "none"}}
    with open_small(path, enable_consume_queue_ext=ext) as store, Process() as one, Process() as other:
        for process in (one, other):
            process.do(OPEN, **given)
            process.do(PUT, body="old")
        end = 2
        for _ in range(3):
            assert store.delete_topic("T").queues == 1
            written = [f"{n}" for n in range(6)]
            for body in written:
                process = (one, other)[int(body) % 2]
                assert process.do(PUT, body=body) == end + int(body)
            for process in (other, one):
                assert process.do(READ, at=end) == written
                assert process.do(HEALED) == 0
            assert [each.decode() for each in bodies(store, "T", 0, end)] == written
            end += len(written)
            one, other = other, one
        assert store.stats()["healed_entries"] == 0
    verified(path)


def test_dispatchers_go_on_in_a_healed_file(tmp_path):
    """Seen: a reader made a deleted queue file anew, the first dispatcher went on there, and the second one in the
    file that was gone."""
    path = tmp_path / "s"
    given = {"path": str(path), "settings": {"services": "none"}}
    with open_small(path) as store, Process() as one, Process() as other:
        for process in (one, other):
            process.do(OPEN, **given)
            process.do(PUT, body="old")
        (path / "consumequeue" / "T" / "0" / f"{0:020d}").unlink()
        assert bodies(store, "T", 0, 0) == [b"old", b"old"]
        assert store.stats()["healed_entries"] == 2
        for n in range(6):
            (one, other)[n % 2].do(PUT, body=f"{n}")
        expected = ["old", "old", *map(str, range(6))]
        for process in (one, other):
            assert process.do(READ, at=0) == expected
            assert process.do(HEALED) == 0
        assert bodies(store, "T", 0, 0) == [each.encode() for each in expected]
    verified(path)


def test_a_message_that_comes_between_the_look_and_the_removal_stays(tmp_path, monkeypatch):
    """Seen: the remover found a queue unused. Then a message was dispatched to it, and the remover entered the
    queue's new end as removed: the message was gone."""
    path = tmp_path / "s"
    look = kernel.queues_unused
    with open_small(path) as store:
        store.put("T", b"old")
        store.delete_topic("T")
        store.put("T", b"first")
        store.dispatch()

        class Late:
            def __getattr__(self, name):
                return getattr(kernel, name)

            @staticmethod
            def queues_unused(control):
                return [*look(control), control.find_queue("T", 0)]

        monkeypatch.setattr(remove, "kernel", Late())
        for _ in range(2):  # the second one does what the manifest says
            store.remove_unused_queues()
        assert bodies(store, "T", 0, 1) == [b"first"]
        assert store.get("T", 0, 1).min_offset == 1
    with open_small(path) as store:
        assert bodies(store, "T", 0, 1) == [b"first"]
    verified(path)


WORK = """
import random
from cystore import GetStatus
rng, mine, wrong = random.Random(seed), [], []
# For one that was cleaned; FOUND gives a later one then.
EXPECTED = (GetStatus.OFFSET_TOO_SMALL, GetStatus.MESSAGE_WAS_REMOVING, GetStatus.FOUND)

def look(topic, queue_id, queue_offset, physical_offset, body):
    got = store.get(topic, queue_id, queue_offset, 1)
    if got.status is GetStatus.FOUND and got.messages[0].queue_offset == queue_offset:
        if bytes(got.messages[0].body) != body:
            wrong.append((topic, queue_id, queue_offset, 'another body'))
    elif got.status not in EXPECTED or physical_offset >= store.stats()['min_physical_offset']:
        wrong.append((topic, queue_id, queue_offset, got.status.name))

for n in range(steps):
    topic, queue_id, body = f'T{rng.randrange(4)}', rng.randrange(5), b'%d of %d' % (n, seed)
    put = store.put(topic, body, queue_id=queue_id)
    mine.append((topic, queue_id, put.queue_offset, put.physical_offset, body))
    look(*mine[-1])
    look(*rng.choice(mine))
    match rng.randrange(8):
        case 0: store.clean()
        case 1: store.remove_unused_queues()
        case 2: store.flush()
        case 3: store.dispatch()
for each in mine:
    look(*each)
wrong
"""


@pytest.mark.slow
def test_many_processes_remove_and_put_at_once(tmp_path):
    """Seen: `get` said MESSAGE_WAS_REMOVING for messages that the log had."""
    path = tmp_path / "s"
    settings = {"mapped_file_size_commit_log_bytes": 4096, "file_reserved_time_h": 0}
    with open_small(path, **settings) as store, Process() as one, Process() as other, Process() as third:
        together = (one, other, third)
        for process in together:
            process.do(OPEN, path=str(path), settings={**settings, "services": "none"})
        for seed, process in enumerate(together):
            process.send(WORK, seed=seed, steps=400)
        for process in together:
            assert process.answer() == []
        assert [process.do(HEALED) for process in together] == [0, 0, 0]
        check_chain(store)
        for topic in range(4):
            for queue_id in range(5):
                put = store.put(f"T{topic}", b"last", queue_id=queue_id)
                assert bodies(store, f"T{topic}", queue_id, put.queue_offset) == [b"last"]
    with open_small(path, **settings) as store:
        check_chain(store)
    verified(path)
