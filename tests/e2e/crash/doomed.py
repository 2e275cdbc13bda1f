"""`python -m tests.e2e.crash.doomed`: Polybus that dies when a stream has something and the state does not yet.

It lives as any other until its data folder has a file `doom`: the next commit that records wait for is then
its end.
"""

import os
import signal
from typing import Final

from polybus.broker.ledger import Batch
from polybus.cli.main import app
from polybus.store import durable
from polybus.store.state import StateFile

DOOM: Final = "doom"


class DoomedFile(StateFile):
    def apply(self, batch: Batch) -> None:
        doom = self.path.with_name(DOOM)
        if batch.logged and doom.exists():
            doom.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        super().apply(batch)


if __name__ == "__main__":
    durable.StateFile = DoomedFile  # type: ignore[misc]
    app(prog_name="polybus")
