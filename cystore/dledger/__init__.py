"""The commit log of a DLedger broker (RocketMQ 4.9.3 with `enableDLegerCommitLog`): found, read and verified.

Nothing here writes. Every length and place in the files is checked before it is used; damage is a `Bad` range, or an
error that names file and offset. May import `cystore.verify` and what is below it: docs/architecture.md.
"""
