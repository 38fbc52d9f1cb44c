"""Where Kept meets other people's parts: logs, metrics, health probes."""
