"""`make docs`: the documents as a site in build/site, which needs no network, neither to be built nor to be read.

    python tools/docs_site.py [--out FOLDER]

MkDocs reads the pages from one folder, so they are copied, each to its place in the clone: links stay as they are. A
link that leads nowhere, also to a heading, ends the build.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / "mkdocs.yml"
PAGES, SITE = ROOT / "build" / "pages", ROOT / "build" / "site"
OF_THE_CLONE = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")
BESIDE_PAGES = {".md", ".yml", ".json", ".svg", ".png", ".js"}  # of docs, and what its pages link to


def pages() -> Iterator[Path]:
    """The files of the site, in the clone."""
    yield from (ROOT / name for name in OF_THE_CLONE)
    yield from sorted(path for path in (ROOT / "docs").rglob("*") if path.suffix in BESIDE_PAGES)
    yield from sorted((ROOT / "examples").rglob("README.md"))


def build(pages_folder: Path = PAGES, site: Path = SITE) -> int:
    """Copies the pages and builds the site; returns the exit code of MkDocs."""
    shutil.rmtree(pages_folder, ignore_errors=True)
    for path in pages():
        copy = pages_folder / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    with tempfile.NamedTemporaryFile("w", suffix=".yml", dir=ROOT) as settings:
        settings.write(f"INHERIT: {CONFIG}\ndocs_dir: {pages_folder}\nsite_dir: {site}\n")
        settings.flush()
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", settings.name]
        env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # news of the theme, at each build
        return subprocess.run(command, cwd=ROOT, env=env, check=False).returncode


def main() -> int:
    """Builds the site, and writes where it is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=SITE, help="the folder of the site (default: build/site)")
    args = parser.parse_args()
    if find_spec("material") is None:
        sys.stderr.write("the site needs MkDocs: pip install '.[docs]', or `make docs`\n")
        return 2
    code = build(site=args.out.resolve())
    if code == 0:
        print(args.out / "index.html")
    return code


if __name__ == "__main__":
    sys.exit(main())
