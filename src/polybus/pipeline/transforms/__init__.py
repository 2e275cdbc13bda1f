"""Functions from DataFrame to DataFrame, and the pure code they run on executors."""
