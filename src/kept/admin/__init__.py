"""What an operator sees and does: jobs, lanes, workers, and a doctor's judgement of the whole."""
