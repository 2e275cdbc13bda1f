"""Takes captures in, and kills itself: `python -m tests.pipeline.jobs.killed_captures SETTINGS.toml END`.

The moment is the one before a file or folder whose path ends so gets its name: all of it is written then.
"""

import os
import signal
import sys
from pathlib import Path

from polybus.pipeline import lake
from polybus.pipeline.files import Files
from polybus.pipeline.jobs.run import run_once
from polybus.pipeline.session import SHORT_LIVED, build_session
from polybus.pipeline.settings import load_settings


class KillingFiles(Files):
    def move(self, source: str, target: str) -> None:
        if target.endswith(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
        super().move(source, target)


if __name__ == "__main__":
    settings = load_settings(Path(sys.argv[1]))
    spark = build_session("polybus test", "local[1]", {**SHORT_LIVED, **settings.spark})
    lake.Files = KillingFiles  # type: ignore[misc]
    run_once(spark, settings)
