"""The kernel: one row, claimed under a lease, attempted, settled."""
