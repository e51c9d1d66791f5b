"""Where Django looks for commands.

May import `cystore.contrib.django.management.commands` and what is below it: docs/architecture.md.
"""
