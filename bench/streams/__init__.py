"""What streams cost the bus, and how fast they are written and read."""
