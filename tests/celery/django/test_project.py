"""Goal: a project of Django makes, looks at and cleans its store by `manage.py`, hears what is wrong, sends after its
commits, and comes from django-celery-results and django-celery-beat with everything it had. Method: the example's
project, its commands as processes; results and schedules written by those apps themselves."""

from __future__ import annotations

import json
import re
import shlex
import sys

import pytest
from celery import Celery
from celery.result import GroupResult

import cystore
from cystore.celery import history
from cystore.celery.base import events
from cystore.celery.schedules import entries
from cystore.celery.stores import close_shared
from tests.structure.sources import ROOT
from tests.structure.test_docs import blocks
from tests.support.celery.django_site import MANAGE, Site
from tests.support.celery.logs import runs, write
from tests.support.celery.web import WebServer


@pytest.fixture(scope="module")
def tables(tmp_path_factory) -> Site:
    site = Site(tmp_path_factory.mktemp("project"))
    site.tables()
    return site


@pytest.fixture
def site(tables, tmp_path) -> Site:
    """The project with its tables, and a store that is not there yet."""
    site = Site(tmp_path)
    site.environment["APP_DATABASE"] = tables.environment["APP_DATABASE"]
    return site


def test_the_page_in_the_projects_own_server(site):
    """Below a path, with its files and its stream; the rest is the project's."""
    with cystore.open(site.store) as store:
        write(store, runs(3))
        command = (sys.executable, "-m", "tests.support.celery.django_asgi")
        bearer = {"Authorization": "Bearer a long secret"}
        with WebServer(command=command, **site.environment) as server:
            assert server.get("tasks/api/tasks").status == 401
            assert len(server.get("tasks/api/tasks", bearer).json["tasks"]) == 3
            assert server.get("tasks/api/tasks/t1", bearer).json["events"]
            page = server.get("tasks/", bearer).body.decode()
            for file in re.findall(r'(?:src|href)="(assets/[^"]+)"', page):
                assert server.get(f"tasks/{file}", bearer).status == 200, file
            assert server.get("tasks/", {}, token="a long secret").headers["Location"] == "./"
            assert b"login" in server.get("admin/login/").body
            assert server.get("tasks/healthz").status == 200


@pytest.fixture
def app(site):
    """An app on the project's store."""
    yield Celery("shop", broker="memory://", backend=f"cystore://{site.store}", set_as_current=False)
    close_shared()


def test_the_commands(site):
    assert site.manage("cystore_create").stdout.endswith("made\n")
    made = json.loads(site.manage("cystore_create", "--json").stdout)
    assert made["made"] is False and made["path"] == str(site.store)
    with cystore.open(site.store) as store:
        write(store, runs(20))
    report = site.manage(
        "cystore_report", "--format", "json", "--name", "app.task1", "--name=app.task2"
    ).stdout
    assert '"app.task1"' in report and '"app.task2"' in report and '"app.task3"' not in report
    assert json.loads(site.manage("cystore_clean", "--json").stdout)["segments"] == 0
    with WebServer(command=(*MANAGE, "cystore_web"), **site.environment) as page:
        assert len(page.ids()) == 20
    wrong = site.manage("cystore_report", "--top", "none", code=2).stderr
    assert wrong.startswith("CommandError: ") and "--top" in wrong
    assert "--overwrite" in site.manage("cystore_report", "--help").stdout
    other = site.manage("cystore_clean", code=2, CELERY_RESULT_BACKEND="cache+memory://").stderr
    assert "CELERY_RESULT_BACKEND" in other and len(other.splitlines()) == 1


def test_a_caller_in_python_gets_what_a_command_writes(site):
    script = """
import io, json
from django.core.management import call_command
written = io.StringIO()
call_command("cystore_create", "--json", stdout=written)
print(json.dumps([json.loads(written.getvalue())["made"]]))
"""
    assert site.shell(script) == [True]


@pytest.mark.parametrize(
    ("settings", "code", "says"),
    [
        ({}, 0, "cystore.W002"),
        ({"CELERY_RESULT_BACKEND": "cache+memory://"}, 0, "cystore.W001"),
        ({"CELERY_CYSTORE_LIFECYCEL": False}, 0, "cystore.W003"),
        ({"CYSTORE": {"STOER": "/x"}}, 1, "did you mean"),
        ({"CYSTORE": {"CELERY_APP": "no.such:app"}}, 1, "no.such:app"),
        (
            {"CELERY_RESULT_BACKEND": "cystore:///tmp/x?mapped_file_size_commit_log_bytes=none"},
            1,
            "cystore.E001",
        ),
    ],
    ids=["no store", "other backend", "no effect", "misspelt", "no app", "wrong option"],
)
@pytest.mark.sampled(3)
def test_what_is_wrong_is_said(site, settings, code, says):
    done = site.manage("check", code=code, **settings)
    assert says in done.stdout + done.stderr
    assert not site.store.exists()


