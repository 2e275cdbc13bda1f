"""Side-by-side benchmarks: Polybus and its peers, measured in one run on one machine."""
