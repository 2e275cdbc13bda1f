"""`python -m bench`"""

import sys

from bench import brokers, loadgen

for qos in (0, 1, 2):
    for name in sys.argv[1:] or ["mosquitto", "polybus"]:
        with brokers.running(name) as broker:
            print(
                name,
                qos,
                loadgen.run("throughput", port=broker.port, qos=qos, seconds=1, watch=broker.watch()),
            )
