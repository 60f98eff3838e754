"""Load tests: a client loop of its own, items that can be told apart, and an account of what became of each."""
