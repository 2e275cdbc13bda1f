"""TBus: the state machine of one connection (`link`) and what both ends share (`bulking`)."""
