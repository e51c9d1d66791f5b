"""Goal: the page *Production* has every setting, with the default of the code. Method: the generator; a search for
names in the code."""

from __future__ import annotations

import ast
import dataclasses
import re

from cystore.celery.duties import app_settings
from cystore.config import _BOUNDS, AGES, StoreConfig
from tests.structure.sources import files
from tools import settings_table

# Names that begin alike and are no settings: properties and headers of messages, names of threads and variables.
NAME = re.compile(r'(?:conf\.get\(\s*|SETTING = |SETTING, \w+ = |HOME = |conf\.)"?(cystore_[a-z_]+)"?')

SPARK = re.compile(r'"(cystore_spark_[a-z]+)"')


def test_the_page_is_fresh():
    assert settings_table.main(["--check"]) == 0


def test_a_stale_page_is_seen(monkeypatch):
    monkeypatch.setitem(settings_table.STORE, "create", "something else")
    assert settings_table.main(["--check"]) == 1


def test_every_setting_of_the_app_is_in_the_table():
    code = "".join(path.read_text() for path in files(".py", under="cystore/celery"))
    found = set(NAME.findall(code))
    assert found == {name for name, *_ in settings_table.APP}
    assert found <= app_settings.NAMES
    spark = {name for name in app_settings.NAMES if name.startswith("cystore_spark_")}
    assert app_settings.NAMES - found == spark == set(SPARK.findall(code))


def test_the_table_says_what_0_and_never_mean():
    """Seen: 0 removes everything in one setting and means for ever in another. A 0 that is not in the table is
    refused."""
    for name, (low, _) in _BOUNDS.items():
        assert ("0: " in settings_table.STORE[name]) == (low == 0), name
        assert ("`never`: " in settings_table.STORE[name]) == (name in AGES), name


# Settings that no code reads as an attribute, and why they are no lie.
ELSEWHERE = {
    "message_delay_level": "`delay_levels_ms` of the configuration reads it",
    "store_path_commit_log": "`log_folders` of the configuration reads it",
    "read_only_commit_log_store_paths": "`log_folders` of the configuration reads it",
}


def read_names() -> set[str]:
    """Names of attributes that the package's modules and kernels read; the settings themselves are not counted."""
    code = [path for path in files(".py", under="cystore") if path.name != "config.py"]
    names = {
        node.attr
        for path in code
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
    }
    return names | set(
        re.findall(r"config\.(\w+)", "".join(path.read_text() for path in files(".pyx", under="cystore")))
    )


def test_every_setting_is_read():
    """Seen: flush_consume_queue_least_pages and bit_map_length_consume_queue_ext were accepted and ignored."""
    fields = {field.name for field in dataclasses.fields(StoreConfig)}
    assert fields - read_names() == set(ELSEWHERE)
