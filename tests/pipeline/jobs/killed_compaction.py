"""Kills itself in the middle of a merge: `python -m tests.pipeline.jobs.killed_compaction LAKE`."""

import os
import signal
import sys

from polybus.pipeline.files import Files
from polybus.pipeline.jobs.compaction import compact
from polybus.pipeline.lake import Lake
from polybus.pipeline.session import SHORT_LIVED, build_session


class KillingFiles(Files):
    """The third folder of those that were replaced is not deleted any more."""

    def delete(self, path: str) -> None:
        if path.endswith("batch=2"):
            os.kill(os.getpid(), signal.SIGKILL)
        super().delete(path)


if __name__ == "__main__":
    spark = build_session("polybus test", "local[1]", SHORT_LIVED)
    lake = Lake(spark, sys.argv[1])
    lake.files = KillingFiles(spark, sys.argv[1])
    with lake.turns.only_writer():
        compact(lake, fan_in=None)
