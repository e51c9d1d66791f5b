"""Verifies records, queues and index against the log; changes nothing.

May import `cystore.recovery` and what is below it: docs/architecture.md.
"""

from cystore.verify.verifier import Bounds, verify

__all__ = ["Bounds", "verify"]
