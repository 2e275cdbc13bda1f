// PUBLISH by the shortest way, in both directions.

#include "codec.hpp"
#include "layouts.hpp"

namespace polybus::wire {

namespace {

bool read_text(std::string_view body, std::size_t& pos, std::size_t end, std::string_view& text) {
    const Varint size = decode_varint(body, pos, end);
    if (size.fault != VarintFault::none || size.value > end - pos - size.size_bytes) return false;
    text = body.substr(pos + size.size_bytes, size.value);
    pos += size.size_bytes + size.value;
    return find_utf8_fault(text) == std::string_view::npos && text.find('\0') == std::string_view::npos;
}

std::uint32_t load(std::string_view body, std::size_t pos, std::size_t count) {
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < count; ++i) value = value << 8 | static_cast<std::uint8_t>(body[pos + i]);
    return value;
}

} // namespace

std::optional<PublishView> decode_publish(std::uint8_t flags, std::string_view body) {
    PublishView view;
    view.is_request = flags & request_flag;
    view.is_priority = flags & priority_flag;
    view.is_response = flags & response_flag;
    if (flags > 0b0111 || (view.is_request && view.is_response)) return {};
    std::size_t pos = 0;
    if (!view.is_response && (!read_text(body, pos, body.size(), view.topic) || view.topic.empty())) return {};
    const Varint block = decode_varint(body, pos, body.size());
    if (block.fault != VarintFault::none) return {};
    pos += block.size_bytes;
    if (block.value > body.size() - pos) return {};
    const std::size_t end = pos + block.value;
    bool has_timeout = false;
    bool has_destination = false;
    while (pos < end) {
        const auto id = static_cast<std::uint8_t>(body[pos++]);
        if (id == packet_id_id && !view.packet_id) {
            if (end - pos < 2) return {};
            view.packet_id = static_cast<std::uint16_t>(load(body, pos, 2));
            if (!view.packet_id) return {};
            pos += 2;
        } else if (id == response_destination_id && !has_destination) {
            if (!read_text(body, pos, end, view.response_destination)) return {};
            has_destination = true;
        } else if (id == timeout_id && !has_timeout) {
            if (end - pos < 4) return {};
            view.timeout_s = load(body, pos, 4);
            has_timeout = true;
            pos += 4;
        } else {
            return {};
        }
    }
    if ((view.is_request || view.is_response) && !view.packet_id) return {};
    if (view.is_response && !has_destination) return {};
    view.payload = body.substr(end);
    return view;
}

std::string encode_publish(const PublishView& publish) {
    const std::size_t destination_size = publish.response_destination.size();
    std::size_t block = 0;
    if (publish.timeout_s) block += 5;
    if (publish.is_response) block += 1 + varint_bytes(destination_size) + destination_size;
    if (publish.packet_id) block += 3;
    std::size_t remaining = varint_bytes(block) + block + publish.payload.size();
    if (!publish.is_response) remaining += varint_bytes(publish.topic.size()) + publish.topic.size();

    std::string out;
    out.reserve(1 + varint_bytes(remaining) + remaining);
    int first_byte = static_cast<int>(Type::publish) << 4;
    if (publish.is_request) first_byte |= request_flag;
    if (publish.is_priority) first_byte |= priority_flag;
    if (publish.is_response) first_byte |= response_flag;
    out.push_back(static_cast<char>(first_byte));
    append_varint(out, remaining);
    if (!publish.is_response) {
        append_varint(out, publish.topic.size());
        out += publish.topic;
    }
    append_varint(out, block);
    if (publish.timeout_s) {
        out.push_back(static_cast<char>(timeout_id));
        for (int shift = 24; shift >= 0; shift -= 8) out.push_back(static_cast<char>(publish.timeout_s >> shift));
    }
    if (publish.is_response) {
        out.push_back(static_cast<char>(response_destination_id));
        append_varint(out, destination_size);
        out += publish.response_destination;
    }
    if (publish.packet_id) {
        out.push_back(static_cast<char>(packet_id_id));
        out.push_back(static_cast<char>(publish.packet_id >> 8));
        out.push_back(static_cast<char>(publish.packet_id & 0xff));
    }
    out += publish.payload;
    return out;
}

} // namespace polybus::wire
