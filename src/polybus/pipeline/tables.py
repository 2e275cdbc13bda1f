"""What there is to say of a table, and the words for it."""

from dataclasses import dataclass
from typing import Literal

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

TEXT, LONG, INT, DOUBLE, BOOL = StringType(), LongType(), IntegerType(), DoubleType(), BooleanType()
TIME, DAY, BYTES = TimestampType(), DateType(), BinaryType()

Layer = Literal["bronze", "silver", "gold"]
Job = Literal["messages", "events", "captures", "geofences", "days", "whole"]
"""`days`: recomputed a day at a time when something new of that day came; `whole`: all of it; the others append
batches."""


def columns(**types: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in types.items()])


@dataclass(frozen=True)
class Table:
    layer: Layer
    job: Job
    about: str
    schema: StructType
    reads: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    """The columns whose values are folders; they are the last ones."""
    view_of: str = ""
    """It is not stored, but seen in that one (`views`)."""

    @property
    def is_appended(self) -> bool:
        return self.job not in ("days", "whole") and not self.view_of
