"""What follows from the log: consume queues, index, dispatch, and reading through them. May lag, be damaged or be deleted."""
