"""The operating system: files, locks, ownership, threads. The only callers of open, fsync, rename and flock."""
