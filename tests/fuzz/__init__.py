"""A mutation fuzzer for the real session code: ``python -m tests.fuzz [--count N] [--seed S]``."""
