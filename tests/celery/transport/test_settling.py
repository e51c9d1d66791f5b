"""Goal: the record that ends a task settles its message, too, if nothing but the acknowledgement follows it; in all
other cases the worker acknowledges as with any broker. Method: Celery's own tracer on messages that a channel took, for
tasks that end in each way."""

from __future__ import annotations

import pytest
from celery import Celery, Task, states
from celery.app.trace import build_tracer
from celery.exceptions import Ignore, Reject
from kombu import Connection

from cystore.celery import Once
from cystore.celery.base.records import CLAIM
from cystore.layout.record import SETTLES


class Tells(Task):
    def on_success(self, *args):
        pass


class Ends(Task):
    def after_return(self, *args):
        pass


def succeeds(self):
    return 1


def fails(self):
    raise ValueError("no")


def comes_again(self):
    raise self.retry(countdown=0)


def says_it_succeeded(self):
    self.update_state(state=states.SUCCESS)
    raise Ignore


def is_refused(self):
    raise Reject("no", requeue=True)


def fails_another(self):
    self.backend.mark_as_failure("another", ValueError("no"))
    raise Ignore


LINK = {"link_error": [{"task": "t", "args": [], "kwargs": {}, "options": {}}]}


@pytest.mark.parametrize(
    ("code", "options", "sent", "settles"),
    [
        (succeeds, {}, {}, True),
        (fails, {}, {}, True),
        (succeeds, {"base": Once}, {}, True),
        (succeeds, {"acks_late": False}, {}, False),
        (succeeds, {"ignore_result": True}, {}, False),
        (succeeds, {"base": Tells}, {}, False),
        (succeeds, {"base": Ends}, {}, False),
        (fails, {"base": Tells}, {}, True),
        (fails, {"base": Ends}, {}, False),
        (fails, {"acks_on_failure_or_timeout": False, "acks_on_failure": False}, {}, False),
        (fails, {}, LINK, False),
        (succeeds, {}, LINK, True),
        (comes_again, {}, {}, False),
        (says_it_succeeded, {}, {}, False),
        (is_refused, {}, {}, False),
        (fails_another, {}, {}, False),
    ],
)
def test_which_ends_settle_the_message(url, code, options, sent, settles):
    app = Celery("test", broker=url, backend=url, set_as_current=False)
    task = app.task(code, name=f"test.{id(url)}", bind=True, **{"acks_late": True, **options})
    run, queue_offset = _taken(app, task, sent)
    claimed = run()
    found = [one.properties[SETTLES] for one in app.backend.store.scan() if SETTLES in one.properties]
    assert found == ([str(queue_offset)] if settles else [])
    assert claimed == ([] if settles else [queue_offset])


@pytest.mark.parametrize("other", ["another store", "no light queues", "compaction", "from elsewhere"])
def test_a_result_that_cannot_settle_is_stored_as_ever(url, tmp_path, other):
    backend = f"cystore://{tmp_path}/results" if other == "another store" else url
    app = Celery("test", broker=url, backend=backend, set_as_current=False)
    if other == "no light queues":
        app.conf.result_backend_transport_options = {"enable_lmq": False}
        assert not app.backend.store.settings.enable_lmq
    if other == "compaction":
        app.conf.result_backend_transport_options = {"compacted_topics": "celery_results"}
    task = app.task(succeeds, name=f"test.{id(url)}", bind=True, acks_late=True)
    run, _ = _taken(app, task, {}, ["cystore"] if other == "from elsewhere" else None)
    run()
    (record,) = [one for one in app.backend.store.scan() if one.tags == states.SUCCESS]
    assert SETTLES not in record.properties


def _taken(app, task, sent, claim=None):
    """A function that runs the message's task as a worker does and gives the queue offsets that it still has; and the
    one of the message."""
    app.finalize()
    task = app.tasks[task.name]
    result = task.apply_async(task_id="t1", **sent)
    connection = Connection(app.conf.broker_url)
    message = connection.default_channel.basic_get("celery")
    place = message.properties[CLAIM][4].queue_offset
    if claim is not None:
        message.properties[CLAIM] = claim
    args, kwargs, embed = message.payload
    request = {
        **message.headers, **embed, "properties": message.properties, "delivery_info": message.delivery_info,
        "hostname": "h", "is_eager": False,
    }  # fmt: skip

    def run():
        with connection:
            build_tracer(task.name, task, app=app)(result.id, args, kwargs, request)
            (queue,) = message.channel.connection.claimed_queues("celery")
            return [queue_offset for queue_offset, _ in queue.claimed()]

    return run, place
