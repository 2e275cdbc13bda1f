// What a payload carries: the stream it belongs to, a number (a sequence or a time), its own size, and a
// marker as its last byte. A stream is one topic of one publisher; MQTT promises order within it.
#pragma once

#include <algorithm>

#include "wire.hpp"

namespace stamp {

constexpr std::uint8_t MARKER = 0xA5;
constexpr std::size_t NUMBER_AT = sizeof(std::uint32_t);
constexpr std::size_t SIZE_AT = NUMBER_AT + sizeof(std::uint64_t);
constexpr std::size_t MIN_PAYLOAD_BYTES = SIZE_AT + sizeof(std::uint32_t) + 1;

struct Stamp {
    std::uint32_t stream;
    std::uint64_t number;
};

// bench/t/0007, or bench/t/0007/03 for publishers that use several topics.
inline std::string topic_of(std::size_t publisher, std::size_t topic = 0, std::size_t topics = 1) {
    char text[48];
    if (topics == 1)
        std::snprintf(text, sizeof text, "bench/t/%04zu", publisher);
    else
        std::snprintf(text, sizeof text, "bench/t/%04zu/%02zu", publisher, topic);
    return text;
}

inline wire::Bytes payload(std::size_t stream, std::size_t size_bytes) {
    wire::Bytes bytes(size_bytes, 'x');
    const auto number = static_cast<std::uint32_t>(stream);
    const auto size = static_cast<std::uint32_t>(size_bytes);
    std::memcpy(bytes.data(), &number, sizeof number);
    std::memcpy(bytes.data() + SIZE_AT, &size, sizeof size);
    bytes.back() = MARKER;
    return bytes;
}

inline Stamp read(std::span<const std::uint8_t> payload) {
    Stamp found{};
    std::uint32_t size = 0;
    if (payload.size() >= MIN_PAYLOAD_BYTES) std::memcpy(&size, payload.data() + SIZE_AT, sizeof size);
    if (size != payload.size() || payload.back() != MARKER)
        throw std::runtime_error("a message was not delivered as it was sent");
    std::memcpy(&found.stream, payload.data(), sizeof found.stream);
    std::memcpy(&found.number, payload.data() + NUMBER_AT, sizeof found.number);
    return found;
}

// PUBLISH packets of one publisher, one behind the other; numbers and packet ids are put in before a write.
class Batch {
public:
    struct Shape {
        std::size_t packets = 1;
        std::size_t payload_bytes = 64;
        std::uint8_t qos = 0;
        std::size_t topics = 1;        // taken in turn
        bool has_mixed_sizes = false;  // from half to one and a half times payload_bytes
    };

    Batch(std::size_t publisher, const Shape& shape) {
        for (std::size_t i = 0; i < shape.packets; ++i) {
            const std::size_t topic = i % shape.topics;
            const std::size_t stream = publisher * shape.topics + topic;
            const std::size_t size_bytes = shape.has_mixed_sizes ? mixed_size(shape, i) : shape.payload_bytes;
            wire::append(bytes_, wire::publish(topic_of(publisher, topic, shape.topics),
                                               payload(stream, size_bytes), shape.qos));
            slots_.push_back({bytes_.size() - size_bytes, bytes_.size(), topic});
        }
    }

    std::size_t packets() const { return slots_.size(); }
    std::size_t topic(std::size_t packet) const { return slots_[packet].topic; }

    void set_number(std::size_t packet, std::uint64_t number) {
        std::memcpy(bytes_.data() + slots_[packet].payload_at + NUMBER_AT, &number, sizeof number);
    }

    void set_packet_id(std::size_t packet, std::uint16_t packet_id) {
        wire::store_u16(bytes_.data() + slots_[packet].payload_at - 2, packet_id);
    }

    std::span<const std::uint8_t> range(std::size_t from, std::size_t until) const {
        const std::size_t start = from == 0 ? 0 : slots_[from - 1].end;
        return {bytes_.data() + start, (until == 0 ? 0 : slots_[until - 1].end) - start};
    }

private:
    struct Slot {
        std::size_t payload_at;
        std::size_t end;
        std::size_t topic;
    };

    static std::size_t mixed_size(const Shape& shape, std::size_t packet) {
        const std::size_t step = packet * 37 % shape.packets;  // neighbours differ, and all sizes come once
        return std::max(MIN_PAYLOAD_BYTES, shape.payload_bytes / 2 + shape.payload_bytes * step / shape.packets);
    }

    wire::Bytes bytes_;
    std::vector<Slot> slots_;
};

}  // namespace stamp
