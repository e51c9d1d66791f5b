"""The numbers of this layout and of this release."""

from __future__ import annotations

LAYOUT_VERSION = 9
RELEASE = "0.1.0"
