"""Logging as it was: setting it up is for the whole process."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def restored_logging() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("", "polybus", "polybus.events")]
    before = [(logger, list(logger.handlers), logger.level) for logger in loggers]
    raises = logging.raiseExceptions
    yield
    for logger, handlers, level in before:
        for handler in [each for each in logger.handlers if each not in handlers]:
            logger.removeHandler(handler)
            handler.close()
        logger.setLevel(level)
    logging.raiseExceptions = raises
