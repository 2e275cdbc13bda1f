"""The client libraries: Polybus's in Python and C++ beside paho-mqtt and libmosquitto."""
