"""A simulated fleet of trucks (LB-05). What it sends follows from seed and time; only the sender has clocks."""
