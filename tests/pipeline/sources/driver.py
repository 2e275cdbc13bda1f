"""A Spark driver with a query for each source, to be run as a process of its own and killed.

python -m tests.pipeline.sources.driver '{"master": …, "queries": [{"format": …, "options": …, "path": …}]}'
"""

import json
import os
import sys

from pyspark.sql import SparkSession


def main() -> None:
    asked = json.loads(sys.argv[1])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master(asked["master"])
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "700m")
        .config("spark.executor.memory", "500m")
        .config("spark.driver.host", "127.0.0.1")
        # These JVMs do not live long enough for the better compiler to pay.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
        .config("spark.executor.extraJavaOptions", "-XX:TieredStopAtLevel=1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    for query in asked["queries"]:
        rows = spark.readStream.format(query["format"]).options(**query["options"]).load()
        (
            rows.writeStream.format("parquet")
            .option("checkpointLocation", f"{query['path']}/checkpoint")
            .option("path", f"{query['path']}/table")
            .trigger(processingTime="500 milliseconds")
            .start()
        )
    print("started", flush=True)
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main()
