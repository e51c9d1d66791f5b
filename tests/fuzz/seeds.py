"""Writes the corpus in the repository from what targets call sound:  python -m tests.fuzz.seeds"""

from __future__ import annotations

import sys

from tests.fuzz.target import CORPUS
from tests.fuzz.targets import TARGETS


def main() -> int:
    for target in TARGETS.values():
        folder = CORPUS / target.name
        folder.mkdir(parents=True, exist_ok=True)
        for number, data in enumerate(target.seeds()):
            (folder / f"seed-{number}").write_bytes(data)
        print(f"{target.name}: {len(target.corpus())} inputs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
