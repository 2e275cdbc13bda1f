"""Streams by HTTP, with a real client against a served broker."""

import asyncio
import base64
import http.client
import io
import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.ipc
import pytest

from polybus.errors import ConfigError
from polybus.net.server import Server
from polybus.ops.config import AclRule, Auth, Config
from polybus.ops.config import Server as ServerConfig
from polybus.ops.listeners import Listener
from polybus.ops.passwords import set_password
from polybus.ops.streams import Http
from polybus.store.streams.rule import StreamRule
from tests.net.peers import client as client_of
from tests.net.peers import eventually, serving_config
from tests.store.streams.records import read_files

SMALL = StreamRule("small", ("a/#",), segment_bytes=4096)
WIDE = StreamRule("wide", ("w/#",), partitions=2)


CLIENTS: list["Client"] = []


@pytest.fixture(autouse=True)
def _close_clients() -> Iterator[None]:
    yield
    while CLIENTS:
        CLIENTS.pop().close()


class Reply:
    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.body = response.read()

    def json(self) -> dict[str, object]:
        found = json.loads(self.body)
        assert isinstance(found, dict)
        return found

    def table(self) -> pa.Table:
        return pyarrow.ipc.open_stream(io.BytesIO(self.body)).read_all()

    def offsets(self) -> list[int]:
        found = self.table().column("offset").to_pylist()
        assert isinstance(found, list)
        return found


class Client:
    """One connection that is kept, as http.client does."""

    def __init__(self, server: Server) -> None:
        place = urlsplit(server.urls[-1])
        assert place.scheme == "http"
        self._connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=20)
        self.close = self._connection.close
        CLIENTS.append(self)

    async def get(self, path: str, method: str = "GET", **headers: str) -> Reply:
        return await asyncio.to_thread(self._get, path, method, headers)

    def _get(self, path: str, method: str, headers: dict[str, str]) -> Reply:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self._connection.request(method, path, headers=named)
        return Reply(self._connection.getresponse())


@asynccontextmanager
async def serving_streams(folder: Path, *rules: StreamRule, **others: object) -> AsyncIterator[Server]:
    config = Config(
        listeners=(Listener(port=0),),
        server=ServerConfig(data_dir=folder / "data"),
        streams=rules or (SMALL, WIDE),
        http=Http(port=0),
        **others,  # type: ignore[arg-type]
    )
    async with serving_config(config) as server:
        yield server


async def publish(server: Server, topic: str, *payloads: bytes) -> None:
    """One after the other, each acknowledged: a batch of its own."""
    async with client_of(server, "publisher") as peer:
        for payload in payloads:
            assert await peer.publish(topic, payload) == 0


async def test_what_there_is(tmp_path: Path) -> None:
    async with serving_streams(tmp_path) as server:
        client = Client(server)
        await publish(server, "a/b", b"1", b"2")
        listed = await client.get("/streams")
        assert listed.headers["content-type"] == "application/json"
        assert [(s["name"], s["filters"], s["records"]) for s in listed.json()["streams"]] == [  # type: ignore[attr-defined]
            ("small", ["a/#"], 2),
            ("wide", ["w/#"], 0),
        ]
        one = (await client.get("/streams/small")).json()
        assert one["problem"] is None
        assert len(one["id"]) == 16
        partition = one["partitions"][0]  # type: ignore[index]
        assert (partition["first_offset"], partition["next_offset"]) == (0, 2)
        assert partition["first_time"] <= partition["last_time"]
        assert [p["next_offset"] for p in (await client.get("/streams/wide")).json()["partitions"]] == [0, 0]  # type: ignore[attr-defined]


