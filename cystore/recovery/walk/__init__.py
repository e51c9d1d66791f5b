"""One walk over the files with pread: for recovery, verify and scrub.

May import `cystore.derived.reading` and what is below it: docs/architecture.md.
"""
