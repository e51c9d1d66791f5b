"""Parts for other frameworks.

May import `cystore.contrib.django.management` and what is below it: docs/architecture.md.
"""
