"""Prepares a release: everything but the commit, the tag and the upload.

    .venv/bin/python tools/release.py 1.2.3 [--python 3.11 ...] [--machine x86_64] [--check]

Writes the number into the package and the day into the changelog, and makes the files in dist. Their times are the
day of the changelog, so that everybody who builds the tagged commit gets the same bytes. Then it prints the commands
that are left. `--check` changes nothing: it says whether the number and the changelog are ready.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools import wheels  # noqa: E402

NUMBER = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:(a|b|rc)(\d+))?")
UNRELEASED = re.compile(r"^## \[Unreleased\]\n(.*?)(?=^## )", re.MULTILINE | re.DOTALL)
ENTRY = re.compile(r"^\* ", re.MULTILINE)


class ReleaseError(RuntimeError):
    """The release cannot be prepared; the text says what to do first."""


def order(number: str) -> tuple[int, ...]:
    """A key to sort by; a candidate comes before its release. Raises ReleaseError."""
    found = NUMBER.fullmatch(number)
    if found is None:
        raise ReleaseError(f"{number!r} is no version: write 1.2.3, or 1.2.3rc1 for a candidate")
    major, minor, patch, stage, count = found.groups()
    return int(major), int(minor), int(patch), ("a", "b", "rc", None).index(stage), int(count or 0)


def current(root: Path) -> str:
    found = re.search(r'^version = "(.+)"$', (root / "pyproject.toml").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def check(root: Path, number: str, tags: list[str]) -> None:
    """Raises ReleaseError if this number cannot be the next one, or nothing is written about it."""
    if f"v{number}" in tags:
        raise ReleaseError(f"the tag v{number} is there already: choose a later number")
    if order(number) < order(current(root)):
        raise ReleaseError(f"{number} is before {current(root)}, the number in pyproject.toml")
    found = UNRELEASED.search((root / "CHANGELOG.md").read_text())
    if found is None or not ENTRY.search(found[1]):
        raise ReleaseError("CHANGELOG.md has nothing under [Unreleased]: write what changed first")


def write(root: Path, number: str, day: str) -> None:
    """The number and the day, in the three files that have them."""
    project, version, log = (
        root / name for name in ("pyproject.toml", "cystore/layout/version.py", "CHANGELOG.md")
    )
    project.write_text(
        re.sub(r'^version = ".+"$', f'version = "{number}"', project.read_text(), count=1, flags=re.MULTILINE)
    )
    version.write_text(
        re.sub(r'^RELEASE = ".+"$', f'RELEASE = "{number}"', version.read_text(), count=1, flags=re.MULTILINE)
    )
    heading = f"## [Unreleased]\n\n## [{number}] - {day}\n"
    log.write_text(log.read_text().replace("## [Unreleased]\n", heading, 1))


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, text=True, capture_output=True, check=True).stdout


def prepare(number: str, arguments: list[str]) -> None:
    if changed := git("status", "--porcelain", "--untracked-files=no"):
        raise ReleaseError(f"commit or drop what is changed first:\n{changed}")
    write(ROOT, number, datetime.now(UTC).date().isoformat())
    # Headers that are generated from the number of the layout stand beside it.
    wheels.run(sys.executable, "tools/layout_sources.py")
    if wheels.main(["--twice", *arguments]):
        raise ReleaseError("the files could not be made; `git checkout .` takes the number back")
    print(
        f"release: {number} is in dist. Left to do:\n"
        f"  git commit -am 'Release {number}'\n"
        f"  git tag -a v{number} -m 'cystore {number}'\n"
        f"  git push --follow-tags\n"
        f"  python -m twine upload dist/cystore-{number}*.whl dist/cystore-{number}.tar.gz"
    )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Prepares a release: all but commit, tag and upload.")
    parser.add_argument("number", metavar="VERSION", help="1.2.3, or 1.2.3rc1 for a candidate")
    parser.add_argument("--check", action="store_true", help="only say whether it can be released")
    options, rest = parser.parse_known_args(arguments)
    try:
        check(ROOT, options.number, git("tag").split())
        if options.check:
            print(f"release: {options.number} can be released")
        else:
            prepare(options.number, rest)
    except (ReleaseError, wheels.WheelError) as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
