"""How a Spark session comes to be: in this process by default, on a cluster if a master is named.

Everything that has to be right before the Java side starts is here: a Java that Spark can use, the same
Python for executors, a small heap, no web page, and a log that is silent unless something is wrong.
"""

import atexit
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from polybus.errors import PolybusError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL: Final = "local[*]"
JAVA: Final = 17
"""The oldest that Spark 4 runs on."""

SETTINGS: Final[Mapping[str, str]] = {
    "spark.driver.memory": "1g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Ten thousand tachograph files would be a gigabyte.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(32 << 20),
    # transformWithState keeps its state nowhere else.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # A day of the gold tables is replaced without touching the others.
    "spark.sql.sources.partitionOverwriteMode": "dynamic",
    "spark.sql.streaming.stopTimeout": "20s",
}
LOCAL_SETTINGS: Final[Mapping[str, str]] = {
    # Loopback only: nobody else has business with a session in this process.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}

SHORT_LIVED: Final[Mapping[str, str]] = {
    # A session that ends before Java's better compiler has paid off: half the work without it.
    "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


class SparkUnavailable(PolybusError):
    """Spark cannot run here; the text says what is missing and how to get it."""


def build_session(
    name: str, master: str = LOCAL, settings: Mapping[str, str] | None = None, log_file: Path | None = None
) -> "SparkSession":
    """The session of this process. `settings` win over ours. What Java and the Python processes that it starts
    print goes to `log_file`, if there is one. Raises `SparkUnavailable`."""
    check_spark()
    from pyspark.sql import SparkSession

    # Executors must run the interpreter that has this package; on a cluster the operator says which.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    # pyspark logs every error that it raises, with Java's stack, for tools that collect such lines.
    logging.getLogger("SQLQueryContextLogger").disabled = True
    log = Path(__file__).with_name("log4j2.properties")
    is_local = master.startswith("local")
    if is_local and "SPARK_HOME" not in os.environ:
        os.environ["SPARK_HOME"] = _light_home()
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in {
        **SETTINGS,
        **(LOCAL_SETTINGS if is_local else {}),
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={log.as_uri()}",
        **(settings or {}),
    }.items():
        builder = builder.config(key, value)
    with _printing_to(log_file):
        spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel(
        "ERROR"
    )  # Spark takes a Python program for a shell, and a shell to be curious
    return spark


def _light_home() -> str:
    """Spark's folder without its copy of pyspark. Spark would put that copy, a zip file, before the installed
    one, and every Python process would spend seconds on unpacking it."""
    import pyspark

    home = Path(tempfile.mkdtemp(prefix="polybus-spark-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    for part in ("bin", "sbin", "jars", "data"):
        (home / part).symlink_to(Path(pyspark.__file__).parent / part)
    return str(home)


@contextmanager
def _printing_to(file: Path | None) -> Iterator[None]:
    """Processes that start meanwhile have `file` as their standard output and error."""
    if file is None:
        yield
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(1), os.dup(2)]
    target = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.dup2(target, 1)
        os.dup2(target, 2)
        yield
    except Exception as error:
        raise SparkUnavailable(f"Spark does not start ({error}); {file} says more") from error
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, descriptor in enumerate(kept, 1):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.close(target)


def check_spark() -> None:
    """Raises `SparkUnavailable` if pyspark or Java is missing, or Java is too old."""
    missing = [name for name in ("pyspark", "pyarrow", "pandas") if find_spec(name) is None]
    if missing:
        raise SparkUnavailable(
            f"the pipeline needs {', '.join(missing)}: install the extra, pip install 'polybus[spark]'"
        )
    java = find_java(os.environ)
    if java is None:
        raise SparkUnavailable(
            f"Spark needs Java {JAVA} or newer and there is none: install one (Debian: "
            "openjdk-17-jre-headless), put it on PATH or name its folder in JAVA_HOME"
        )
    version = java_version(java)
    if version < JAVA:
        raise SparkUnavailable(
            f"Spark needs Java {JAVA} or newer, and {java} is Java {version}: "
            "name another one's folder in JAVA_HOME"
        )


def find_java(environment: Mapping[str, str]) -> Path | None:
    """As Spark's own scripts look for it."""
    home = environment.get("JAVA_HOME")
    if home:
        path = Path(home) / "bin" / "java"
        return path if os.access(path, os.X_OK) else None
    found = shutil.which("java", path=environment.get("PATH"))
    return Path(found) if found else None


def java_version(java: Path) -> int:
    """17 for `openjdk version "17.0.15"`, 8 for `"1.8.0_402"`."""
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=True).stderr
    except (OSError, subprocess.SubprocessError) as error:
        raise SparkUnavailable(
            f"{java} does not run ({error}): name another Java's folder in JAVA_HOME"
        ) from error
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    if found is None:
        raise SparkUnavailable(f"{java} does not tell its version but {said[:100]!r}: is it a Java?")
    return int(found[1])
