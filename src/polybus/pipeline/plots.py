"""Pictures of gold tables, as PNG files. Functions `draw_…` draw rows; `draw_all` collects them."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib

matplotlib.use("Agg")  # files, no window

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pyspark.sql import functions as F

from polybus.pipeline.geography import Map
from polybus.pipeline.lake import Lake
from polybus.pipeline.times import in_utc

BLUE, ORANGE, GREY, RED, GREEN = "#2f6db3", "#e58a2b", "#b8bec6", "#c43d3d", "#3b8f5a"
MAX_POINTS: Final = 60_000
MAX_TRUCKS: Final = 40
MB: Final = 1e6


def draw_all(lake: Lake, map: Map, folder: Path) -> list[Path]:
    """Those of which there are rows. Runs on the driver: gold is small, and positions are thinned out."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name, draw in _PICTURES.items():
        figure = Figure(figsize=(9, 5.2), layout="constrained")
        axes = figure.add_subplot()
        if draw(lake, map, axes):
            file = folder / f"{name}.png"
            figure.savefig(file, dpi=110)
            files.append(file)
    return files


def draw_traffic(axes: Axes, rows: Sequence[Any]) -> None:
    """A bar a type, on a scale of powers of ten: files and positions are far apart."""
    kinds = [row["kind"] for row in rows]
    places = range(len(kinds))
    width = 0.38
    delivered = [row["delivered"] / MB for row in rows]
    protocol = [(row["repeated"] + row["protocol"]) / MB for row in rows]
    first = axes.barh([place + width / 2 for place in places], delivered, width, color=BLUE, label="delivered")
    second = axes.barh(
        [place - width / 2 for place in places], protocol, width, color=ORANGE, label="protocol and copies"
    )
    axes.bar_label(first, [f" {_size(value)}" for value in delivered], fontsize=8)
    axes.bar_label(second, [f" {_size(value)}" for value in protocol], fontsize=8)
    axes.set_yticks(list(places), kinds)
    axes.set_xscale("log")
    axes.margins(x=0.15)
    axes.xaxis.set_major_formatter(lambda value, _: _round_size(value))
    axes.set_xlabel("bytes (logarithmic)")
    axes.set_title("Traffic by type")
    axes.legend(loc="lower right")
    _plain(axes)