async def test_records_come_whole_batches_at_a_time(tmp_path: Path) -> None:
    async with serving_streams(tmp_path) as server:
        client = Client(server)
        await publish(server, "a/b", *(b"%d" % n for n in range(30)))
        everything = await client.get("/streams/small/0")
        assert everything.headers["content-type"] == "application/vnd.apache.arrow.stream"
        assert everything.headers["polybus-next-offset"] == "30"
        assert everything.offsets() == list(range(30))
        assert everything.table().column("payload").to_pylist() == [b"%d" % n for n in range(30)]
        assert everything.table().to_pylist() == read_files(tmp_path / "data")
        part = await client.get("/streams/small/0?from=7&to=12")
        assert set(range(7, 12)) <= set(part.offsets())
        assert part.offsets()[-1] < 30
        nothing = await client.get("/streams/small/0?from=30")
        assert nothing.offsets() == []
        assert nothing.headers["polybus-next-offset"] == "30"
        assert (await client.get("/streams/small/0?from=5&to=5")).offsets() == []
        segments = list((tmp_path / "data/streams/small/0").glob("*.arrow"))
        assert len(segments) > 2, "the range went over several files"


async def test_the_offset_of_a_time(tmp_path: Path) -> None:
    async with serving_streams(tmp_path) as server:
        client = Client(server)
        await publish(server, "a/b", b"1", b"2", b"3")
        times = (await client.get("/streams/small/0")).table().column("time").cast(pa.int64()).to_pylist()
        for offset, time in enumerate(times):
            found = await client.get(f"/streams/small/0/offset?time={time}")
            assert found.json() == {"offset": times.index(time)}, offset
        assert (await client.get("/streams/small/0/offset?time=0")).json() == {"offset": 0}
        assert (await client.get("/streams/small/0/offset?time=2100-01-01T00:00:00Z")).json() == {"offset": 3}
        assert (await client.get("/streams/small/0/offset?time=2001-01-01T00:00:00%2B01:00")).json() == {
            "offset": 0
        }


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/", 404, "nothing here"),
        ("/streams/nothing", 404, "no stream 'nothing'"),
        ("/streams/small/1", 404, "no partition '1'"),
        ("/streams/small/x", 404, "no partition 'x'"),
        ("/streams/small/0/else", 404, "nothing here"),
        ("/streams/small/0?from=-1", 400, "from must be an offset"),
        ("/streams/small/0?from=1.5", 400, "from must be an offset"),
        ("/streams/small/0?to=x", 400, "to must be an offset"),
        ("/streams/small/0?from=99999999999999999999", 400, "from must be an offset"),
        ("/streams/small/0?from=9", 400, "was not reached yet"),
        ("/streams/small/0?from=1&to=0", 400, "is before from"),
        ("/streams/small/0?form=1", 400, "unknown parameter 'form'"),
        ("/streams/small/0/offset", 400, "time is missing"),
        ("/streams/small/0/offset?time=noon", 400, "time must be ISO 8601"),
        ("/streams/small/0/offset?time=2030-01-01T00:00:00", 400, "time must be ISO 8601"),
    ],
)
async def test_what_cannot_be_answered_says_why(tmp_path: Path, path: str, status: int, text: str) -> None:
    async with serving_streams(tmp_path) as server:
        await publish(server, "a/b", b"1")
        client = Client(server)
        reply = await client.get(path)
        assert reply.status == status
        assert text in str(reply.json()["error"])
        assert (await client.get("/streams")).status == 200, "the connection goes on"


async def test_what_retention_dropped_is_gone(tmp_path: Path) -> None:
    rule = StreamRule("small", ("a/#",), segment_bytes=4096, max_bytes=8192)
    async with serving_streams(tmp_path, rule) as server:
        client = Client(server)
        partition = server.streams.set.streams["small"].partitions[0]  # type: ignore[union-attr]
        number = 0
        while not partition.first:
            await publish(server, "a/b", *(b"%d" % n for n in range(number, number + 20)))
            number += 20

        def is_small_enough() -> bool:
            return sum(segment.size_bytes for segment in partition.facts()) <= rule.max_bytes

        await eventually(is_small_enough, "retention until it has no more to drop")
        reply = await client.get("/streams/small/0?from=0")
        assert reply.status == 410
        first = reply.json()["first_offset"]
        assert first == partition.first
        assert (await client.get(f"/streams/small/0?from={first}")).offsets()[0] == first


