"""Spark looks for `pyspark_<name>` when `format("<name>")` is not registered; this makes "pcap" known."""

from polybus.pipeline.sources.pcap.source import PcapDataSource as DefaultSource

__all__ = ["DefaultSource"]
