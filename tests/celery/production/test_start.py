"""Goal: the first five minutes work as docs/start.md says. Method: its file and its commands, in one shell, in a folder
of the test."""

from __future__ import annotations

import subprocess
import sys

from tests.celery.conftest import PATIENCE_S, ROOT
from tests.structure.test_docs import blocks
from tools.processes import ends_with_us

PAGE = ROOT / "docs" / "start.md"


def test_the_page(tmp_path):
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("celery", "python"):
        words = f"{sys.executable} -m celery" if name == "celery" else sys.executable
        (programs / name).write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        (programs / name).chmod(0o755)
    found = blocks(PAGE.read_text().replace("/tmp/start", f"{tmp_path}/start"))
    (shop,) = (block.source for block in found if block.language == "python")
    first, *rest = (block.source for block in found if block.language == "sh")
    (tmp_path / "shop.py").write_text(shop)
    script = "\n".join((f"set -e; trap 'kill $! || true' EXIT; {first}", "cp ../shop.py .", *rest))
    done = subprocess.run(
        ends_with_us(["bash", "-c", script]),
        env={"PATH": f"{programs}:/usr/bin:/bin", "PYTHONPATH": f"{ROOT}:.", "HOME": str(tmp_path)},
        text=True, capture_output=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr  # `wait` without a job gives 0
    assert "order 17 is paid" in done.stdout and "order 18 is paid" in done.stdout
    assert "ValueError('declined')" in done.stdout
