"""The two experiments of the TBus document (tables 5.8 and 5.9), and what it saw but did not measure."""
