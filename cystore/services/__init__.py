"""Work that goes on beside appends and reads: each service is a small class with ``run_once``; a thread or a task drives it."""
