"""Files and folders wherever Spark can reach them (local, HDFS, …), through Hadoop's own file systems.

What is written appears whole or not at all: it is written under a name that nothing reads, and renamed.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from polybus.errors import PolybusError

LOCAL: Final = "file:"


class Files:
    """Runs on the driver. Paths are those Spark takes, relative ones to its working folder."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        jvm: Any = spark._jvm
        self._path = jvm.org.apache.hadoop.fs.Path
        path = self._path(root)
        configuration = spark._jsparkSession.sessionState().newHadoopConf()
        self._fs: Any = path.getFileSystem(configuration)
        self.root: str = self._fs.makeQualified(path).toString()

    def at(self, *parts: str) -> str:
        return "/".join((self.root, *parts))

    def exists(self, path: str) -> bool:
        return bool(self._fs.exists(self._path(path)))

    def names(self, path: str) -> list[str]:
        """In the folder, sorted; none if there is no folder."""
        if not self.exists(path):
            return []
        if path.startswith(LOCAL):  # without three calls to Java for each
            return sorted(os.listdir(path.removeprefix(LOCAL)))
        return sorted(status.getPath().getName() for status in self._fs.listStatus(self._path(path)))

    def files_below(self, path: str) -> list[str]:
        """Their whole paths, without those that Spark does not read."""
        found = []
        if self.exists(path):
            each = self._fs.listFiles(self._path(path), True)
            while each.hasNext():
                file = each.next().getPath()
                if not file.getName().startswith((".", "_")):
                    found.append(file.toString())
        return sorted(found)

    def size_bytes(self, path: str) -> int:
        return int(self._fs.getContentSummary(self._path(path)).getLength())

    def modified_ms(self, path: str) -> int:
        return int(self._fs.getFileStatus(self._path(path)).getModificationTime())

    def set_modified(self, path: str, time_ms: int) -> None:
        self._fs.setTimes(self._path(path), time_ms, -1)

    def make_folder(self, path: str) -> None:
        self._fs.mkdirs(self._path(path))

    def move(self, source: str, target: str) -> None:
        """`target` must not exist: Hadoop would move into it."""
        if self.exists(target) or not self._fs.rename(self._path(source), self._path(target)):
            raise PolybusError(f"cannot move {source} to {target}: is another pipeline writing here?")

    def delete(self, path: str) -> None:
        self._fs.delete(self._path(path), True)

    def read_text(self, path: str) -> str:
        stream = self._fs.open(self._path(path))
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def write_text(self, path: str, text: str) -> None:
        """A file that exists is replaced."""
        folder, _, name = path.rpartition("/")
        self.make_folder(folder)
        writing = f"{folder}/.writing-{name}"
        stream = self._fs.create(self._path(writing), True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
        if self.exists(path):
            self.delete(path)
        self.move(writing, path)

    def local_root(self) -> Path | None:
        """None: it is on no file system of this machine."""
        return Path(self.root.removeprefix(LOCAL)) if self.root.startswith(LOCAL) else None

    def leftovers(self, path: str) -> Iterator[str]:
        """What an earlier life was writing when it ended."""
        for name in self.names(path):
            if name.startswith(".writing-") and not name.endswith(".crc"):
                yield f"{path}/{name}"
