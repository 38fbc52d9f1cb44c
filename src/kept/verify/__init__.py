"""`kept verify`: producers, workers and faults on a real server, judged from outside the database."""
