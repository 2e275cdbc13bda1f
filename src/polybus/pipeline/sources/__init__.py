"""Spark data sources: `spark.read.format(…)` and `spark.readStream.format(…)`."""
