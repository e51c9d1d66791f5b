"""Benchmarks of stores with many queues, messages, segments or processes."""
