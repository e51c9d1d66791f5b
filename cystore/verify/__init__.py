"""Verifies records, queues and index against the log; changes nothing.

May import `cystore.recovery` and what is below it: docs/architecture.md.
"""

from cystore.verify.bounds import Bounds
from cystore.verify.verifier import verify

__all__ = ["Bounds", "verify"]
