"""PySpark: sources, schemas, transforms (pure) and jobs (wiring). Needs the extra `polybus[spark]`."""
