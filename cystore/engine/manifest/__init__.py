"""Durable facts that no other file has, one module for each section.

May import `cystore.engine.files` and what is below it: docs/architecture.md.
"""
