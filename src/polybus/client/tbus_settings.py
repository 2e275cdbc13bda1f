"""What a TBus client says in CONNECT."""

from dataclasses import dataclass

from polybus.session.tbus.bulking import MAX_BULK_BYTES
from polybus.session.tbus.options import BulkMode
from polybus.wire.tbus.packets import Connect


@dataclass(frozen=True)
class TbusSettings:
    """`last_id`: requests are numbered from the one behind it. A client that goes on where an earlier one
    stopped (`clean_start` False) begins anywhere, so that it meets none of that one's numbers."""

    client_id: str
    clean_start: bool = True
    keep_alive_s: int = 60
    user_name: str | None = None
    token: str | None = None
    bulk: BulkMode = "adaptive"
    last_id: int = 0

    def connect_packet(self, *, clean_start: bool) -> Connect:
        return Connect(
            client_id=self.client_id,
            keep_alive_s=self.keep_alive_s,
            clean_start=clean_start,
            token=self.token,
            user_name=self.user_name,
            bulk_limit=None if self.bulk == "off" else MAX_BULK_BYTES,
        )
