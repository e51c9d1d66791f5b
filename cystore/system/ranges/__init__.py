"""Parts of files: read, written, copied, grown, cut, and those that a disk does not give back.

May import `cystore.system` and what is below it: docs/architecture.md.
"""
