"""Polybus's durable streams as a Spark source, exactly once."""
