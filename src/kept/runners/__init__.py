"""Runners of your own: what a tick does besides jobs, under a budget, once per interval in the whole cluster."""
