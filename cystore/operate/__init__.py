"""Shared by all commands and jobs: facts, progress, output, exit codes.

May import `cystore.operate.packs` and what is below it: docs/architecture.md.
"""
