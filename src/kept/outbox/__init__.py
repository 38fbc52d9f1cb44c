"""The outbox: events committed with the caller's data, a job for each who wants to know, sinks to brokers."""
