"""The state file of a server: what it says of records that cannot be."""

from pathlib import Path

import pytest

from polybus.broker import records
from polybus.broker.broker import Broker
from polybus.broker.ledger import Batch, Row
from polybus.broker.sessions import Session
from polybus.errors import ConfigError
from polybus.store.durable import DurableState
from polybus.store.folder import DataFolder
from polybus.store.state import STATE_FILE, StateFile

KEPT = records.session_record(Session("kept"), 0.0)
ROW: Row = [1, 1, 7, 0, 1, 1, 0, 0, None]
"""Of session 1 and piece 7."""


@pytest.mark.parametrize(
    "batch",
    [
        Batch(sessions=[(1, KEPT)], pieces=[(6, records.pack("no piece"))], rows=[ROW]),
        Batch(sessions=[(1, KEPT)], rows=[ROW]),
        Batch(received=[(1, records.pack([1]))]),
    ],
    ids=["a record that is none", "a row without its piece", "ids without their session"],
)
def test_records_that_do_not_fit_together(tmp_path: Path, batch: Batch) -> None:
    file = StateFile(tmp_path / STATE_FILE)
    file.apply(batch)
    file.close()
    with DataFolder(tmp_path) as folder:
        state = DurableState(folder, "normal", lambda function: None, now=0.0)
        broker = Broker(ledger=state.ledger, journal=state.journal)
        with pytest.raises(ConfigError, match=r"state\.sqlite is damaged.*left as it is.*backup"):
            state.restore(broker, 0.0)
        state.close()
    file = StateFile(tmp_path / STATE_FILE)
    image = file.begin(0.0)
    assert (len(list(image.pieces)), len(list(image.queued))) == (len(batch.pieces), len(batch.rows))
    assert list(image.received) == batch.received
    file.close()
