"""Where trucks are and how far they came."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def truck_days(position: DataFrame) -> DataFrame:
    """A row a truck and day: its last fix, and what it drove by its odometer."""
    last = ("lat", "lon", "heading_deg", "speed_kmh", "road")
    return position.groupBy(F.to_date("at").alias("day"), "truck").agg(
        F.count("*").alias("positions"),
        F.min("at").alias("first"),
        F.max("at").alias("last"),
        *[F.max_by(name, F.struct("at", "offset")).alias(name) for name in last],
        (F.max("odometer_km") - F.min("odometer_km")).alias("driven_km"),
        F.max("speed_kmh").alias("top_speed_kmh"),
    )
