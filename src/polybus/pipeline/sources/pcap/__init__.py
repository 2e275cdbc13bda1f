"""Capture files as a DataFrame: `spark.read.format("pcap").load("captures/*.pcap")` (PL-02).

From the outside in: `source` is what Spark calls, `batches` makes Arrow from records, `headers` reads
their columns with numpy, `walk` finds where records begin, `formats` knows what files begin with.
Everything but `source` works without Spark.
"""
