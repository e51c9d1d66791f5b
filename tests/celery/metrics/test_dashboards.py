"""Goal: the page, the dashboards and the alert rules name metrics that exist, and Prometheus takes the rules. Method:
the names of a store with tasks; promtool where it is installed (Debian: prometheus), else the form of each rule."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest
import yaml

import cystore
from cystore.celery.base import events
from cystore.celery.metrics.log_follower import LogFollower
from cystore.metrics.exporter import AWAY, Exporter
from cystore.metrics.open_stores import OpenStores
from tests.structure.sources import ROOT
from tests.support.celery.logs import event_message, write
from tools import settings_table

DOCS, CASES = ROOT / "docs", ROOT / "tests/celery/metrics/alert_cases.yml"
DASHBOARDS = ("grafana.json", "grafana-tasks.json")
NAME = re.compile(r"\bcystore_\w+")
ENDINGS = ("_bucket", "_sum", "_count")
STRING = re.compile(r'"(?:\\.|[^"\\])*"')
SELECTOR = re.compile(r"\{([^{}]*)\}")
LABEL = re.compile(r"\b(\w+)\s*(?:=~|!~|!=|=)")
GROUPING = re.compile(r"\b(?:by|on|without|ignoring)\s*\(([^()]*)\)")


@pytest.fixture(scope="module")
def labels(tmp_path_factory) -> dict[str, set[str]]:
    """Each metric with its labels."""
    with cystore.open(tmp_path_factory.mktemp("log") / "store") as store:
        write(store, [event_message(events.STARTED, "t", "app", worker="w@h")])
        store.duties.ran("clean_expired", store.duties.last("clean_expired"))
        found = Exporter(OpenStores(store, store.config), lambda: LogFollower(from_oldest=True)).found()
    return {metric.name: {name for labels, _ in metric.samples for name in labels} for metric in found}


def metric_of(name: str, known: dict[str, set[str]]) -> str:
    """The metric of a sample's name."""
    for ending in ENDINGS:
        if name not in known and name.endswith(ending):
            return name.removesuffix(ending)
    return name


def expressions() -> list[tuple[str, str]]:
    """Each expression, and where it stands."""
    found = []
    for dashboard in DASHBOARDS:
        for panel in json.loads((DOCS / dashboard).read_text())["panels"]:
            found += [(f"{dashboard}: {panel['title']}", target["expr"]) for target in panel["targets"]]
    return found + [(f"alerts.yml: {rule['alert']}", rule["expr"]) for rule in rules()]


def rules() -> list[dict[str, object]]:
    loaded = yaml.safe_load((DOCS / "alerts.yml").read_text())
    assert loaded.keys() == {"groups"}
    names = [group["name"] for group in loaded["groups"]]
    assert len(names) == len(set(names))
    return [rule for group in loaded["groups"] for rule in group["rules"]]


def test_the_page_has_every_metric(labels):
    settings = {name for name, *_ in settings_table.APP}
    found = set(NAME.findall((DOCS / "metrics.md").read_text()))
    assert found - (settings - set(labels)) == set(labels)
    assert AWAY in labels


@pytest.mark.parametrize(("place", "expression"), expressions(), ids=lambda text: text[:60])
def test_expressions_name_metrics(place, expression, labels):
    """And labels that these metrics have."""
    plain = STRING.sub('""', expression)
    found = {metric_of(name, labels) for name in NAME.findall(plain)}
    assert found and found <= set(labels), found - set(labels)
    known = {"le"}.union(*(labels[name] for name in found))
    groups = {word.strip() for words in GROUPING.findall(plain) for word in words.split(",")}
    given = {label for words in SELECTOR.findall(plain) for label in LABEL.findall(words)}
    # Labels that only stores with slaves, groups or topics have, are not in the samples of this one.
    assert groups | given <= known | {"duty"}, (groups | given) - known
    for opened, closed in ("()", "{}", "[]"):
        assert plain.count(opened) == plain.count(closed)


def test_dashboards_are_whole():
    for name in DASHBOARDS:
        dashboard = json.loads((DOCS / name).read_text())
        ids = [panel["id"] for panel in dashboard["panels"]]
        places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in dashboard["panels"]]
        assert len(ids) == len(set(ids)) == len(set(places)) >= 15, name
        assert "source" in {variable["name"] for variable in dashboard["templating"]["list"]}


def test_states_of_expressions_are_events():
    known = {*events.KINDS, "REQUEUED"}
    for place, expression in expressions():
        for states in re.findall(r'state=~?"([^"]*)"', expression):
            assert set(states.split("|")) <= known, place


def test_each_alert_says_what_it_is_about():
    wanted = ("NoWorker", "Backlog", "Failures", "Disk", "Damage", "DutyOverdue", "ReplicaBehind")
    found = {rule["alert"]: rule for rule in rules()}
    assert {f"Cystore{name}" for name in wanted} <= set(found) and len(found) == len(rules())
    for name, rule in found.items():
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}, name
        assert rule["labels"]["severity"] in ("page", "ticket"), name
        assert set(rule["annotations"]) == {"summary", "action"}, name
        assert re.fullmatch(r"\d+[smhd]", rule.get("for", "0s")), name


@pytest.mark.may_skip("promtool is in Debian's package prometheus, which starts a server")
@pytest.mark.skipif(not shutil.which("promtool"), reason="there is no promtool: apt-get install prometheus")
@pytest.mark.parametrize("words", [("check", "rules", DOCS / "alerts.yml"), ("test", "rules", CASES)])
def test_promtool_takes_the_rules(words):
    """And they fire where they should."""
    done = subprocess.run(["promtool", *words], text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
