"""What `spark.read.format(...)` can read, one package a format (PL-02)."""
