"""Goal: what is generated is fresh, and what describes the kernels is true. Method: run the generators and stubtest."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import cystore
from tests.structure.sources import ROOT, files, module_of, name_of
from tools import api_page

KERNELS = files(".pyx", under="cystore/_native")


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, text=True, capture_output=True, timeout=300, check=False
    )


def test_what_layout_generates_is_fresh():
    done = _run("tools/layout_sources.py", "--check")
    assert done.returncode == 0, done.stderr


def test_a_stale_file_is_seen(tmp_path):
    """The check itself: a copy of the sources with one changed byte does not pass."""
    native = tmp_path / "cystore" / "_native"
    native.mkdir(parents=True)
    for name in ("cystore/layout", "tools"):
        shutil.copytree(ROOT / name, tmp_path / name)
    (native / "memory").mkdir()
    for name in (
        "layout.h",
        "layout.pxd",
        *(f"memory/control_fields{kind}" for kind in (".pyx", ".pxd", ".pyi")),
    ):
        (native / name).write_text((ROOT / "cystore/_native" / name).read_text())
    assert _run(str(tmp_path / "tools/layout_sources.py"), "--check").returncode == 0
    (native / "layout.h").write_text((native / "layout.h").read_text().replace("0", "1", 1))
    done = _run(str(tmp_path / "tools/layout_sources.py"), "--check")
    assert done.returncode == 1
    assert "layout.h is stale" in done.stderr


def test_the_page_on_the_library_has_the_names_of_today():
    """Its texts may be older than the docstrings: `python -m tools.api_page` writes them anew."""
    shown = re.findall(r"^##+ (.+)$", api_page.PAGE.read_text(), re.MULTILINE)
    assert shown == re.findall(r"^##+ (.+)$", api_page.page(), re.MULTILINE)


def test_the_page_on_the_library_has_every_public_name():
    page = (ROOT / "docs" / "api.md").read_text()
    errors = (ROOT / "docs" / "troubleshooting.md").read_text()
    assert not [name for name in cystore.__all__ if f"\n## {name}\n" not in page and f"\n### {name}\n" not in errors
                and f"### cystore.{name}\n" not in page]  # fmt: skip
    assert "### store.wait\n" in page and "`OFFSET_TOO_SMALL`" in page and "### store.groups.lags\n" in page


def test_every_kernel_has_a_stub():
    assert not [name_of(kernel) for kernel in KERNELS if not kernel.with_suffix(".pyi").exists()]


def test_stubs_match_the_built_modules():
    allowed = (
        "--allowlist",
        "tests/structure/stubtest.txt",
        "--ignore-unused-allowlist",
        "--ignore-disjoint-bases",
    )
    done = _run(
        "-m",
        "mypy.stubtest",
        "--mypy-config-file",
        "pyproject.toml",
        *(module_of(path) for path in KERNELS),
        *allowed,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_package_says_that_it_is_typed():
    assert (ROOT / "cystore" / "py.typed").exists()
