"""The options of `format("polybus")`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from polybus.errors import UsageError
from polybus.pipeline.sources.options import OptionError, Options
from polybus.store.streams.rule import NAME_PATTERN
from polybus.store.streams.start import parse_time

KNOWN: Final = (
    "endingOffsets", "failOnDataLoss", "folder", "maxRowsPerBatch", "password", "passwordFile", "retryTimeout",
    "rowsPerTask", "startingOffsets", "stream", "url", "user",
)  # fmt: skip
TIMESTAMP: Final = "timestamp:"


@dataclass(frozen=True)
class PolybusOptions:
    stream: str
    url: str | None = None
    folder: Path | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    starting: str = "earliest"
    ending: str = "latest"
    max_rows: int | None = None
    rows_per_task: int = 500_000
    fails_on_loss: bool = True
    retry_timeout_s: float = 60.0

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> "PolybusOptions":
        """Raises OptionError."""
        options = Options("polybus", given, KNOWN)
        stream = options.required("stream", "fleet")
        if not re.fullmatch(NAME_PATTERN, stream):
            raise options.wrong("stream", stream, "the name of a stream, as its configuration has it")
        url, folder = options.text("url"), options.text("folder")
        if bool(url) == bool(folder):
            raise OptionError(
                "polybus: give one of the options url, such as http://127.0.0.1:8035, and folder, the broker's"
                " data folder where every executor sees it"
            )
        password = options.password()
        if folder and (options.text("user") or password):
            raise OptionError("polybus: a folder needs no user and password; leave them out")
        return cls(
            stream=stream,
            url=_checked_url(url) if url else None,
            folder=Path(folder).absolute() if folder else None,
            user=options.text("user"),
            password=password,
            starting=_checked_offsets(options, "startingOffsets", "earliest"),
            ending=_checked_offsets(options, "endingOffsets", "latest"),
            max_rows=options.integer("maxRowsPerBatch", 0, low=1) or None,
            rows_per_task=options.integer("rowsPerTask", 500_000, low=1),
            fails_on_loss=options.boolean("failOnDataLoss", True),
            retry_timeout_s=options.seconds("retryTimeout", 60.0),
        )


def _checked_url(url: str) -> str:
    wrong = OptionError(f"polybus: the option url is {url!r}; it must be like http://127.0.0.1:8035")
    try:
        parts = urlsplit(url)
        is_right = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        raise wrong from None
    if not is_right:
        raise wrong
    if parts.username is not None or parts.password is not None:
        # Spark shows a source's address in plans and logs.
        raise OptionError(
            "polybus: the option url holds a user name or password; use the options user and password"
        )
    if parts.query or parts.fragment:
        raise OptionError(f"polybus: the option url is {url!r}; it must end with the port or a path")
    return url.rstrip("/")


def _checked_offsets(options: Options, name: str, default: str) -> str:
    """What can be checked without the stream."""
    text = (options.text(name) or default).strip()
    if text.startswith(TIMESTAMP):
        try:
            parse_time(text.removeprefix(TIMESTAMP))
        except UsageError as error:
            raise OptionError(
                f"polybus: the option {name} is {text!r}; a time is written with its zone, like"
                f" {TIMESTAMP}2030-01-31T12:00:00Z"
            ) from error
    elif text not in ("earliest", "latest") and not text.startswith("{"):
        raise options.wrong(
            name, text, f'earliest, latest, {TIMESTAMP}2030-01-31T12:00:00Z or offsets such as {{"0": 120}}'
        )
    return text
