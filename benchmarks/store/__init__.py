"""Benchmarks of one store in one or a few processes."""
