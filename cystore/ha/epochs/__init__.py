"""Epochs: the part of a log that each elected master wrote, the point where two logs differ, and the in-sync set.

May import `cystore.ha.facts` and what is below it: docs/architecture.md. Source: EpochFileCache and AutoSwitchHAService
of RocketMQ 5, the leader epoch checkpoint of Kafka (KIP-101).
"""
