"""A pipeline in a process of its own, to be killed: `python -m tests.pipeline.jobs.driver SETTINGS.toml`."""

import sys
from pathlib import Path

from polybus.pipeline.jobs.run import run_continuously
from polybus.pipeline.session import SHORT_LIVED, build_session
from polybus.pipeline.settings import load_settings

if __name__ == "__main__":
    settings = load_settings(Path(sys.argv[1]))
    spark = build_session("polybus test driver", "local[2]", {**SHORT_LIVED, **settings.spark})
    run_continuously(spark, settings, lambda: True)
