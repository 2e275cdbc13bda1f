"""Records of a capture as Arrow batches, ready for Spark."""

import functools
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from polybus.pipeline.sources.pcap.fields import COLUMNS, TEXTS
from polybus.pipeline.sources.pcap.formats import NotACapture
from polybus.pipeline.sources.pcap.headers import Headers, Mask, read_headers
from polybus.pipeline.sources.pcap.records import UNKNOWN_LINK, Bytes, Ints, Records, read_records
from polybus.pipeline.sources.pcap.walk import Cut, Damage, Run, Walker, first_cut

ARROW_TYPES: Final = {
    "string": pa.string(),
    "bigint": pa.int64(),
    "int": pa.int32(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
SCHEMA: Final = pa.schema([pa.field(name, ARROW_TYPES[kind]) for name, kind in COLUMNS.items()])
"""Equal to what Spark makes of `COLUMNS`."""

_MOST_BATCH_BYTES: Final = 64 << 20
"""Of the file, so that Arrow's 32-bit offsets suffice and a batch stays small in memory."""


def read_batches(
    data: npt.NDArray[np.uint8],
    file: str,
    *,
    cut: Cut | None = None,
    stop: int | None = None,
    rows: int = 10_000,
    columns: Sequence[str] = tuple(COLUMNS),
) -> Iterator[pa.RecordBatch]:
    """The packets that begin from `cut` and before `stop`, and a row for what is damaged.

    Without `cut` from the beginning, without `stop` to the end. A file that is no capture gives one row
    that says so.
    """
    view = data.data
    try:
        cut = cut or first_cut(view, data.size)
    except NotACapture as error:
        yield _damage(Damage(0, data.size, str(error)), file, columns)
        return
    source = Bytes(data)
    for found in Walker(view, data.size, cut).walk(data.size if stop is None else stop):
        if isinstance(found, Damage):
            yield _damage(found, file, columns)
            continue
        for begin, end in _pieces(found, rows):
            records = read_records(source, found, begin, end)
            yield _batch(source, records, read_headers(source, records), file, columns)


def _pieces(run: Run, rows: int) -> Iterator[tuple[int, int]]:
    """Ranges of a run with so many rows, or fewer where packets are large."""
    begin, count = 0, run.offsets.size
    while begin < count:
        end = min(begin + rows, count)
        if run.offsets[end - 1] - run.offsets[begin] > _MOST_BATCH_BYTES:
            far = run.offsets[begin] + _MOST_BATCH_BYTES
            end = max(begin + 1, int(np.searchsorted(run.offsets[:end], far)))
        yield begin, end
        begin = end


def _damage(damage: Damage, file: str, columns: Sequence[str]) -> pa.RecordBatch:
    """A row without a number: the bytes at `file_offset` that are no packet, and why."""
    values = {
        "file": file,
        "file_offset": damage.start,
        "captured_length": damage.stop - damage.start,
        "error": f"bytes {damage.start} to {damage.stop} are left out: {damage.reason}",
    }
    arrays = [pa.array([values.get(name)], SCHEMA.field(name).type) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([SCHEMA.field(name) for name in columns]))


def _batch(data: Bytes, records: Records, h: Headers, file: str, columns: Sequence[str]) -> pa.RecordBatch:
    start, count = records.start, records.start.size
    is_ip = h.is_v4 | h.is_v6
    captured_payload = np.maximum(np.minimum(h.payload_end, records.end) - h.payload, 0)
    tcp = {name: (h.numbers[name], h.is_tcp) for name in ("tcp_seq", "tcp_ack", "tcp_flags", "tcp_window")}
    numbers: dict[str, tuple[Ints, Mask | None]] = {
        "number": (records.number, None),
        "file_offset": (records.file_offset, None),
        "time_ns": (records.time_ns, records.has_time),
        "captured_length": (records.end - start, None),
        "original_length": (records.original_length, None),
        "interface": (records.interface, None),
        "link_type": (records.link_type, records.link_type != UNKNOWN_LINK),
        "ether_type": (h.ether_type, h.ether_type >= 0),
        "vlan": (h.vlan, h.vlan >= 0),
        "inner_vlan": (h.inner_vlan, h.inner_vlan >= 0),
        "ip_version": (np.where(h.is_v4, 4, 6), is_ip),
        "protocol": (h.protocol, is_ip),
        "ttl": (h.ttl, is_ip),
        "fragment_id": (h.fragment_id, h.is_v4 | h.is_fragment),
        "fragment_offset": (h.fragment_offset, is_ip),
        "src_port": (h.numbers["src_port"], h.has_ports),
        "dst_port": (h.numbers["dst_port"], h.has_ports),
        **tcp,
        "udp_length": (h.numbers["udp_length"], h.is_udp),
        "network_offset": (h.network - start, None),
        "transport_offset": (h.transport - start, is_ip),
        "payload_offset": (h.payload - start, None),
        "payload_length": (np.maximum(h.payload_end - h.payload, 0), None),
        "payload_captured": (captured_payload, None),
    }
    flags: dict[str, Mask] = {"more_fragments": h.more_fragments, "dont_fragment": h.dont_fragment}
    others: dict[str, Callable[[], pa.Array]] = {
        "file": lambda: pa.repeat(pa.scalar(file, pa.string()), count),
        "time": lambda: _times(records),
        "src_mac": lambda: _macs(data, h.src_mac, h.has_src_mac),
        "dst_mac": lambda: _macs(data, h.mac, h.has_dst_mac),
        "src": lambda: _addresses(data, h, 12, 8),
        "dst": lambda: _addresses(data, h, 16, 24),
        "payload": lambda: _slices(data, h.payload, captured_payload),
        "error": lambda: _texts(h.wrong),
    }
    arrays: list[pa.Array] = []
    for name in columns:
        kind = SCHEMA.field(name).type
        if name in numbers:
            values, valid = numbers[name]
            narrow = values.astype(np.int32) if kind == pa.int32() else values
            arrays.append(pa.array(narrow, kind, mask=None if valid is None else ~valid))
        elif name in flags:
            arrays.append(pa.array(flags[name], mask=~is_ip))
        else:
            arrays.append(others[name]())
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([SCHEMA.field(name) for name in columns]))


def _times(records: Records) -> pa.Array:
    return pa.array(records.time_ns // 1000, pa.int64(), mask=~records.has_time).cast(ARROW_TYPES["timestamp"])


def _named(values: pa.Array, name: Callable[[Any], str]) -> pa.Array:
    """Texts for values of which a batch has few different ones: each is made once."""
    encoded = values.dictionary_encode()
    texts = pa.array([name(value) for value in encoded.dictionary.to_pylist()], pa.string())
    return pa.DictionaryArray.from_arrays(encoded.indices, texts).dictionary_decode()


# The same addresses come in batch after batch.
@functools.lru_cache(1 << 16)
def _mac_text(value: int) -> str:
    return value.to_bytes(6, "big").hex(":")


@functools.lru_cache(1 << 16)
def _ipv4_text(value: int) -> str:
    return socket.inet_ntop(socket.AF_INET, value.to_bytes(4, "big"))


@functools.lru_cache(1 << 16)
def _ipv6_text(value: bytes) -> str:
    return socket.inet_ntop(socket.AF_INET6, value)


def _macs(data: Bytes, pos: Ints, valid: Mask) -> pa.Array:
    at = np.where(valid, pos, 0)
    if not valid.any():
        return pa.nulls(valid.size, pa.string())
    values = data.at(">u4", at) << 16 | data.at(">u2", at + 4)
    return _named(pa.array(values, mask=~valid), _mac_text)


def _addresses(data: Bytes, h: Headers, v4_at: int, v6_at: int) -> pa.Array:
    v4 = pa.array(data.at(">u4", np.where(h.is_v4, h.network + v4_at, 0)), mask=~h.is_v4)
    texts = _named(v4, _ipv4_text)
    if not h.is_v6.any():
        return texts
    rows = np.flatnonzero(h.is_v6)
    raw = pa.py_buffer(data.raw(16, h.network[rows] + v6_at).tobytes())
    v6 = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), rows.size, [None, raw])
    named = _named(v6, _ipv6_text)
    where = np.zeros(h.is_v6.size, np.int64)
    where[rows] = np.arange(rows.size)
    return pc.coalesce(texts, named.take(pa.array(where, mask=~h.is_v6)))


