"""Goal: the page *Production* has every setting, with the default of the code. Method: the generator; a search for names in the code."""

from __future__ import annotations

import re

from tests.structure.sources import files
from tools import settings_table

# Names that begin alike and are no settings: properties and headers of messages, names of threads and variables.
NAME = re.compile(r'(?:conf\.get\(\s*|SETTING = |SETTING, \w+ = |HOME = |conf\.)"?(cystore_[a-z_]+)"?')


def test_the_page_is_fresh():
    assert settings_table.main(["--check"]) == 0


def test_a_stale_page_is_seen(monkeypatch):
    monkeypatch.setitem(settings_table.STORE, "create", "something else")
    assert settings_table.main(["--check"]) == 1


def test_every_setting_of_the_app_is_in_the_table():
    code = "".join(path.read_text() for path in files(".py", under="cystore/celery"))
    found = set(NAME.findall(code))
    assert found == {name for name, *_ in settings_table.APP}
