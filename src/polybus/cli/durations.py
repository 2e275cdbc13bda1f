"""Times as people write them: 90s, 15m, 8h, 2d."""

import re
from typing import Final

from polybus.errors import UsageError

UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_WRITTEN: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw]?)")


def parse_duration(text: str, option: str) -> float:
    """Seconds. Raises `UsageError` that names the option."""
    found = _WRITTEN.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"{option} {text!r} is no time: write 90s, 15m, 8h or 2d")
    return float(found[1]) * UNITS_S[found[2] or "s"]
