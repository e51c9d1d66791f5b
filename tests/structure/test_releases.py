"""Goal: a release has one number everywhere, says what changed, and has the same bytes whoever makes it. Method: the
tools that make one, on copies of the few files that they change; the source archive made twice. The wheels themselves
are made and used by `make wheels`, which takes long."""

from __future__ import annotations

import hashlib
import json
import re
import shutil

import pytest

from cystore import layout
from tests.structure.sources import ROOT
from tools import release, wheels

CHANGED = ("pyproject.toml", "cystore/layout/version.py", "CHANGELOG.md")
WHEN = "1700000000"
README_LINES_MAX = 120


@pytest.fixture
def root(tmp_path):
    for name in CHANGED:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_every_place_has_the_same_number():
    assert release.current(ROOT) == layout.RELEASE
    row = re.search(
        rf"^\| {re.escape(layout.RELEASE)} \|.*\| (\d+) \|", (ROOT / "docs/releases.md").read_text(), re.M
    )
    assert row is not None and int(row[1]) == layout.LAYOUT_VERSION


def test_versions_are_ordered_and_others_refused():
    numbers = ["0.1.0rc2", "0.1.0", "0.2.0a1", "0.2.0b1", "0.2.0rc1", "0.2.0", "0.10.0", "1.0.0"]
    assert sorted(numbers, key=release.order) == numbers
    for wrong in ("1.2", "v1.2.3", "1.2.3-4", ""):
        with pytest.raises(release.ReleaseError, match="is no version"):
            release.order(wrong)


def test_a_release_has_a_new_number_and_something_to_say(root):
    release.check(root, "9.0.0", ["v8.0.0"])
    with pytest.raises(release.ReleaseError, match=r"the tag v9\.0\.0 is there already"):
        release.check(root, "9.0.0", ["v9.0.0"])
    with pytest.raises(release.ReleaseError, match=r"0\.0\.1 is before"):
        release.check(root, "0.0.1", [])
    release.write(root, "9.0.0", "2026-12-01")
    with pytest.raises(release.ReleaseError, match=r"nothing under \[Unreleased\]"):
        release.check(root, "9.0.1", [])


def test_a_release_changes_the_number_and_the_changelog_alone(root):
    release.write(root, "9.8.7", "2026-12-01")
    for name in CHANGED[:2]:
        before, after = (path.joinpath(name).read_text() for path in (ROOT, root))
        assert after == before.replace(f'"{layout.RELEASE}"', '"9.8.7"', 1)
    before, after = (path.joinpath("CHANGELOG.md").read_text() for path in (ROOT, root))
    assert after == before.replace("## [Unreleased]\n", "## [Unreleased]\n\n## [9.8.7] - 2026-12-01\n", 1)


def test_the_source_archive_has_the_same_bytes_each_time(tmp_path):
    digests = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        digests.append(wheels.digest(wheels.source_archive(tmp_path / name, WHEN)))
    assert digests[0] == digests[1]


def test_the_bill_of_materials_names_files_and_what_is_inside(tmp_path, monkeypatch):
    monkeypatch.setattr(wheels.metadata, "version", lambda package: "1.0")  # not all are in every environment
    (made := tmp_path / "a.whl").write_bytes(b"wheel")
    bill = json.loads(wheels.bill(tmp_path, [made], WHEN).read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert bill["metadata"]["timestamp"] == "2023-11-14T22:13:20+00:00"
    found = {component["name"]: component for component in bill["components"]}
    assert {"crc32c", "Cython", "zlib", "a.whl"} <= set(found)
    assert found["a.whl"]["hashes"] == [{"alg": "SHA-256", "content": hashlib.sha256(b"wheel").hexdigest()}]
    known = {component["bom-ref"] for component in bill["components"]}
    assert {name for link in bill["dependencies"] for name in link["dependsOn"]} <= known
    again = json.loads(wheels.bill(tmp_path, [made], WHEN).read_text())
    assert again == bill


def test_the_first_page_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= README_LINES_MAX
