"""Goal: the admin shows the log to those who may see it, and only those who may act on tasks do. Method: the example's
project with its own server; people with different permissions, over HTTP and in a real browser; a log whose every text
is a script."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

import cystore
from tests.support.celery.django_site import PASSWORD, SERVER, Site, Visitor, shown
from tests.support.celery.logs import event_message, runs, write
from tests.support.celery.web import WebServer
from tools import browser
from tools.browser import Browser

SCRIPT = '<img src=x onerror="window.ran=1"><script>window.ran=1</script>\'"&'
LIST = "admin/cystore/task/"
ODD = "a/b?c=_2F #1"
PEOPLE = """
import json
from tests.support.celery.django_site import PASSWORD
from django.contrib.auth.models import Permission, User
from examples.django.shop.tasks import charge
for name, allowed in {"boss": None, "viewer": ["view"], "mender": ["view", "rerun"], "nobody": []}.items():
    user = User.objects.create_user(name, password=PASSWORD, is_staff=True, is_superuser=allowed is None)
    for one in allowed or ():
        user.user_permissions.add(Permission.objects.get(codename=one + "_task", content_type__app_label="cystore"))
charge.apply_async((1,), {"card": "1111"}, task_id="kept")
print(json.dumps("done"))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Site:
    site = Site(tmp_path_factory.mktemp("project"))
    site.tables()
    site.manage("cystore_create")
    with cystore.open(site.store) as store:
        write(store, runs(120))
        texts = {"args": SCRIPT, "kwargs": SCRIPT, "worker": SCRIPT, "queue": SCRIPT}
        write(
            store,
            [
                event_message("SENT", SCRIPT, SCRIPT, **texts),
                event_message("FAILED", SCRIPT, SCRIPT, **texts, exception=SCRIPT, traceback=SCRIPT),
                event_message("STARTED", ODD, "odd"),
            ],
        )
    assert site.shell(PEOPLE) == "done"
    return site


@pytest.fixture(scope="module")
def server(site) -> Iterator[WebServer]:
    with site.server() as server:
        yield server


@pytest.fixture
def viewer(server) -> Visitor:
    return Visitor(server.url, "viewer")


def ids(page: str) -> list[str]:
    return re.findall(r'<th scope="row"><a href="[^"]*">([^<]*)</a>', page)


def address(task_id: str, page: str = "change") -> str:
    quoted = "".join(f"_{ord(one):02X}" if one in ':/_#?;@&=+$,"[]<>%\n\\' else one for one in task_id)
    return f"{LIST}{quote(quoted)}/{page}/"


def test_the_list_goes_back_page_by_page(viewer):
    seen: list[str] = []
    page = viewer.get(LIST).body.decode()
    while True:
        seen += ids(page)
        older = re.search(r'href="\?(after=[^"]*)">Older', page)
        if older is None:
            break
        page = viewer.get(f"{LIST}?{older[1].replace('&amp;', '&')}").body.decode()
        assert ">Newest<" in page
    assert len(seen) == len(set(seen)) == 123
    assert seen[0] == "kept" and seen[-1] == "t0"


def test_search_and_filters(viewer):
    assert ids(viewer.get(LIST, q="(77,)").body.decode()) == ["t77"]
    failed = ids(viewer.get(LIST, state="FAILURE").body.decode())
    assert len(failed) == 13 and "t119" in failed
    both = viewer.get(LIST, state="FAILURE", name="app.task1", worker="w@h").body.decode()
    assert ids(both) == [f"t{number}" for number in (109, 89, 69, 49, 29, 9)]
    assert 'name="worker" value="w@h"' in both  # a search stays within the filters
    assert ids(viewer.get(LIST, since="1h", state="SUCCESS").body.decode())
    for wrong in ({"since": "long ago"}, {"state": "NO_SUCH"}, {"after": "x"}):
        answer = viewer.get(LIST, **wrong)
        assert answer.status == 400 and "errornote" in answer.body.decode(), wrong


def test_one_task(viewer):
    page = shown(viewer.get(address("t9")))
    for text in ("FAILED", "ValueError(9)", "Traceback of 9", "w@h", "RECEIVED", "app.task1"):
        assert text in page
    assert "odd" in shown(viewer.get(address(ODD)))
    unknown = viewer.get(address("none"))
    assert "doesn’t exist" in shown(unknown)


def test_no_text_of_a_task_is_run(viewer):
    for page in (viewer.get(LIST), viewer.get(address(SCRIPT))):
        text = page.body.decode()
        assert "<img src=x" not in text and "window.ran=1</script>" not in text
        assert SCRIPT in shown(page)


