"""The operating system: files, locks, ownership, threads. The only callers of open, fsync, rename and flock.

May import `cystore.system.threads` and what is below it: docs/architecture.md.
"""
