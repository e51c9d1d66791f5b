"""Recovery: scan, plan, apply. A process that is alone in a store runs it before the control block exists;
docs/recovery.md names every crash state and the branch for it.

May import `cystore.recovery.walk` and what is below it: docs/architecture.md.
"""
