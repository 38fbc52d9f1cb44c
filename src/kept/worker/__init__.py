"""A process that does the work: ticks, the loop around them, the keeper of its lease, the supervisor of many."""
