"""Goal: the site has every page, and needs no network, neither to be built nor to be read or searched. Method: compare
its navigation with the files; build it, and look for what it would load; search in a page that a browser opened as a
file."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.structure.sources import name_of
from tools import browser, docs_site
from tools.browser import Browser

yaml = pytest.importorskip("yaml")

needs_mkdocs = [
    pytest.mark.slow,
    pytest.mark.may_skip("MkDocs is large, and `make docs` ends for the same faults"),
    pytest.mark.skipif(
        importlib.util.find_spec("material") is None, reason="MkDocs is not installed: make docs"
    ),
]


def _in_nav(part: object) -> Iterator[str]:
    if isinstance(part, str):
        yield part
    elif isinstance(part, list):
        for one in part:
            yield from _in_nav(one)
    elif isinstance(part, dict):
        for one in part.values():
            yield from _in_nav(one)


def test_every_page_has_its_place():
    listed = list(_in_nav(yaml.safe_load(docs_site.CONFIG.read_text())["nav"]))
    pages = {name_of(path) for path in docs_site.pages() if path.suffix == ".md"}
    assert len(listed) == len(set(listed)) and set(listed) == pages


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    assert docs_site.build(folder / "pages", folder / "site") == 0
    return folder / "site"


class TestBuilt:
    pytestmark = needs_mkdocs

    def test_nothing_is_loaded_from_another_host(self, site):
        loads = re.compile(
            r"<(?:script|img|iframe)[^>]*\bsrc=[\"']?https?:|<link[^>]*rel=[\"']?stylesheet[^>]*https?:"
        )
        pages = list(site.rglob("*.html"))
        assert len(pages) > 40
        assert not [page.name for page in pages if loads.search(page.read_text())]

    @pytest.mark.skipif(browser.program() is None, reason="there is no chromium: apt-get install chromium")
    def test_the_search_works_in_a_file(self, site, tmp_path):
        with Browser(tmp_path) as page:
            page.call("Page.navigate", url=(site / "docs" / "celery.html").as_uri())
            page.wait_behind(
                "document.readyState === 'complete' && document.querySelector('.md-search__input')"
            )
            page.value("document.querySelector('#__search').click()")
            page.value(
                "(field => { field.focus(); field.value = 'quarantine';"
                " for (const kind of ['input', 'keyup']) field.dispatchEvent(new Event(kind, {bubbles: true})) })"
                "(document.querySelector('.md-search__input'))"
            )
            page.wait_behind("document.querySelectorAll('.md-search-result__item').length > 2")
            links = page.value(
                "[...document.querySelectorAll('.md-search-result__item a')].map(one => one.href)"
            )
            assert any("docs/recovery.html" in link or "docs/commands.html" in link for link in links)
            assert page.errors == []
