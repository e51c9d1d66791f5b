"""The election of a master in etcd: a lease, a transaction on the revision, the in-sync set. The revision is the epoch.

May import `cystore.ha` and what is below it: docs/architecture.md. Source: DLedgerLeaderElector of DLedger and the
controller of RocketMQ 5, which have their own consensus. Here etcd decides; the log's bytes do not pass through etcd.
"""
