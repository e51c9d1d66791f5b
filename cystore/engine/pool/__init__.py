"""The pool of buffers that appends go to before their segments: made and shared, committed, found again after a crash.

May import `cystore.engine.manifest` and what is below it: docs/architecture.md.
"""
