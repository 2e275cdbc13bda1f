// TBus, as much of it as requests need. Its frames are MQTT's, so `wire::walk` finds them; see
// docs/protocols/tbus.md for the layouts.
#pragma once

#include "net.hpp"
#include "wire.hpp"

namespace tbus {

using wire::Bytes;
using wire::Packet;

enum Type : std::uint8_t {
    CONNECT = 1,
    CONNACK = 2,
    PUBLISH = 3,
    REQACK = 5,
    BULK = 6,
    SUBSCRIBE = 8,
    SUBACK = 9,
    DISCONNECT = 14,
};

enum Flag : std::uint8_t {
    CLEAN_START = 1,  // CONNECT
    REQUEST = 1,      // PUBLISH
    PRIORITY = 2,
    RESPONSE = 4,
};

// How a request ended, in a REQACK.
enum State : std::uint8_t {
    CANCELED = 6,
    DELETED = 10,
    TIMED_OUT = 11,
    NOT_DELIVERED = 12,
    FAILED = 13,
    UNKNOWN_REQUEST = 14,
};

inline Type type_of(const Packet& packet) { return static_cast<Type>(packet.type); }

struct Properties {
    std::uint16_t packet_id = 0;
    std::uint8_t state = 0;
    std::string_view response_destination;
    std::string_view reason;
};

// A PUBLISH or a REQACK, taken apart in place.
struct Message {
    std::string_view topic;
    Properties properties;
    std::span<const std::uint8_t> payload;
};

Message view_message(const Packet& packet);

// What a DISCONNECT says, for an error message.
std::string view_disconnect(const Packet& packet);

// The part of a message in front of `length` bytes; returns its size, at most 5.
std::size_t store_header(std::uint8_t first, std::size_t length, std::uint8_t* at);

void append_string(Bytes& out, std::string_view text);

Bytes connect(std::string_view client_id, std::uint32_t bulk_limit_bytes);  // 0: takes no BULK
Bytes subscribe(std::uint16_t packet_id, std::string_view filter, std::uint16_t concurrency);
Bytes disconnect();

// The packet id is the last thing before the payload: see `set_packet_id`.
Bytes request(std::string_view topic, std::uint32_t timeout_s, const Bytes& payload);
inline void set_packet_id(Bytes& request, std::size_t payload_bytes, std::uint16_t packet_id) {
    wire::store_u16(request.data() + request.size() - payload_bytes - 2, packet_id);
}

// The answer to a request that came to a service; replaces what is in `out`.
void store_answer(Bytes& out, const Packet& packet, const Message& request);

// A connection that has its CONNACK and, if it asked for a filter, its SUBACK.
struct Wish {
    std::string client_id;
    std::uint32_t bulk_limit_bytes = 0;
    std::string filter;
    std::uint16_t concurrency = 1;
    int segment_bytes = 0;  // TCP_MAXSEG; 0: as the interface has it
};
net::Connection open_session(std::uint16_t port, const Wish& wish);

}  // namespace tbus
