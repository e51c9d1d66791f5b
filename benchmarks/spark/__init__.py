"""Benchmarks of reads and jobs on Spark."""
