"""Brokers in a network (TB-15), as far as that needs no socket: who there is, what each wants, what waits."""
