"""`python -m polybus` is the same as `polybus`."""

from polybus.cli.main import app

app(prog_name="polybus")
