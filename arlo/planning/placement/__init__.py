"""Which worker gets which runtime, and the steps from one placement to the next."""
