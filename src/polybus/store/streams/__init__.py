"""Durable, replayable logs of what was published. `docs/streams.md` describes them and their files.

Needs the extra `polybus[streams]` (pyarrow, numpy): import its modules only where a stream is in use.
"""
