#pragma once

/// TBus: bytes to messages and back. A stream is cut with `next_frame`, each frame becomes a message with `decode`,
/// and `BulkReader` cuts the inside of a BULK; `encode` goes the other way. Nothing here keeps a stream's state.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "packets.hpp"
#include "varint.hpp"

namespace polybus::wire {

/// The peer sent what may not be sent. `reason_code` is that of the CONNACK or DISCONNECT to refuse it with.
struct Malformed {
    int reason_code;
    std::string rule;
    std::string text;
};

struct Frame {
    std::uint8_t first_byte = 0;
    std::string_view body;
    std::size_t end = 0;

    [[nodiscard]] std::uint8_t kind() const { return static_cast<std::uint8_t>(first_byte >> 4); }
    [[nodiscard]] std::uint8_t flags() const { return first_byte & 0x0f; }
};

/// The message at `pos`, or nothing if it is not complete. Throws Malformed as soon as its header shows that it is
/// larger than `max_size` (counted with the header), or has a remaining length that is no varint.
std::optional<Frame> next_frame(std::string_view data, std::size_t pos, std::size_t max_size);

/// How many bytes the message at `pos` has, header included; 0 if that cannot be told yet.
std::size_t whole_size(std::string_view data, std::size_t pos);

/// The message that a frame holds, from either side. Throws Malformed for what is wrong with a message by itself.
/// Of a BULK nothing but its header is looked at.
Packet decode(std::uint8_t first_byte, std::string_view body);

/// The bytes of a message. Throws UsageError for what `decode` or `BulkReader` would refuse.
std::string encode(const Packet& packet);

/// The messages inside a BULK, one behind the other.
class BulkReader {
public:
    explicit BulkReader(std::string_view body) : body_(body) {}

    /// Throws Malformed when it comes to something that a BULK may not hold; the messages before it count.
    std::optional<Frame> next();
    [[nodiscard]] std::size_t position() const { return pos_; }

private:
    std::string_view body_;
    std::size_t pos_ = 0;
};

/// A PUBLISH without copies, for the way that most messages take.
struct PublishView {
    std::string_view topic;
    std::string_view payload;
    std::string_view response_destination;
    std::uint32_t timeout_s = 0;
    std::uint16_t packet_id = 0;
    bool is_request = false;
    bool is_response = false;
    bool is_priority = false;
};

/// What a lawful PUBLISH holds. Nothing for what `decode` has to look at, and to find words for.
std::optional<PublishView> decode_publish(std::uint8_t flags, std::string_view body);

/// The bytes of a PUBLISH; the caller has checked topic and sizes. No topic in an answer, and of the others no
/// ResponseDestination; a packet id or timeout of 0 is not written.
std::string encode_publish(const PublishView& publish);

void append_bulk_header(std::string& out, std::size_t size);

} // namespace polybus::wire
