"""Settled jobs: the partitions they lie in, and what is purged when its time is over."""
