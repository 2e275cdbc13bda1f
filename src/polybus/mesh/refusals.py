"""Messages that neighbours offered and nobody here could take (TB-15): they are told when someone can.

A client whose session is kept may come back, one that reads too slowly may catch up, and neither changes what
is wanted here. So the topics are remembered until a client with a filter for them is ready.
"""

from typing import Final

from polybus.broker.sessions import Session
from polybus.broker.topics import matches

MAX_TOPICS: Final = 1_000
"""Of each neighbour. Beyond that it is told whoever is ready."""
ANY: Final = ""


class Refusals:
    """The single owner of what was refused."""

    def __init__(self) -> None:
        self._topics: dict[Session, dict[str, None]] = {}

    def __bool__(self) -> bool:
        return bool(self._topics)

    def note(self, neighbor: Session, topic: str) -> None:
        topics = self._topics.setdefault(neighbor, {})
        topics[topic] = None
        if len(topics) > MAX_TOPICS:
            self._topics[neighbor] = {ANY: None}

    def ready(self, path: str) -> list[Session]:
        """Someone with this filter can take messages: neighbours to tell, who offer what is still there."""
        told: list[Session] = []
        for neighbor, topics in list(self._topics.items()):
            found = [topic for topic in topics if topic == ANY or matches(path, topic)]
            if found:
                told.append(neighbor)
            for topic in found:
                if topic != ANY:
                    del topics[topic]
            if not topics:
                del self._topics[neighbor]
        return told

    def forget(self, neighbor: Session) -> None:
        self._topics.pop(neighbor, None)
