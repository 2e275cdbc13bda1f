"""How many examples a property is tried with.

The same ones each time: what one change broke should not be found with the next.
`EXAMPLES=5000 pytest tests/wire` tries as many others.
"""

import os
from typing import Final

_ASKED_FOR: Final = os.environ.get("EXAMPLES")
ARE_THE_SAME: Final = not _ASKED_FOR


def examples(usually: int) -> int:
    return int(_ASKED_FOR or usually)