def test_who_may_see_and_who_may_act(server, viewer):
    assert "Log in" in shown(Visitor(server.url).get(LIST))
    nobody = Visitor(server.url, "nobody")
    assert nobody.get(LIST).status == nobody.get(address("t9")).status == 403
    assert 'name="action"' not in viewer.get(address("kept")).body.decode()
    mender = Visitor(server.url, "mender")
    assert mender.post(address("kept"), {"action": "revoke"}).status == 403
    for one in (viewer, nobody):
        assert one.post(address("kept"), {"action": "rerun"}).status == 403
    assert mender.post(address("kept"), {"action": "rerun"}, token=False).status == 403
    assert mender.post(address("kept"), {"action": "no such"}).status == 403
    for path in ("add/", "kept/delete/"):
        assert mender.get(f"{LIST}{path}").status == 403


def test_a_task_is_sent_again_and_the_admin_remembers_who_did_it(server):
    mender = Visitor(server.url, "mender")
    page = mender.get(address("kept")).body.decode()
    assert re.findall(r'name="action" value="(\w+)"', page) == ["rerun"]
    boss = Visitor(server.url, "boss")
    page = boss.get(address("kept")).body.decode()
    assert set(re.findall(r'name="action" value="(\w+)"', page)) == {"rerun", "revoke", "cancel"}
    told = shown(mender.post(address("kept"), {"action": "rerun"}))
    new_id = re.search(r"Sent again as (\S+)\.", told)
    assert new_id, told
    assert "1111" in shown(boss.get(address(new_id[1])))
    assert "Sent again as" in shown(boss.get(address("kept", "history")))
    assert "its message is not kept" in shown(mender.post(address("t9"), {"action": "rerun"}))
    assert "it cannot be stopped" in shown(boss.post(address("t9"), {"action": "revoke"}))
    assert "every worker was told" in shown(boss.post(address("kept"), {"action": "revoke"}))


def test_a_store_that_is_away_is_said(site):
    with tempfile.TemporaryDirectory() as empty:
        away = Site(Path(empty))
        away.environment |= {"APP_DATABASE": site.environment["APP_DATABASE"]}
        more = {**away.environment, "MORE_SETTINGS": f'{{"CYSTORE": {{"STORE": "{empty}/none"}}}}'}
        with WebServer(command=SERVER, **more) as server:
            answer = Visitor(server.url, "viewer").get(LIST)
    assert answer.status == 503 and f"{empty}/none" in shown(answer)


def test_there_is_no_table(site):
    """Seen with other unmanaged models: `dumpdata` asks each model's table."""
    assert '"model": "cystore.task"' not in site.manage("dumpdata", "cystore", "auth").stdout
    assert "No changes detected" in site.manage("makemigrations", "--check", "--dry-run").stdout


@pytest.mark.slow
@pytest.mark.may_skip("a browser is a large package")
@pytest.mark.skipif(browser.program() is None, reason="there is no chromium: apt-get install chromium")
def test_in_a_browser(server, tmp_path):
    with Browser(tmp_path / "profile") as page:
        page.call("Page.navigate", url=f"{server.url}{LIST}")
        page.wait_behind("document.querySelector('#id_username')")
        page.value("document.querySelector('#id_username').value = 'boss'")
        page.value(f"document.querySelector('#id_password').value = {PASSWORD!r}")
        page.value("document.querySelector('#login-form').requestSubmit()")
        page.wait_behind("document.querySelectorAll('#result_list tbody tr').length === 50")
        page.value("document.querySelector('#searchbar').value = '(77,)'")
        page.value("document.querySelector('#changelist-search').requestSubmit()")
        page.wait_behind("document.querySelectorAll('#result_list tbody tr').length === 1")
        page.value("document.querySelector('#result_list tbody a').click()")
        page.wait_behind("document.querySelectorAll('#events tbody tr').length === 4")
        page.call("Page.navigate", url=f"{server.url}{address(SCRIPT)}")
        page.wait_behind("document.querySelectorAll('#events tbody tr').length === 2")
        assert page.value("window.ran") is None
        faults = {}
        rules = Path(pytest.importorskip("axe_core_python").__file__).with_name("axe.min.js").read_text()
        for place in (LIST, address("t9")):
            page.call("Page.navigate", url=f"{server.url}{place}")
            page.wait_behind("document.querySelector('#content-main') && document.readyState === 'complete'")
            page.value(rules + "; 0")
            for one in page.value("axe.run('#content-main')")["violations"]:
                if one["impact"] in ("serious", "critical"):
                    faults[f"{one['id']} on {place}"] = [node["html"] for node in one["nodes"]]
        assert faults == {}
        assert [one for one in page.errors if "404" not in one] == []  # the project has no favicon
