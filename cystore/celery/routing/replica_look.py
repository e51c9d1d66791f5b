"""Results of a home that is silent, from a replica on another host.

A replica may lack the newest records. So only its final results count, which do not depend on newer records. A missing
or unfinished result says nothing about the present, and the home has to be asked.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from celery import states

from cystore.celery.routing import lists
from cystore.celery.routing.home_secrets import HomeSecrets
from cystore.celery.routing.messages import (
    IDS_MOST,
    Answer,
    ForgedError,
    Found,
    ProtocolError,
    Request,
    new_request_id,
)
from cystore.clock import monotonic_s

log = logging.getLogger("cystore.celery")

ANSWER_S = 2.0  # a live replica answers within this time
GROUPS = "groups"


class ReplicaState(NamedTuple):
    """An answer's beginning: `as_of_ms` is the time of the newest record that the replica of `home` has; None if no
    replica answered in time, `why` then says more."""

    home: str
    as_of_ms: int | None
    why: str = ""


def final_results(
    line: lists.Line, asked: Mapping[str, Sequence[str]], topic: str, secrets: HomeSecrets
) -> Iterator[ReplicaState | Found]:
    """The final results at replicas of some homes, each with `as_of_ms`; before those of one answer the ReplicaState.
    `asked`: the ids by homes. All homes together have ANSWER_S. Raises one of `lists.AWAY`."""
    requests: dict[str, Request] = {}
    for home, ids in asked.items():
        for begin in range(0, len(ids), IDS_MOST):
            some, signed = tuple(ids[begin : begin + IDS_MOST]), secrets.of(home) is not None
            request = Request(new_request_id(), home, some, topic, signed=signed)
            if line.push(request, int(1000 * ANSWER_S), name=lists.replica_of(home)):
                requests[request.id] = request
            else:
                yield ReplicaState(home, None, "too many requests wait for it")
    until = monotonic_s() + ANSWER_S
    while requests and (left_s := until - monotonic_s()) > 0:
        answer = _next_answer(line, requests, left_s, secrets)
        if answer is None:
            continue
        yield ReplicaState(answer.home, answer.as_of_ms, answer.refused)
        for one in answer.found:
            if one.state in states.READY_STATES or (topic == GROUPS and one.state is not None):
                whole = _whole(line, answer.home, topic, one, secrets)
                if whole is not None:
                    yield whole._replace(answered_by=answer.home, as_of_ms=answer.as_of_ms)
    for home in {request.home for request in requests.values()}:
        yield ReplicaState(home, None, f"no answer within {ANSWER_S:.0f} s")


def _next_answer(
    line: lists.Line, requests: dict[str, Request], timeout_s: float, secrets: HomeSecrets
) -> Answer | None:
    """The next answer to one of the requests, which is removed from them; None if none came, or an invalid one. The
    request of a forged answer stays."""
    line.take_answer(list(requests), timeout_s)
    while not line.came(timeout_s):
        pass
    taken = line.answer_in(line.taken())
    request = requests.get(taken[0]) if taken is not None else None
    if taken is None or request is None:
        return None
    try:
        answer = Answer.parse(taken[1], request, of_replica=True, secret=secrets.of(request.home))
        del requests[request.id]
        return answer
    except ForgedError as error:
        log.warning("a replica of store %s: %s; waiting for the right one", request.home, error)
        return None
    except ProtocolError as error:
        del requests[request.id]
        log.warning("a replica of store %s: %s", request.home, error)
        return None


def _whole(line: lists.Line, home: str, topic: str, found: Found, secrets: HomeSecrets) -> Found | None:
    """A result with all its parts; None if it was removed meanwhile, or if a part does not come."""
    parts, have = [bytes(found.body)], len(found.body)
    while have < found.size_bytes:
        signed = secrets.of(home) is not None
        request = Request(new_request_id(), home, (found.id,), topic, part=(found.at, have), signed=signed)
        if not line.push(request, int(1000 * ANSWER_S), name=lists.replica_of(home)):
            return None
        open_ones, until, answer = {request.id: request}, monotonic_s() + ANSWER_S, None
        while answer is None and open_ones and (left_s := until - monotonic_s()) > 0:
            answer = _next_answer(line, open_ones, left_s, secrets)
        if answer is None or answer.refused:
            return None
        one = answer.found[0]
        if not one.body or (one.at, one.size_bytes) != (found.at, found.size_bytes):
            return None
        parts.append(bytes(one.body))
        have += len(one.body)
    return found._replace(body=b"".join(parts))
