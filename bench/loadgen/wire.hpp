// MQTT 3.1.1, as much of it as a load generator needs: packets are built once, before the clock runs,
// and walked in place when they arrive.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace wire {

using Bytes = std::vector<std::uint8_t>;

enum Type : std::uint8_t {
    CONNECT = 1,
    CONNACK,
    PUBLISH,
    PUBACK,
    PUBREC,
    PUBREL,
    PUBCOMP,
    SUBSCRIBE,
    SUBACK,
    UNSUBSCRIBE,
    UNSUBACK,
    PINGREQ,
    PINGRESP,
    DISCONNECT,
};

struct Packet {
    Type type;
    std::uint8_t flags;
    std::span<const std::uint8_t> whole;  // with the fixed header
    std::span<const std::uint8_t> body;   // without it

    std::uint8_t qos() const { return (flags >> 1) & 3; }
};

// Where the parts of a PUBLISH stand in its body.
struct PublishView {
    std::string_view topic;
    std::uint16_t packet_id;
    std::span<const std::uint8_t> payload;
};

inline std::uint16_t load_u16(const std::uint8_t* at) { return static_cast<std::uint16_t>(at[0] << 8 | at[1]); }

inline void store_u16(std::uint8_t* at, std::uint16_t value) {
    at[0] = static_cast<std::uint8_t>(value >> 8);
    at[1] = static_cast<std::uint8_t>(value);
}

// Calls `handle` for each complete packet in `data`; returns how many bytes those packets took.
template <typename Handler>
std::size_t walk(std::span<const std::uint8_t> data, Handler&& handle) {
    std::size_t at = 0;
    while (data.size() - at >= 2) {
        std::size_t length = 0;
        std::size_t header = 1;
        for (int shift = 0;; shift += 7, ++header) {
            if (header >= data.size() - at) return at;
            const std::uint8_t digit = data[at + header];
            length |= static_cast<std::size_t>(digit & 0x7f) << shift;
            if (digit < 0x80) break;
            if (shift == 21) throw std::runtime_error("malformed remaining length from the broker");
        }
        const std::size_t total = header + 1 + length;
        if (data.size() - at < total) return at;
        const auto whole = data.subspan(at, total);
        handle(Packet{static_cast<Type>(whole[0] >> 4), static_cast<std::uint8_t>(whole[0] & 15), whole,
                      whole.subspan(header + 1)});
        at += total;
    }
    return at;
}

inline PublishView view_publish(const Packet& packet) {
    const auto body = packet.body;
    const std::size_t id_bytes = packet.qos() > 0 ? 2 : 0;
    if (body.size() < 2) throw std::runtime_error("PUBLISH too short");
    const std::size_t topic_bytes = load_u16(body.data());
    if (body.size() < 2 + topic_bytes + id_bytes) throw std::runtime_error("PUBLISH too short");
    return {{reinterpret_cast<const char*>(body.data()) + 2, topic_bytes},
            id_bytes ? load_u16(body.data() + 2 + topic_bytes) : std::uint16_t{0},
            body.subspan(2 + topic_bytes + id_bytes)};
}

inline void append(Bytes& out, std::span<const std::uint8_t> bytes) {
    out.insert(out.end(), bytes.begin(), bytes.end());
}

// PUBACK, PUBREC, PUBREL, PUBCOMP: four bytes, whatever the handshake.
inline void append_ack(Bytes& out, Type type, std::uint16_t packet_id) {
    const std::uint8_t flags = type == PUBREL ? 2 : 0;
    const std::uint8_t ack[4] = {static_cast<std::uint8_t>(type << 4 | flags), 2,
                                 static_cast<std::uint8_t>(packet_id >> 8),
                                 static_cast<std::uint8_t>(packet_id)};
    append(out, ack);
}

// Builders, for the time before the clock runs.
Bytes connect(std::string_view client_id, bool is_clean = true, std::uint16_t keep_alive_s = 300);
Bytes subscribe(std::uint16_t packet_id, const std::vector<std::string>& filters, std::uint8_t qos);
Bytes publish(std::string_view topic, const Bytes& payload, std::uint8_t qos, bool retain = false,
              std::uint16_t packet_id = 1);
Bytes pingreq();
Bytes disconnect();

}  // namespace wire
