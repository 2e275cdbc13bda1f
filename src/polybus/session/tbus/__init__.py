"""TBus: the state machine of one connection."""

from polybus.session.tbus.link import TbusLink
from polybus.session.tbus.options import TbusOptions

__all__ = ["TbusLink", "TbusOptions"]
