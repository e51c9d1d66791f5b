"""Epochs: which part of a log each elected master wrote, where two logs part, and who is in sync.

May import `cystore.ha.link` and what is below it: docs/architecture.md. Source: EpochFileCache and AutoSwitchHAService
of RocketMQ 5, the leader epoch checkpoint of Kafka (KIP-101).
"""
