"""The console command `cystore`: one small module for each command; see docs/commands.md.

May import `cystore.celery` and what is below it: docs/architecture.md.
"""

from cystore.cli.program import main

__all__ = ["main"]
