"""A store in one file: its pieces, written and read (`cystore snapshot --pack` and `--unpack`).

May import `cystore.columns` and what is below it: docs/architecture.md.
"""
