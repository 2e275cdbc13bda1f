"""From the bus and the wire to tables, on Spark (PL-01).

`sources` are what `spark.read.format(...)` reads, `transforms` are functions from DataFrame to DataFrame,
`jobs` only wire them. pyspark is imported nowhere else in the package.
"""
