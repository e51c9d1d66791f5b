"""Goal: `latest` never gives an older value than the one before the call, and loses none that was put while its topic
was compacted. Method: a writer and a reader beside processes that compact and clean and are killed, while the compacted
topics change and the topic is deleted, at random."""

from __future__ import annotations

import pytest

import cystore
from cystore.verify import verify
from tests.support.process import Process
from tests.support.small_stores import SETTINGS

STEPS = 2_000
COMPACTED = {**SETTINGS, "file_reserved_time_h": 0, "compacted_topics": "state"}
WORK = """
import cystore, logging, random, threading
logging.disable()
store = cystore.open(path, **settings)
rng = random.Random(seed)
def work():
    while True:
        try:
            rng.choice((store.compact, store.compact, store.clean, store.clean, store.compact_due))()
        except (cystore.StoreConfigError, cystore.StoreTimeoutError):
            pass
threading.Thread(target=work, daemon=True).start()
"""


class Attack:
    """The store, the values that it must give, and the keys whose value must be there."""

    def __init__(self, store, reader, rng):
        self.store, self.handles, self.rng = store, (store, reader), rng
        self.model: dict[str, bytes] = {}
        self.sure: set[str] = set()
        self.on, self.count = True, 0

    def put(self):
        self.count += 1
        key = f"k{self.rng.randrange(30)}"
        body = b"" if self.rng.random() < 0.1 else b"%d" % self.count
        self.store.put("state", body, keys=[key])
        self.store.put("other", bytes(700))
        self.model[key] = body
        if self.on:
            self.sure.add(key)
        if self.rng.random() < 0.3:
            self.store.flush()

    def look(self):
        for key in self.rng.sample(sorted(self.model), min(3, len(self.model))):
            for handle in self.handles if self.on else ():
                found = handle.latest("state", key)
                if found is not None:
                    assert bytes(found.body) == self.model[key], key
                elif key in self.sure:
                    assert self.model[key] == b"", key

    def switch(self):
        self.on = not self.on
        if not self.on:
            self.sure.clear()
        names = ("state", "state,more*", "st*") if self.on else ("", "more*")
        self.store.configure(compacted_topics=self.rng.choice(names))

    def delete(self):
        self.store.delete_topic("state")
        self.model = dict.fromkeys(self.model, b"")


@pytest.mark.slow
def test_nothing_outdated_is_given(tmp_path, rng):
    path = tmp_path / "store"
    workers: list[Process] = []
    with cystore.open(path, **COMPACTED) as store, cystore.open(path, read_only=True) as reader:
        attack = Attack(store, reader, rng)
        try:
            for _ in range(STEPS):
                while len(workers) < 2:
                    workers.append(Process())
                    workers[-1].do(WORK, path=str(path), settings=COMPACTED, seed=rng.randrange(1 << 30))
                chance = rng.random()
                if chance < 0.03:
                    workers.pop(0).kill()
                elif chance < 0.05:
                    attack.switch()
                elif chance < 0.06:
                    attack.delete()
                elif chance < 0.5:
                    attack.put()
                else:
                    attack.look()
        finally:
            for worker in workers:
                worker.kill()
    assert list(verify(path, cystore.StoreConfig(**COMPACTED))) == []
