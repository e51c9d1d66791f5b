"""The layout of the lifecycle log, as far as reports need it. It is that of `cystore.celery.base.events`: that module
imports Celery, which Spark's executors may lack. A test compares both.
"""

from __future__ import annotations

TOPIC = "celery_events"
SENT, RECEIVED, REDELIVERED, STARTED = "SENT", "RECEIVED", "REDELIVERED", "STARTED"
SUCCEEDED, RETRIED, REVOKED, IGNORED = "SUCCEEDED", "RETRIED", "REVOKED", "IGNORED"
SKIPPED, CANCELLED = "SKIPPED", "CANCELLED"
FAILURES = ("FAILED", "TIMED_OUT", "CHILD_LOST", "REJECTED", "UNKNOWN")
ENDS_OF_CODE = (SUCCEEDED, "FAILED", "TIMED_OUT", "CHILD_LOST", IGNORED, "REJECTED")
UNCOUNTED = (REVOKED, IGNORED, SKIPPED, CANCELLED)  # ends in neither success nor failure
ROOT = "root:"
