"""One Spark session for all tests of the pipeline: starting one takes longer than most of them."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    from polybus.pipeline.session import SHORT_LIVED, build_session

    settings = {
        **SHORT_LIVED,
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.memory": "768m",
        "spark.default.parallelism": "2",
    }
    session = build_session("polybus tests", "local[2]", settings)
    yield session
    session.stop()
