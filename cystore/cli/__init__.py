"""The console command `cystore`: one small module for each command; see docs/commands.md."""

from cystore.cli.program import main

__all__ = ["main"]
