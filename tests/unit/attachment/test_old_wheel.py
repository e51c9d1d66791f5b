"""Goal: a rolling upgrade from a real wheel of another layout. Method: this tree with another LAYOUT_VERSION, built
as a wheel and installed into a folder of its own; its processes are the old ones."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cystore import layout
from tests.support.process import Failed, Process
from tests.support.small_stores import open_small

pytestmark = pytest.mark.unsanitized  # processes of another layout, slow there

ROOT = Path(__file__).resolve().parents[3]
SOURCES = (
    "cystore",
    "celery_app",
    "tools",
    "setup.py",
    "pyproject.toml",
    "MANIFEST.in",
    "README.md",
    "LICENSE",
)
OLD = layout.LAYOUT_VERSION - 1
BUILD_S = 1800


def run(*command: str, cwd: Path) -> None:
    done = subprocess.run(
        [sys.executable, *command], cwd=cwd, capture_output=True, text=True, check=False, timeout=BUILD_S
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def old_release(tmp_path_factory):
    """The environment of processes that import the old release."""
    folder = tmp_path_factory.mktemp("old")
    tree, target = folder / "tree", folder / "site"
    tree.mkdir()
    built = shutil.ignore_patterns("*.so", "__pycache__", "*.c")
    for name in (*SOURCES, *(path.name for path in ROOT.glob("pyspark_cystore.py"))):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tree / name, ignore=built)
        else:
            shutil.copy(source, tree / name)
    constants = tree / "cystore" / "layout" / "version.py"
    now = f"LAYOUT_VERSION = {layout.LAYOUT_VERSION}\n"
    assert now in constants.read_text()
    constants.write_text(constants.read_text().replace(now, f"LAYOUT_VERSION = {OLD}\n"))
    run("tools/layout_sources.py", cwd=tree)
    run(
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(folder / "wheels"),
        ".",
        cwd=tree,
    )
    (wheel,) = (folder / "wheels").glob("*.whl")
    run("-m", "pip", "install", "-q", "--no-deps", "--target", str(target), str(wheel), cwd=folder)
    return {**os.environ, "PYTHONPATH": str(target), "PYTHONSAFEPATH": "1"}


@pytest.mark.slow
def test_a_fleet_goes_from_one_layout_to_another(tmp_path, old_release):
    """Readers of the new release first, beside old writers; then the handover; then new writers, beside which the
    readers go on."""
    path = tmp_path / "store"
    with Process(old_release) as old, Process() as reader, Process() as writer:
        where = old.do("import cystore.layout; cystore.layout.__file__, cystore.layout.LAYOUT_VERSION")
        assert where[1] == OLD and not where[0].startswith(str(ROOT))
        old.do("from tests.support.small_stores import open_small; store = open_small(path)", path=str(path))
        for process in (reader, writer):
            process.do(
                "from tests.support.small_stores import open_small; from cystore.layout import LAYOUT_VERSION"
            )
        assert reader.do("LAYOUT_VERSION") == layout.LAYOUT_VERSION
        old.do("for n in range(500): store.put('T', str(n).encode(), keys=(f'k{n % 50}',))")
        old.do("store.dispatch(max_bytes=20_000)")
        reader.do("store = open_small(path, read_only=True)", path=str(path))
        for n in range(500, 600):
            old.do("store.put('T', str(n).encode(), keys=(f'k{n % 50}',))", n=n)
            found = reader.do(f"[bytes(m.body).decode() for m in store.query('T', 'k{n % 50}')]")
            assert found == [str(m) for m in range(n, -1, -50)]
        assert reader.do("[m.queue_offset for m in store.scan()]") == list(range(600))
        with pytest.raises(Failed, match=f"attached is cystore {layout.RELEASE}, layout {OLD}"):
            writer.do("open_small(path)", path=str(path))

        command = [sys.executable, "-m", "cystore", "handover", str(path), "--wait"]
        asked = subprocess.run([*command, "0"], cwd=ROOT, capture_output=True, text=True, check=False)
        assert asked.returncode == 1 and str(old.pid) in asked.stdout and str(reader.pid) not in asked.stdout
        assert old.do("store.asked_to_leave()") is True
        old.do("store.close()")
        assert subprocess.run([*command, "5"], cwd=ROOT, check=False).returncode == 0
        writer.do("store = open_small(path); store.put('T', b'600')", path=str(path))
        assert reader.do("store.next_queue_offset('T', 0)") == 601
        with pytest.raises(Failed, match=r"in use by another version|another layout"):
            old.do("open_small(path)")
        old.do("reader = open_small(path, read_only=True)")
        assert old.do("[m.queue_offset for m in reader.scan()]") == list(range(601))
        writer.do("store.close()")
    with open_small(path) as store:
        assert len(list(store.scan())) == 601
