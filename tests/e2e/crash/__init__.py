"""What survives `kill -9` (OP-01): real clients with books of their own, and a broker that dies and dies again.

``python -m tests.e2e.crash --help``. The broker's word counts for nothing here: what a client was told is in
its book, and at the end the books are compared.
"""