def test_before_a_deployment_the_host_is_checked(site):
    site.manage("cystore_create")
    assert "no issues" in site.manage("check", "--tag", "cystore").stdout
    site.store.chmod(0o777)
    done = site.manage("check", "--deploy", "--tag", "cystore", "--fail-level", "WARNING", code=1)
    assert "owner: " in done.stderr


def test_tasks_are_sent_after_the_commit(site):
    script = """
import json
from celery import chain, chord, group
from django.db import transaction
from cystore.contrib.django.sending import send_on_commit
from examples.django.shop.tasks import charge

call, sent = charge.si(1, card="1111"), {}
with transaction.atomic():
    sent["one"] = send_on_commit(call, queue="other").id
    sent["chain"] = send_on_commit(chain(call, call)).parent.id
    sent["group"] = [one.id for one in send_on_commit(group(call, call))]
    chorded = send_on_commit(chord([call, call], call))
    sent["chord"] = [one.id for one in chorded.parent]
    from cystore.contrib.django.project import source
    from cystore.celery import history
    sent["before"] = len(list(history.events(source())))
try:
    with transaction.atomic():
        send_on_commit(call)
        raise KeyError
except KeyError:
    pass
sent["now"] = send_on_commit(call).id
print(json.dumps(sent))
"""
    sent = site.shell(script)
    with cystore.open(site.store, read_only=True) as store:
        found = {one.task_id: one for one in history.events(store, states=(events.SENT,))}
    assert sent["before"] == 0
    assert set(found) == {sent["one"], sent["chain"], *sent["group"], *sent["chord"], sent["now"]}
    assert found[sent["one"]].details["queue"] == "other"


THEIR_RESULTS = """
import json
from celery import current_app, states
from celery.result import AsyncResult
from django_celery_results.backends.database import DatabaseBackend
from django_celery_results.models import TaskResult
from examples.django.shop.tasks import charge

class Request:
    argsrepr, kwargsrepr, hostname, task = "(17,)", "{'card': '1111'}", "w@h", "shop.charge"
    children, periodic_task_name = [], None

current_app.conf.result_extended = True
theirs = DatabaseBackend(current_app._get_current_object())
theirs.store_result("good", {"paid": 17}, states.SUCCESS, request=Request)
theirs.store_result("bad", ValueError("declined"), states.FAILURE, traceback="Traceback of bad", request=Request)
theirs.store_result("plain", [1, "é"], states.SUCCESS)
theirs.store_result("runs", None, states.STARTED)
theirs.save_group("parts", current_app.GroupResult("parts", [AsyncResult("good"), AsyncResult("plain")]))
TaskResult.objects.create(task_id="pickled", status="SUCCESS", content_type="application/x-python-serialize",
                          content_encoding="binary", result="gAWVAgAAAAAAAABLAS4=")
print(json.dumps(TaskResult.objects.count()))
"""


def test_results_come_over(site, app):
    assert site.shell(THEIR_RESULTS) == 5
    first = site.manage("cystore_import_results", code=1)
    assert first.stdout == (
        "stored 3 results and 1 groups; left out: 0 known to the store, 1 that have not ended, 1 unreadable\n"
    )
    assert "task pickled: " in first.stderr
    assert app.AsyncResult("good").get(timeout=60) == {"paid": 17}
    assert app.AsyncResult("plain").get(timeout=60) == [1, "é"]
    bad = app.AsyncResult("bad")
    with pytest.raises(ValueError, match="declined"):
        bad.get(timeout=60)
    assert bad.traceback == "Traceback of bad" and bad.date_done is not None
    assert [one.id for one in GroupResult.restore("parts", app=app)] == ["good", "plain"]
    known = {one.task_id: one for one in history.events(app.backend.store)}
    assert {task_id: one.event for task_id, one in known.items()} == {
        "good": "SUCCEEDED", "bad": "FAILED", "plain": "SUCCEEDED",
    }  # fmt: skip
    details = known["bad"].details
    assert known["bad"].name == "shop.charge" and details["worker"] == "w@h" and details["args"] == "(17,)"
    assert details["exception"] == "ValueError('declined')"
    again = site.manage("cystore_import_results", code=1).stdout
    assert again.startswith("stored 0 results and 0 groups; left out: 4 known")


