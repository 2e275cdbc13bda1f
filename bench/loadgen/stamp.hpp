// What a payload carries: who sent it, a number (a sequence or a time), and a marker as its last byte.
#pragma once

#include "wire.hpp"

namespace stamp {

constexpr std::uint8_t MARKER = 0xA5;
constexpr std::size_t NUMBER_AT = sizeof(std::uint32_t);
constexpr std::size_t MIN_PAYLOAD_BYTES = NUMBER_AT + sizeof(std::uint64_t) + 1;

struct Stamp {
    std::uint32_t publisher;
    std::uint64_t number;
};

inline std::string topic_of(std::size_t publisher) {
    char text[32];
    std::snprintf(text, sizeof text, "bench/t/%04zu", publisher);
    return text;
}

inline wire::Bytes payload(std::size_t publisher, std::size_t size_bytes) {
    wire::Bytes bytes(size_bytes, 'x');
    const auto number = static_cast<std::uint32_t>(publisher);
    std::memcpy(bytes.data(), &number, sizeof number);
    bytes.back() = MARKER;
    return bytes;
}

inline Stamp read(std::span<const std::uint8_t> payload, std::size_t expected_bytes) {
    if (payload.size() != expected_bytes || payload.back() != MARKER)
        throw std::runtime_error("a message was not delivered as it was sent");
    Stamp found{};
    std::memcpy(&found.publisher, payload.data(), sizeof found.publisher);
    std::memcpy(&found.number, payload.data() + NUMBER_AT, sizeof found.number);
    return found;
}

// A run of equal PUBLISH packets of one publisher; number and packet id are put in before each write.
class Batch {
public:
    Batch(std::size_t publisher, std::size_t payload_bytes, std::uint8_t qos, std::size_t packets) {
        const auto packet = wire::publish(topic_of(publisher), payload(publisher, payload_bytes), qos);
        packet_bytes_ = packet.size();
        payload_at_ = packet_bytes_ - payload_bytes;
        for (std::size_t i = 0; i < packets; ++i) wire::append(bytes_, packet);
    }

    void set_number(std::size_t packet, std::uint64_t number) {
        std::memcpy(bytes_.data() + packet * packet_bytes_ + payload_at_ + NUMBER_AT, &number, sizeof number);
    }

    void set_packet_id(std::size_t packet, std::uint16_t packet_id) {
        wire::store_u16(bytes_.data() + packet * packet_bytes_ + payload_at_ - 2, packet_id);
    }

    std::span<const std::uint8_t> first(std::size_t packets) const { return {bytes_.data(), packets * packet_bytes_}; }

private:
    wire::Bytes bytes_;
    std::size_t packet_bytes_ = 0;
    std::size_t payload_at_ = 0;
};

}  // namespace stamp
