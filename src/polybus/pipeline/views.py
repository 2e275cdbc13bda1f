"""Tables that are seen in another one: name → how."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from pyspark.sql import DataFrame

from polybus.pipeline.schemas import KINDS
from polybus.pipeline.transforms import fleet, frames, logs

VIEWS: Final[Mapping[str, Callable[[DataFrame], DataFrame]]] = {
    "ledger": fleet.ledger,
    **{kind: partial(fleet.of_kind, kind=kind) for kind in KINDS},
    "rejected": fleet.rejected,
    "duplicates": fleet.duplicates,
    "late": fleet.late,
    "log": logs.log,
    "rejected_events": logs.rejected_events,
    "frames": frames.frames,
    "rejected_frames": frames.rejected,
    "frame_gaps": frames.gaps,
    "frame_streams": frames.streams,
}
