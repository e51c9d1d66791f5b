"""Goal: messages of a claimed queue have one owner at a time, and each is settled once, whatever happens to the owners
and to the file of claims. Method: owners that claim, settle, give back and end at random, beside a list; the file is
removed now and then, as a power cut or a copy of the store would."""

from __future__ import annotations

import shutil
import struct
from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st

import cystore
from cystore.consumers.claims import _STATE_AT, FOLDER, Claim, ClaimedQueue, Owner, owner_notes
from tests.property.test_store import scratch
from tests.support.small_stores import SETTINGS as SMALL

OWNERS = 3
WHAT = ["put", "put", "claim", "claim", "settle", "together", "killed", "give_back", "end", "die", "purge", "lose",
        "damage", "look", "reopen"]  # fmt: skip
SETTINGS = {**SMALL, "enable_lmq": True, "enable_multi_dispatch": True}


class Killed(BaseException):
    """In place of the end of the process."""


class Model:
    """The store, its owners, and the list of messages."""

    def __init__(self, path) -> None:
        self.path = path
        self.store = cystore.open(path, **SETTINGS)
        self.waiting: list[int] = []  # queue offsets that nobody has
        self.returned: set[int] = set()  # those of them that somebody had
        self.had: list[dict] = [{} for _ in range(OWNERS)]  # claims by queue offset
        self.number = 0
        self._begin()

    def _begin(self) -> None:
        self.owners = [Owner(self.path) for _ in range(OWNERS)]
        self.queues = [
            ClaimedQueue(self.store, lambda owner=owner: owner, "g", "T", 0) for owner in self.owners
        ]

    def put(self) -> None:
        self.store.put("T", f"m{self.number}".encode(), queue_id=0)
        self.waiting.append(self.number)
        self.number += 1

    def claim(self, who: int, count: int) -> None:
        order = [*sorted(self.returned), *(one for one in self.waiting if one not in self.returned)]
        found = self.queues[who].claim(count)
        assert [claim.queue_offset for claim in found] == order[:count]
        assert [claim.redelivered for claim in found] == [one in self.returned for one in order[:count]]
        for claim in found:
            self.had[who][claim.queue_offset] = claim
            self.waiting.remove(claim.queue_offset)
            self.returned.discard(claim.queue_offset)

    def settle(self, who: int, count: int) -> None:
        some = list(self.had[who].values())[:count]
        self.queues[who].settle(some)
        for claim in some:
            del self.had[who][claim.queue_offset]

    def together(self, who: int, count: int) -> None:
        """As the process of a task settles its message with the result; then the worker settles it."""
        other, owner = self.queues[(who + 1) % OWNERS], self.owners[who].id
        for claim in list(self.had[who].values())[:count]:
            self.store.put("R", b"", properties=other.begin_settling(claim, owner))
            other.end_settling(claim, owner)
            assert other.begin_settling(claim, owner) is None
        self.settle(who, count)

    def killed(self, who: int, count: int) -> None:
        """As such a process is killed before its append, or behind it: then nobody gets the message again."""
        claims = list(self.had[who].values())[:count]
        for claim in claims[1:]:
            properties = self.queues[who].begin_settling(claim, self.owners[who].id)
            self.store.put("R", b"", properties=properties)
            del self.had[who][claim.queue_offset]
        if claims:
            assert self.queues[who].begin_settling(claims[0], self.owners[who].id)
        self.queues[who].give_back(claims)
        self._return(who, claims[:1])

    def give_back(self, who: int, count: int) -> None:
        some = list(self.had[who].values())[:count]
        self.queues[who].give_back(some)
        self._return(who, some)

    def _return(self, who: int, claims: list) -> None:
        for claim in claims:
            del self.had[who][claim.queue_offset]
            self.waiting = sorted([*self.waiting, claim.queue_offset])
            self.returned.add(claim.queue_offset)

    def end(self, who: int) -> None:
        """As a kill ends an owner: it gives nothing back itself."""
        self.queues[who].close()
        self.owners[who].close()
        had = len(self.had[who])
        assert self.queues[(who + 1) % OWNERS].take_over() == had
        assert self.queues[(who + 1) % OWNERS].take_over() == 0
        self._return(who, list(self.had[who].values()))
        self.owners[who] = Owner(self.path)
        self.queues[who] = ClaimedQueue(self.store, lambda: self.owners[who], "g", "T", 0)

    def die(self, who: int, count: int) -> None:
        """The end comes in a claim, after its places were filled and before its messages count as claimed."""
        write = self.queues[who]._write

        def stops(at: int, data: bytes) -> None:
            if at == _STATE_AT:
                raise Killed
            write(at, data)

        self.queues[who]._write = stops
        with suppress(Killed):
            self.queues[who].claim(count)
        self.had[who] |= {one: Claim(one, -1, True) for one in sorted(self.returned)[:count]}
        self.waiting = [one for one in self.waiting if one not in self.had[who]]
        self.returned -= set(self.had[who])
        self.end(who)

    def damage(self, kind: int) -> None:
        """The file is cut or overwritten while its owners live: their messages come once more."""
        path = self.queues[0].path
        with open(path, "r+b") as file:
            if kind == 0:
                file.truncate(100)
            elif kind == 1:
                file.write(b"nonsense")
            else:
                file.seek(_STATE_AT)
                file.write(struct.pack("<qq", *((-1, 0), (1, 1 << 60), (1 << 60, 1))[kind - 2]))
        for had in self.had:
            self.waiting = sorted([*self.waiting, *had])
            had.clear()
        highest = max({*range(self.number)} - {*self.waiting}, default=-1)
        self.returned = {one for one in self.waiting if one < highest}

    def purge(self, who: int) -> None:
        assert self.queues[who].purge() == len(self.waiting)
        self.waiting, self.returned = [], set()

    def lose(self) -> None:
        """All owners end, and the files of claims are gone: the log alone says what is settled."""
        for queue, owner in zip(self.queues, self.owners, strict=True):
            queue.close()
            owner.close()
        shutil.rmtree(self.path / FOLDER)
        settled_below = {*range(self.number)} - {*self.waiting, *(one for had in self.had for one in had)}
        for who in range(OWNERS):
            self._return(who, list(self.had[who].values()))
        highest = max(settled_below, default=-1)
        self.returned = {one for one in self.waiting if one < highest}
        self._begin()

    def reopen(self) -> None:
        for queue, owner in zip(self.queues, self.owners, strict=True):
            queue.close()
            owner.close()
        self.store.close()
        self.store = cystore.open(self.path, **SETTINGS)
        for who in range(OWNERS):
            self._return(who, list(self.had[who].values()))
        self._begin()
        self.queues[0].take_over()

    def compare(self) -> None:
        for queue in self.queues:
            assert queue.ready() == len(self.waiting)
        claimed = [offset for offset, _ in self.queues[0].claimed()]
        assert claimed == sorted(one for had in self.had for one in had)

    def close(self) -> None:
        for queue, owner in zip(self.queues, self.owners, strict=True):
            queue.close()
            owner.close()
        self.store.close()


