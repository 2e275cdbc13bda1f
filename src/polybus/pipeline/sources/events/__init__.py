"""`format("polybus_events")`: the event file of a broker, as it grows and is rotated."""