THEIR_SCHEDULES = """
import json
from datetime import UTC, datetime, timedelta
from django_celery_beat.models import (
    ClockedSchedule, CrontabSchedule, IntervalSchedule, PeriodicTask, SolarSchedule)

minute = IntervalSchedule.objects.create(every=5, period="minutes")
night = CrontabSchedule.objects.create(minute="30", hour="2, 14", timezone="Europe/Berlin")
now = datetime.now(UTC)
ran = now - timedelta(minutes=7)
clock = lambda time: ClockedSchedule.objects.create(clocked_time=time)
PeriodicTask.objects.create(name="pulse", task="shop.pulse", interval=minute, args="[17]", kwargs='{"a": 1}',
                            queue="fast", priority=3, expire_seconds=60, headers='{"x": "y"}',
                            last_run_at=ran, total_run_count=12)
PeriodicTask.objects.create(name="nightly", task="shop.clean", crontab=night, enabled=False)
PeriodicTask.objects.create(name="launch", task="shop.open", clocked=clock(now + timedelta(days=3)), one_off=True)
PeriodicTask.objects.create(name="gone", task="shop.open", clocked=clock(now - timedelta(days=3)), one_off=True,
                            last_run_at=now, enabled=False, total_run_count=1)
PeriodicTask.objects.create(name="over", task="shop.pulse", interval=minute, expires=now - timedelta(days=1))
PeriodicTask.objects.create(name="later", task="shop.pulse", interval=minute, start_time=now + timedelta(days=2))
PeriodicTask.objects.create(name="wrong", task="shop.pulse", interval=minute, args="[17")
PeriodicTask.objects.filter(name="pulse").update(last_run_at=ran)
print(json.dumps([ran.timestamp(), now.timestamp()]))
"""


def test_schedules_come_over(site):
    ran_s, now_s = site.shell(THEIR_SCHEDULES)
    site.manage("cystore_create")
    first = site.manage("cystore_import_schedules", code=1)
    assert first.stdout == (
        "took over 4 schedules; left out: 0 whose name the store has, 2 that would not run again, 1 refused\n"
    )
    assert "schedule 'wrong': " in first.stderr
    with cystore.open(site.store) as store:
        known = {one.name: one for one in entries.listed(store)}
        assert set(known) == {"pulse", "nightly", "launch", "later"}
        pulse = known["pulse"]
        assert pulse.when == {"every_ms": 300_000} and pulse.args == [17] and pulse.kwargs == {"a": 1}
        assert pulse.options == {"queue": "fast", "priority": 3, "expires": 60, "headers": {"x": "y"}}
        assert (
            pulse.due_ms == round(ran_s * 1000) + 600_000 and pulse.runs == 12
        )  # the grid of its runs stays
        assert known["nightly"].when == {"crontab": "30 2,14 * * *", "timezone": "Europe/Berlin"}
        assert not known["nightly"].enabled and pulse.enabled
        assert known["launch"].due_ms == round(now_s * 1000) + 3 * 86_400_000
        assert known["later"].due_ms >= round(now_s * 1000) + 2 * 86_400_000
        entries.delete(store, "nightly")
    again = site.manage("cystore_import_schedules", code=1).stdout
    assert again.startswith("took over 1 schedules; left out: 3 whose name")


def test_a_project_without_those_apps_is_told(site):
    apps = [
        "django.contrib.contenttypes",
        "django.contrib.auth",
        "cystore.contrib.django",
        "examples.django.shop",
    ]
    for command in ("cystore_import_results", "cystore_import_schedules"):
        done = site.manage(command, code=2, INSTALLED_APPS=apps, ROOT_URLCONF="examples.django.shop.apps")
        assert "INSTALLED_APPS" in done.stderr and sys.executable not in done.stderr


def test_the_commands_of_the_page(site):
    """docs/django.md, in its order; `test_the_commands` serves the page on tasks."""
    lines = [
        shlex.split(line, comments=True)
        for block in blocks((ROOT / "docs" / "django.md").read_text())
        if block.language == "sh"
        for line in block.source.splitlines()
    ]
    commands = [words[2:] for words in lines if words[:2] == ["python", "manage.py"]]
    assert len(commands) == 6
    for words in commands:
        if words[0] != "cystore_web":
            site.manage(
                *words, code=0 if words[0] in ("cystore_create", "cystore_report", "cystore_clean") else None
            )