@settings(max_examples=max(settings.default.max_examples // 2, 20))
@given(st.data())
def test_claims_follow_the_list(data):
    with scratch() as path:
        model = Model(path)
        for _ in range(data.draw(st.integers(10, 60))):
            what, who = data.draw(st.sampled_from(WHAT)), data.draw(st.integers(0, OWNERS - 1))
            if what == "put":
                model.put()
            elif what in ("claim", "settle", "together", "killed", "give_back"):
                getattr(model, what)(who, data.draw(st.integers(1, 5)))
            elif what in ("end", "purge"):
                getattr(model, what)(who)
            elif what == "die":
                model.die(who, data.draw(st.integers(1, 5)))
            elif what == "damage":
                model.damage(data.draw(st.integers(0, 4)))
            elif what == "look":
                model.queues[who].look()
            else:
                getattr(model, what)()
            model.compare()
        while model.waiting:
            model.claim(0, 5)
        model.close()


def test_a_claim_that_was_killed_leaves_no_second_place():
    """It had filled places, and the same messages get other places later."""
    with scratch() as path:
        model = Model(path)
        for _ in range(5):
            model.put()
        model.claim(0, 1)
        model.claim(2, 2)
        model.settle(2, 2)
        model.die(1, 2)  # in the two places that are empty
        model.settle(0, 1)
        model.claim(0, 2)  # in another one, and in the first of them
        model.settle(0, 2)
        model.compare()
        model.close()


def test_who_only_asks_has_no_place_among_the_owners():
    """A program that only puts asks for dead owners too."""
    with scratch() as path:
        model = Model(path)
        asks = Owner(path)
        queue = ClaimedQueue(model.store, lambda: asks, "g", "T", 0)
        model.put()
        model.claim(0, 1)
        assert queue.take_over() == 0 and queue.claimed() == [(0, model.owners[0].id)]
        model.owners[0].close()
        assert queue.take_over() == 1
        assert len(owner_notes(path)) == 1, "only the one that claimed"
        queue.close()
        asks.close()
        model.close()
