"""The document's own figures: the average latency of requests, in milliseconds."""

from collections.abc import Mapping
from dataclasses import dataclass

SEGMENT_OVERHEAD_BYTES = 66
"""Section 4.2: headers, or an acknowledgement, of one TCP segment."""


@dataclass(frozen=True)
class Latencies:
    """Of its C++ and Python clients, with bulking enabled and disabled."""

    cpp_bulking: float
    cpp: float
    python_bulking: float
    python: float

    def cells(self) -> list[str]:
        return [f"{value:.2f}" for value in (self.cpp_bulking, self.cpp, self.python_bulking, self.python)]


COLUMNS = ["C++ bulking", "C++", "Python bulking", "Python"]

ONE_PAIR: Mapping[int, Latencies] = {
    2: Latencies(2.8157, 2.2712, 3.8853, 3.0776),
    4: Latencies(0.7799, 0.9591, 3.0137, 2.4576),
    8: Latencies(0.9335, 0.9290, 3.0141, 1.9542),
    16: Latencies(0.9564, 1.0919, 3.0136, 2.0971),
    32: Latencies(1.0638, 1.0347, 2.9905, 2.0929),
    64: Latencies(0.8916, 0.9536, 2.9046, 2.0126),
    128: Latencies(52.0214, 38.374, 29.9026, 1.8388),
    256: Latencies(77.5221, 35.173, 75.7054, 1.6265),
    512: Latencies(77.6337, 30.991, 68.5393, 2.0159),
    1024: Latencies(75.1017, 34.660, 58.6613, 2.1736),
    2048: Latencies(27.6548, 66.6631, 62.5354, 3.7976),
    4096: Latencies(61.9949, 53.5614, 96.3299, 2.5598),
    8192: Latencies(98.5921, 39.0048, 92.87, 2.8644),
    16384: Latencies(114.7219, 28.0954, 90.72, 2.8456),
    33333: Latencies(247.726, 31.6303, 82.7191, 1.3552),  # printed as "247726 ms": the point is lost
    66666: Latencies(161.1337, 61.9033, 94.6853, 1.2160),
    142900: Latencies(155.0267, 94.4913, 103.5409, 1.2013),
    333333: Latencies(148.9574, 120.6753, 134.5862, 1.2749),
    1000000: Latencies(138.0919, 122.5201, 96.44, 2.2854),
}
"""Table 5.8, by requests per second. From 2,048 on the document says "~": its clients may have been slower."""

TWO_HUNDRED_PAIRS = Latencies(4.4007, 8.032, 12.0666, 6.1445)
"""Table 5.9: 200 pairs, 10 requests per second each."""
