"""What follows besides the log: offsets of consumer groups, removed queues, the retention policy.

May import `cystore.ha.link` and what is below it: docs/architecture.md. Source: SlaveSynchronize of RocketMQ 4.9.3,
whose slave asks its master's broker for four files every ten seconds.
"""
