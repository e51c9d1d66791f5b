"""Goal: a wait for a remote result continues when the worker that answers dies, and when Redis starts again. Method:
two real workers of one store, a Redis of its own for the reader, and kills."""

from __future__ import annotations

import os
import signal
import time
from urllib.parse import quote

from celery import states

from cystore.celery.base.identity import store_id_of
from cystore.celery.redis_urls import RedisLocation
from cystore.celery.routing import lists
from cystore.celery.routing.messages import WAIT_MS_MOST
from tests.celery.conftest import PATIENCE_S, fleet_in, take_the_place, wait_until
from tests.celery.results.test_store_away import ready
from tests.celery.routing.test_remote import client_of, serves, waits_for
from tests.support.celery import work
from tools.redis_server import redis_server


def test_the_serving_worker_is_killed_and_redis_is_started_again(tmp_path):
    """A get continues through both, tasks run on another Redis meanwhile, and the workers do not end."""
    with redis_server(own=True) as reader:
        option = f"?reader={quote(reader.broker_url, safe='')}"
        with fleet_in(tmp_path, option) as fleet:
            home = store_id_of(fleet.backend.store)
            first = fleet.start("--concurrency=1")
            wait_until(lambda: serves(first, fleet.store_path), "the first worker answers")
            second = fleet.start("--concurrency=1")
            ready(second)
            app = client_of(
                fleet, f"cystore+remote://?reader={quote(reader.broker_url, safe='')}", cystore_home=home
            )
            assert app.tasks[work.add.name].delay(1, 1).get(timeout=PATIENCE_S) == 2

            outcome: list[object] = []
            began_s = time.monotonic()
            waiting = waits_for(app, "through a kill", outcome)
            line = lists.Line(RedisLocation.parse(reader.broker_url))
            wait_until(
                lambda: line._client.llen(lists.taken_key(home)) == 1, "the first worker has the request"
            )
            wait_until(
                # The flag says that it waits now; the command may be that of an earlier wait.
                lambda: any(
                    one["cmd"] == "blpop" and "b" in one["flags"] for one in line._client.client_list()
                ),
                "the client waits for its answer",
            )
            asked = line._client.info("commandstats")["cmdstat_blpop"]["calls"]
            first.kill()
            wait_until(lambda: serves(second, fleet.store_path), "the second worker answers")
            fleet.backend.store_result("through a kill", "came", states.SUCCESS)
            waiting.join(PATIENCE_S)
            assert outcome == ["came"]
            told = line._client.info("commandstats")["cmdstat_blpop"]["calls"]
            again = (
                time.monotonic() - began_s >= WAIT_MS_MOST / 1000
            )  # on a busy machine the client asks again
            assert told == asked or again, "the second worker answered what the first one had been asked"

            waiting = waits_for(app, "through a restart", outcome)
            wait_until(
                lambda: line._client.llen(lists.taken_key(home)) == 1, "the second worker has the request"
            )
            line.close()
            os.kill(reader.pid, signal.SIGKILL)
            os.waitid(os.P_PID, reader.pid, os.WEXITED | os.WNOWAIT)
            assert fleet.task(work.add).delay(2, 2).get(timeout=PATIENCE_S) == 4
            with redis_server(own=True) as new:
                take_the_place(reader, new)
                fleet.backend.store_result("through a restart", "came too", states.SUCCESS)
                waiting.join(PATIENCE_S)
                assert outcome == ["came", "came too"]
                assert second.process.poll() is None
            assert second.stop() == 0
