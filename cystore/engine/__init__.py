"""The engine: the log, and the parts that append to it, make it durable and make room in it. It never imports
`derived`.

May import `cystore.system.ranges` and what is below it: docs/architecture.md.
"""