async def test_head_and_etag(tmp_path: Path) -> None:
    async with serving_streams(tmp_path) as server:
        client = Client(server)
        await publish(server, "a/b", b"1", b"2")
        whole = await client.get("/streams/small/0?from=0&to=2")
        head = await client.get("/streams/small/0?from=0&to=2", "HEAD")
        assert head.body == b""
        assert head.headers["content-length"] == str(len(whole.body))
        again = await client.get("/streams/small/0?from=0&to=2", if_none_match=whole.headers["etag"])
        assert (again.status, again.body) == (304, b"")
        await publish(server, "a/b", b"3")
        assert (await client.get("/streams/small/0", if_none_match=whole.headers["etag"])).status == 200
        facts = await client.get("/streams/small")
        assert (await client.get("/streams/small", if_none_match=facts.headers["etag"])).status == 304


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
async def test_reading_is_all_there_is(tmp_path: Path, method: str) -> None:
    async with serving_streams(tmp_path) as server:
        reply = await Client(server).get("/streams", method)
        assert reply.status == 405
        assert reply.headers["allow"] == "GET, HEAD"


async def test_what_is_no_http_is_refused(tmp_path: Path) -> None:
    async with serving_streams(tmp_path) as server:
        place = urlsplit(server.urls[-1])
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        writer.write(b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x00\x00\x00\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 400")
        writer.close()


async def test_a_damaged_batch_is_never_sent(tmp_path: Path) -> None:
    async with serving_streams(tmp_path) as server:
        await publish(server, "a/b", *(b"%d" % n for n in range(12)))
    victim = sorted((tmp_path / "data/streams/small/0").glob("*.arrow"))[0]
    data = bytearray(victim.read_bytes())
    at = data.rindex(b"a/b")
    data[at] ^= 1
    victim.write_bytes(data)
    async with serving_streams(tmp_path) as server:
        client = Client(server)
        before = await client.get("/streams/small/0")
        reached = int(before.headers["polybus-next-offset"])
        assert before.offsets() == list(range(reached))
        reply = await client.get(f"/streams/small/0?from={reached}")
        assert reply.status == 500
        assert "damaged" in str(reply.json()["error"])
        assert reply.json()["damaged_from"] == reached
        behind = reply.json()["damaged_to"]
        assert (await client.get(f"/streams/small/0?from={behind}")).offsets()[0] == behind


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


async def test_the_users_are_those_of_mqtt(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    set_password(tmp_path / "users", "alice", b"secret")
    set_password(tmp_path / "users", "bob", b"hidden")
    rules = (AclRule("$stream/small/#", user="alice"), AclRule("$stream/wide/#", user="*"))
    auth = Auth(password_file=tmp_path / "users")
    async with serving_streams(tmp_path, auth=auth, acl=rules) as server:
        client = Client(server)
        for wrong in ({}, {"authorization": basic("alice", "guess")}, {"authorization": "Bearer x"}):
            refused = await client.get("/streams", **wrong)
            assert refused.status == 401
            assert refused.headers["www-authenticate"].startswith("Basic")
        alice, bob = basic("alice", "secret"), basic("bob", "hidden")
        listed = (await client.get("/streams", authorization=alice)).json()["streams"]
        assert [s["name"] for s in listed] == ["small", "wide"]  # type: ignore[attr-defined]
        listed = (await client.get("/streams", authorization=bob)).json()["streams"]
        assert [s["name"] for s in listed] == ["wide"]  # type: ignore[attr-defined]
        assert (await client.get("/streams/small", authorization=alice)).status == 200
        assert (await client.get("/streams/small", authorization=bob)).status == 403
        assert (await client.get("/streams/nothing", authorization=bob)).status == 403
    assert "secret" not in caplog.text
    assert alice.split()[1] not in caplog.text


async def test_an_address_in_use_is_a_configuration_error(tmp_path: Path) -> None:
    async with serving_streams(tmp_path) as server:
        port = urlsplit(server.urls[-1]).port
        config = Config(
            listeners=(Listener(port=0),),
            server=ServerConfig(data_dir=tmp_path / "other"),
            streams=(SMALL,),
            http=Http(port=port or 0),
        )
        with pytest.raises(ConfigError, match=r"choose another http\.host or http\.port"):
            await Server(config).start()
