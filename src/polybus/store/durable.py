"""Durable state as a server uses it: the state file in its folder, and the thread that writes it."""

import gc
import logging
import sqlite3
import time
from collections.abc import Callable
from typing import Final

import msgspec

from polybus.broker.broker import Broker
from polybus.broker.ledger import Ledger
from polybus.broker.restore import Restored, restore
from polybus.session.mqtt.encoding import MQTT_5, MQTT_311
from polybus.store.folder import DataFolder
from polybus.store.state import STATE_FILE, StateFile, Sync, damaged
from polybus.store.writer import Logs, StateWriter

log = logging.getLogger("polybus.store")

ENCODINGS: Final = {encoding.name: encoding for encoding in (MQTT_311, MQTT_5)}


class DurableState:
    """Raises ConfigError if the file in the folder cannot be used."""

    def __init__(
        self,
        folder: DataFolder,
        sync: Sync,
        call: Callable[[Callable[[], None]], object],
        *,
        now: float,
        open_logs: Callable[[int | None], Logs | None] = lambda committed: None,
        on_trouble: Callable[[str], None] = lambda why: None,
    ) -> None:
        """`call` brings a function to the event loop's thread; `now` is the loop's time; `open_logs` gives what
        must have everything before the state has, and is told the last commit that it had."""
        self._file = StateFile(folder.path / STATE_FILE, sync, beside=[folder.lock_place()])
        try:
            logged = self._file.logged()
            before = open_logs(logged)
        except BaseException:
            self._file.close()
            raise
        self.ledger = Ledger(is_durable=True)
        self.ledger.next_commit = (logged or 0) + 1
        self.journal = StateWriter(self._file, self.ledger, call, before=before, on_trouble=on_trouble)
        self._set_clock(now)

    def restore(self, broker: Broker, now: float) -> Restored:
        """Raises ConfigError for records that do not fit together."""
        began = time.monotonic()
        image = self._file.begin(time.time())
        gc.disable()  # nothing of this is garbage, and a million objects are many to look at again and again
        try:
            restored = restore(broker, image, ENCODINGS, now=now, progress=_tell_progress)
        except (LookupError, msgspec.MsgspecError, sqlite3.Error) as error:
            self.ledger.forget()  # nothing of a broker that is half there
            raise damaged(self._file.path, f"{type(error).__name__}: {error}") from error
        finally:
            gc.enable()
        if any(msgspec.structs.astuple(restored)):
            fields = msgspec.structs.asdict(restored) | {"took_s": round(time.monotonic() - began, 3)}
            log.info("state restored", extra={"fields": fields})
        return restored

    def keep_house(self, broker: Broker, now: float) -> None:
        """Once a second or so."""
        self._set_clock(now)
        if broker.registry.kept_connected:
            self.ledger.stamp(now)
            broker.stir()

    def _set_clock(self, now: float) -> None:
        """The wall clock may be set while we run."""
        self.ledger.offset = time.time() - now

    def close(self) -> None:
        """Write what is left. Blocks."""
        self.journal.close()


def _tell_progress(messages: int) -> None:
    log.info("restoring state", extra={"fields": {"messages": messages}})
