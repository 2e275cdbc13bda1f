#include "wire.hpp"

namespace wire {

namespace {

void append_u16(Bytes& out, std::size_t value) {
    out.push_back(static_cast<std::uint8_t>(value >> 8));
    out.push_back(static_cast<std::uint8_t>(value));
}

void append_string(Bytes& out, std::string_view text) {
    append_u16(out, text.size());
    out.insert(out.end(), text.begin(), text.end());
}

Bytes frame(std::uint8_t first, const Bytes& body) {
    Bytes out{first};
    for (std::size_t rest = body.size();;) {
        const auto digit = static_cast<std::uint8_t>(rest & 0x7f);
        rest >>= 7;
        out.push_back(rest ? digit | 0x80 : digit);
        if (!rest) break;
    }
    append(out, body);
    return out;
}

}  // namespace

Bytes connect(std::string_view client_id, bool is_clean, std::uint16_t keep_alive_s) {
    Bytes body;
    append_string(body, "MQTT");
    body.push_back(4);  // protocol level 3.1.1
    body.push_back(is_clean ? 0x02 : 0x00);
    append_u16(body, keep_alive_s);
    append_string(body, client_id);
    return frame(CONNECT << 4, body);
}

Bytes subscribe(std::uint16_t packet_id, const std::vector<std::string>& filters, std::uint8_t qos) {
    Bytes body;
    append_u16(body, packet_id);
    for (const auto& filter : filters) {
        append_string(body, filter);
        body.push_back(qos);
    }
    return frame(SUBSCRIBE << 4 | 2, body);
}

Bytes publish(std::string_view topic, const Bytes& payload, std::uint8_t qos, bool retain,
                     std::uint16_t packet_id) {
    Bytes body;
    append_string(body, topic);
    if (qos > 0) append_u16(body, packet_id);
    append(body, payload);
    return frame(static_cast<std::uint8_t>(PUBLISH << 4 | qos << 1 | (retain ? 1 : 0)), body);
}

Bytes pingreq() { return {PINGREQ << 4, 0}; }

Bytes disconnect() { return {DISCONNECT << 4, 0}; }

}  // namespace wire
