"""Every normative statement of MQTT 3.1.1 and 5.0 that binds a server, and the tests that hold us to it.

`python -m tests.conformance` runs them and prints what is covered; `docs/conformance.md` explains.
"""

import pytest

pytest.register_assert_rewrite(f"{__name__}.harness")
