"""The election of a master in etcd: a lease, a transaction on the revision, the in-sync set. The revision is the epoch.

May import `cystore.ha` and what is below it: docs/architecture.md. Source: DLedgerLeaderElector of DLedger and the
controller of RocketMQ 5 do this with a consensus of their own; here etcd decides, and the bytes go their own way.
"""
