"""The engine: the log and what it needs to be appended to, made durable and given room. It never imports `derived`."""