def draw_caps(axes: Axes, rows: Sequence[Any]) -> None:
    names = [f"{row['truck']}" for row in rows]
    shares = [100 * row["used_share"] for row in rows]
    colours = [
        RED if share >= 100 else ORANGE if row["projected_at"] else GREEN
        for share, row in zip(shares, rows, strict=True)
    ]
    bars = axes.barh(names, shares, color=colours)
    said = [
        f" used up {in_utc(row['exhausted_at']):%H:%M}"
        if row["exhausted_at"]
        else f" used up by {in_utc(row['projected_at']):%H:%M} at this rate"
        if row["projected_at"]
        else ""
        for row in rows
    ]
    axes.bar_label(bars, said, fontsize=7)
    axes.axvline(100, color=RED, linewidth=1, alpha=0.5, zorder=0)
    axes.margins(x=0.25, y=0.01)
    axes.tick_params(axis="y", labelsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("% of the daily cap; times are UTC; green: it will last")
    axes.set_title(f"Data-cap use on {rows[0]['day']}, cap {rows[0]['cap_bytes'] / MB:g} MB")
    _plain(axes)


def draw_latency(axes: Axes, durations: Sequence[float], outcomes: Sequence[Any]) -> None:
    """How many answers took no longer than that."""
    times = sorted(1000 * each for each in durations)
    shares = [100 * (place + 1) / len(times) for place in range(len(times))]
    axes.step(times, shares, where="post", color=BLUE, linewidth=2)
    for percent in (50, 90, 99):
        value = times[min(len(times) - 1, int(len(times) * percent / 100))]
        axes.plot([value], [percent], "o", color=ORANGE)
        axes.annotate(
            f"p{percent}: {value:.1f} ms", (value, percent), (8, -12), textcoords="offset points", fontsize=9
        )
    axes.set_xscale("log")
    axes.set_ylim(0, 101)
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.set_xlabel("ms from request to answer (logarithmic)")
    axes.set_ylabel("% of answers")
    axes.set_title("Request latency")
    said = "\n".join(f"{row['requests']:>6,}  {row['outcome']}" for row in outcomes)
    axes.text(0.02, 0.97, said, transform=axes.transAxes, va="top", family="monospace", fontsize=9)
    _plain(axes)


def draw_map(axes: Axes, map: Map, positions: Sequence[Any], last: Sequence[Any]) -> None:
    for ring in map.dead_zones:
        axes.fill(*zip(*ring, strict=True), color=GREY, alpha=0.5, linewidth=0)
    for road in map.roads:
        axes.plot(*zip(*road, strict=True), color=GREY, linewidth=2.2, zorder=1)
    for fence in map.geofences:
        for outline, *_ in fence.polygons:
            axes.fill(*zip(*outline, strict=True), facecolor=GREEN, alpha=0.18, edgecolor=GREEN, zorder=2)
    for name, lon, lat in map.cities:
        axes.annotate(name, (lon, lat), (0, 10), textcoords="offset points", fontsize=8, ha="center", zorder=6)
    axes.scatter(
        [row["lon"] for row in positions], [row["lat"] for row in positions], s=2, color=BLUE, zorder=3
    )
    axes.scatter(
        [row["lon"] for row in last],
        [row["lat"] for row in last],
        s=34,
        color=ORANGE,
        edgecolor="black",
        linewidth=0.6,
        zorder=5,
    )
    for row in last:
        name = row["truck"].removeprefix("truck-")
        axes.annotate(name, (row["lon"], row["lat"]), (5, -9), textcoords="offset points", fontsize=6, zorder=6)
    middle = sum(row["lat"] for row in last) / len(last)
    axes.set_aspect(1 / max(0.1, math.cos(math.radians(middle))))
    axes.set_xlabel("longitude (°)")
    axes.set_ylabel("latitude (°)")
    axes.set_title("Positions (blue), last ones (orange), geofences (green), no coverage (grey)")
    _plain(axes)


# --- what they draw -------------------------------------------------------------------------------


def _traffic(lake: Lake, map: Map, axes: Axes) -> bool:
    rows = (
        lake.read("traffic_by_type")
        .groupBy("kind")
        .agg(
            F.sum("delivered_bytes").alias("delivered"),
            F.sum("repeated_bytes").alias("repeated"),
            F.sum("protocol_bytes").alias("protocol"),
        )
        .orderBy(F.col("delivered"))
        .collect()
    )
    if rows:
        draw_traffic(axes, rows)
    return bool(rows)


def _caps(lake: Lake, map: Map, axes: Axes) -> bool:
    """Of the day with most traffic, the thirstiest trucks."""
    use = lake.read("cap_use")
    days = use.groupBy("day").agg(F.sum("used_bytes").alias("bytes")).orderBy(F.desc("bytes")).head(1)
    if not days:
        return False
    rows = use.where(F.col("day") == F.lit(days[0]["day"])).orderBy(F.desc("used_share")).head(MAX_TRUCKS)
    draw_caps(axes, rows)
    return True


def _latency(lake: Lake, map: Map, axes: Axes) -> bool:
    requests = lake.read("requests")
    answered = requests.where((F.col("outcome") == "answered") & (F.col("duration_s") > 0))
    durations = [row["duration_s"] for row in answered.select("duration_s").limit(MAX_POINTS).collect()]
    outcomes = (
        requests.groupBy("outcome").agg(F.count("*").alias("requests")).orderBy(F.desc("requests")).collect()
    )
    if durations:
        draw_latency(axes, durations, outcomes)
    return bool(durations)


def _positions(lake: Lake, map: Map, axes: Axes) -> bool:
    position = lake.read("position").select("truck", "at", "lat", "lon")
    count = position.count()
    if not count:
        return False
    thinned = position.where(F.pmod(F.xxhash64("truck", "at"), F.lit(max(1, -(-count // MAX_POINTS)))) == 0)
    last = lake.read("truck_days").orderBy("last").collect()
    draw_map(axes, map, thinned.collect(), list({row["truck"]: row for row in last}.values()))
    return True


_PICTURES: Final[dict[str, Callable[[Lake, Map, Axes], bool]]] = {
    "traffic_by_type": _traffic,
    "cap_use": _caps,
    "request_latency": _latency,
    "positions": _positions,
}


def _plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="both", alpha=0.25)
    axes.set_axisbelow(True)


def _size(megabytes: float) -> str:
    return f"{megabytes:,.1f} MB" if megabytes >= 1 else f"{megabytes * 1000:,.1f} kB"


def _round_size(megabytes: float) -> str:
    """Of a power of ten."""
    return f"{megabytes:,.0f} MB" if megabytes >= 1 else f"{megabytes * 1000:g} kB"
