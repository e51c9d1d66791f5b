"""Jobs over whole stores: `python -m cystore.spark JOB`, or a function that takes a session. One module each.

May import `cystore.spark.report` and what is below it: docs/architecture.md.
"""