def _slices(data: Bytes, start: Ints, length: Ints) -> pa.Array:
    """The bytes at each place, copied once and in C.

    Packets lie in the file one behind the other, so payloads and what is between them are the elements
    of one Arrow array over the file itself; taking every second element leaves the payloads.
    """
    if not start.size:
        return pa.array([], pa.binary())
    base = int(start.min())
    is_full = length > 0
    # An empty payload may be anywhere: it is put behind the last full one, for bounds must not fall.
    last_end = np.maximum.accumulate(np.where(is_full, start + length, base))
    starts = np.where(is_full, start, last_end)
    bounds = np.empty(2 * start.size + 1, np.int32)
    bounds[0:-1:2] = starts - base
    bounds[1::2] = starts + length - base
    bounds[-1] = bounds[-2]
    last = base + int(bounds[-1])
    array = pa.BinaryArray.from_buffers(
        pa.binary(), 2 * start.size, [None, pa.py_buffer(bounds), pa.py_buffer(data.data[base:last])]
    )
    return array.take(pa.array(np.arange(0, 2 * start.size, 2)))


def _texts(wrong: npt.NDArray[np.uint8]) -> pa.Array:
    if not wrong.any():
        return pa.nulls(wrong.size, pa.string())
    return _named(pa.array(wrong, mask=wrong == 0), TEXTS.__getitem__)
