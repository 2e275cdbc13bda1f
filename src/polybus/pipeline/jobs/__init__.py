"""What runs: sources wired to transforms wired to tables."""
