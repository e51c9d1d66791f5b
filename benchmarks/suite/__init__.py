"""The suite of `python -m benchmarks`: its cases, the runner, the report and the check."""
