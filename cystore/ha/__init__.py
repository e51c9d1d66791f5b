"""Replication: a master ships the bytes of its log, slaves append them at the same offsets.

May import `cystore.ha.epochs` and what is below it: docs/architecture.md. Source: HAService, HAConnection and HAClient
of RocketMQ 4.9.3, with the same protocol; link/wire.py adds the words that two cystore peers exchange.
"""
