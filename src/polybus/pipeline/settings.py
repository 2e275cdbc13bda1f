"""What a pipeline is told: where its tables are, where messages and events come from. TOML, with defaults.

folder = "data/pipeline"

[messages]
format = "polybus"
options = { url = "http://127.0.0.1:8080", stream = "fleet" }

[events]
path = "data/events.jsonl*"

[captures]
path = "captures"
runs = "runs.jsonl"

[fleet]
map = "map.geojson"
cap_bytes = 10_000_000
"""

import os
import tomllib
from pathlib import Path
from typing import Annotated, Final

import msgspec

from polybus.errors import ConfigError
from polybus.pipeline.folders import FAN_IN

Positive = Annotated[float, msgspec.Meta(gt=0)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]
Size = Annotated[int, msgspec.Meta(ge=1)]
DEFAULT_FOLDER = "data/pipeline"
TYPES: Final = {
    "Vehicle data": "fleet/+/vehicle",
    "Position data": "fleet/+/position",
    "Tachograph data": "fleet/+/tachograph",
    "Software updates": "fleet/+/update",
}
"""Those of `polybus fleet`."""


class Messages(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where messages come from: any source Spark knows. Files need the columns of the table `messages`."""

    format: str = "polybus"
    options: dict[str, str | int | float | bool] = {}


class Events(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    path: str
    """The broker's `server.event_file`; with `*` behind it, what was rotated away is found too."""
    max_bytes_per_batch: Size = 256 << 20


class Captures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Files of tcpdump and others: packets, protocol frames, what protocols cost."""

    path: str
    """A folder, a file or a pattern."""
    runs: str | None = None
    """JSON lines: what was tried, for the overhead (`runs.Run`)."""
    ports: dict[str, str] = {}
    """Which protocol a server's port speaks, where that cannot be seen; `1884 = "mqtt-sn"`."""
    types: dict[str, str] = msgspec.field(default_factory=TYPES.copy)
    """Types of traffic and the topics that belong to them; the first that matches counts."""
    settle_s: NotNegative = 5.0
    """How long nobody must have written to a file before it is taken."""
    max_bytes_per_batch: Size = 256 << 20

    def protocols(self) -> dict[int, str]:
        """`ports` by number. Raises `ConfigError`."""
        for port in self.ports:
            if not (port.isascii() and port.isdecimal() and 1 <= int(port) <= 65_535):
                raise ConfigError(f'captures.ports: {port!r} is no port; write 1884 = "mqtt-sn"')
        return {int(port): protocol for port, protocol in self.ports.items()}


class Fleet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    map: str | None = None
    """GeoJSON with geofences; `polybus fleet --map` makes one."""
    cap_bytes: Size = 10_000_000
    """A truck's, a day."""
    late_after_s: NotNegative = 3 * 3600.0
    """How much older than the newest record of earlier batches one may be before it is late."""
    settle_s: NotNegative = 900.0
    """How long positions are held back for geofences, in the truck's time."""
    max_payload_bytes: Size = 1 << 20
    max_clock_error_s: Positive = 366 * 86_400.0


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    folder: str = DEFAULT_FOLDER
    """Tables, books and checkpoints. On a cluster, a place that every worker sees."""
    messages: Messages | None = None
    events: Events | None = None
    captures: Captures | None = None
    fleet: Fleet = Fleet()
    trigger_s: Positive = 5.0
    """Between two batches, with --continuous."""
    refresh_s: Positive = 30.0
    """Between two times that the tables by day are made anew, with --continuous."""
    merge_batches: Annotated[int, msgspec.Meta(ge=0)] = FAN_IN
    """So many folders of about a size become one; 0: never."""
    spark: dict[str, str] = {}
    """Settings of Spark's own."""


def load_settings(file: Path | None) -> Settings:
    """Paths in the file are relative to it. Raises `ConfigError` that names file, key and remedy."""
    if file is None:
        return Settings()
    try:
        text = file.read_text()
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror or error}") from error
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file}: is not TOML: {error}") from error
    try:
        settings = msgspec.convert(document, Settings)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{file}: {_plain(str(error))}") from error
    return _beside(settings, file.resolve().parent)


def _plain(text: str) -> str:
    said, _, key = text.partition(" - at `$")
    return f"{key.strip('.`') or 'top level'}: {said}"


def _beside(settings: Settings, folder: Path) -> Settings:
    def place(path: str) -> str:
        return path if "://" in path else os.path.normpath(folder / path)

    replace = msgspec.structs.replace
    settings = replace(settings, folder=place(settings.folder))
    if settings.events is not None:
        settings = replace(settings, events=replace(settings.events, path=place(settings.events.path)))
    if settings.captures is not None:
        captures = settings.captures
        runs = captures.runs and place(captures.runs)
        settings = replace(settings, captures=replace(captures, path=place(captures.path), runs=runs))
    if settings.fleet.map is not None:
        settings = replace(settings, fleet=replace(settings.fleet, map=place(settings.fleet.map)))
    if settings.messages is not None and "path" in settings.messages.options:
        options = {**settings.messages.options, "path": place(str(settings.messages.options["path"]))}
        settings = replace(settings, messages=replace(settings.messages, options=options))
    return settings
