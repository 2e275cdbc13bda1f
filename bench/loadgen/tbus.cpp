#include "tbus.hpp"

namespace tbus {

namespace {

enum Property : std::uint8_t {
    TIMEOUT = 0x02,
    RESPONSE_DESTINATION = 0x08,
    SERVER_REFERENCE = 0x1C,
    REASON_STRING = 0x1F,
    PACKET_ID = 0x40,
    REQUEST_STATE = 0x41,
    TOPIC_NAME = 0x42,
    CONCURRENCY = 0x44,
    BULK_LIMIT = 0x45,
};

// Reads one thing after the other and never beyond the end.
class Reader {
public:
    explicit Reader(std::span<const std::uint8_t> data) : data_(data) {}

    bool is_done() const { return data_.empty(); }
    std::span<const std::uint8_t> rest() const { return data_; }

    std::span<const std::uint8_t> take(std::size_t count) {
        if (count > data_.size()) throw std::runtime_error("a message of the broker ends too early");
        const auto taken = data_.first(count);
        data_ = data_.subspan(count);
        return taken;
    }
    std::uint8_t u8() { return take(1)[0]; }
    std::uint16_t u16() { return wire::load_u16(take(2).data()); }
    std::size_t varint() {
        std::size_t value = 0;
        for (int shift = 0; shift <= 21; shift += 7) {
            const std::uint8_t digit = u8();
            value |= static_cast<std::size_t>(digit & 0x7f) << shift;
            if (digit < 0x80) return value;
        }
        throw std::runtime_error("a length of the broker has more than 4 bytes");
    }
    std::string_view string() {
        const auto bytes = take(varint());
        return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
    }

private:
    std::span<const std::uint8_t> data_;
};

Properties read_properties(Reader& reader) {
    Properties found;
    for (Reader inner(reader.take(reader.varint())); !inner.is_done();) {
        switch (const std::uint8_t id = inner.u8()) {
            case TIMEOUT: inner.take(4); break;
            case RESPONSE_DESTINATION: found.response_destination = inner.string(); break;
            case REASON_STRING: found.reason = inner.string(); break;
            case PACKET_ID: found.packet_id = inner.u16(); break;
            case REQUEST_STATE: found.state = inner.u8(); break;
            case TOPIC_NAME: inner.string(); break;
            case SERVER_REFERENCE: inner.string(); break;
            default: throw std::runtime_error("unexpected property " + std::to_string(id) + " from the broker");
        }
    }
    return found;
}

std::size_t store_varint(std::size_t value, std::uint8_t* at) {
    std::size_t size = 0;
    for (; value > 0x7f; value >>= 7) at[size++] = static_cast<std::uint8_t>(value | 0x80);
    at[size++] = static_cast<std::uint8_t>(value);
    return size;
}

void append_varint(Bytes& out, std::size_t value) {
    std::uint8_t digits[5];
    wire::append(out, {digits, store_varint(value, digits)});
}

void append_u16(Bytes& out, std::size_t value) {
    out.push_back(static_cast<std::uint8_t>(value >> 8));
    out.push_back(static_cast<std::uint8_t>(value));
}

void append_u32(Bytes& out, std::size_t value) {
    append_u16(out, value >> 16);
    append_u16(out, value & 0xffff);
}

void append_properties(Bytes& out, const Bytes& properties) {
    append_varint(out, properties.size());
    wire::append(out, properties);
}

Bytes frame(std::uint8_t first, const Bytes& body) {
    Bytes out(5);
    out.resize(store_header(first, body.size(), out.data()));
    wire::append(out, body);
    return out;
}

}  // namespace

std::size_t store_header(std::uint8_t first, std::size_t length, std::uint8_t* at) {
    at[0] = first;
    return 1 + store_varint(length, at + 1);
}

void append_string(Bytes& out, std::string_view text) {
    append_varint(out, text.size());
    out.insert(out.end(), text.begin(), text.end());
}

Message view_message(const Packet& packet) {
    Reader reader(packet.body);
    Message message;
    if (type_of(packet) == PUBLISH && !(packet.flags & RESPONSE)) message.topic = reader.string();
    message.properties = read_properties(reader);
    message.payload = reader.rest();
    return message;
}

std::string view_disconnect(const Packet& packet) {
    Reader reader(packet.body);
    const std::string code = std::to_string(reader.u16());
    const std::string reason(reader.is_done() ? std::string_view() : read_properties(reader).reason);
    return "the broker disconnected with " + code + " " + reason;
}

Bytes connect(std::string_view client_id, std::uint32_t bulk_limit_bytes) {
    Bytes body{0, 0};  // no keep alive
    append_string(body, client_id);
    if (bulk_limit_bytes > 0) {
        Bytes properties{BULK_LIMIT};
        append_u32(properties, bulk_limit_bytes);
        append_properties(body, properties);
    }
    return frame(CONNECT << 4 | CLEAN_START, body);
}

Bytes subscribe(std::uint16_t packet_id, std::string_view filter, std::uint16_t concurrency) {
    Bytes body;
    append_u16(body, packet_id);
    append_string(body, filter);
    Bytes properties{CONCURRENCY};
    append_u16(properties, concurrency);
    append_properties(body, properties);
    return frame(SUBSCRIBE << 4, body);
}

Bytes disconnect() { return frame(DISCONNECT << 4, {0, 0}); }

Bytes request(std::string_view topic, std::uint32_t timeout_s, const Bytes& payload) {
    Bytes properties{TIMEOUT};
    append_u32(properties, timeout_s);
    properties.push_back(PACKET_ID);
    append_u16(properties, 1);
    Bytes body;
    append_string(body, topic);
    append_properties(body, properties);
    wire::append(body, payload);
    return frame(PUBLISH << 4 | REQUEST, body);
}

void store_answer(Bytes& out, const Packet& packet, const Message& request) {
    const std::string_view destination = request.properties.response_destination;
    std::uint8_t length_of_destination[5];
    const std::size_t digits = store_varint(destination.size(), length_of_destination);
    const std::size_t properties_bytes = 3 + 1 + digits + destination.size();
    std::uint8_t length_of_properties[5];
    const std::size_t more_digits = store_varint(properties_bytes, length_of_properties);

    out.resize(5);
    const auto first = static_cast<std::uint8_t>(PUBLISH << 4 | RESPONSE | (packet.flags & PRIORITY));
    out.resize(store_header(first, more_digits + properties_bytes + request.payload.size(), out.data()));
    wire::append(out, {length_of_properties, more_digits});
    out.push_back(PACKET_ID);
    append_u16(out, request.properties.packet_id);
    out.push_back(RESPONSE_DESTINATION);
    wire::append(out, {length_of_destination, digits});
    out.insert(out.end(), destination.begin(), destination.end());
    wire::append(out, request.payload);
}

net::Connection open_session(std::uint16_t port, const Wish& wish) {
    net::Fd fd = net::tcp_socket(true);
    if (wish.segment_bytes > 0) net::set_option(fd.get(), IPPROTO_TCP, TCP_MAXSEG, wish.segment_bytes);
    const sockaddr_in address = net::loopback(port);
    if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) < 0) net::fail("connect");
    net::set_blocking(fd.get(), false);
    net::Connection connection(std::move(fd));
    net::converse(connection, connect(wish.client_id, wish.bulk_limit_bytes), 1, [](const Packet& packet) {
        if (type_of(packet) != CONNACK) throw std::runtime_error("the broker speaks no TBus");
        Reader reader(packet.body);
        if (const std::uint8_t reason = reader.u8(); reason != 0)
            throw std::runtime_error("CONNECT refused with " + std::to_string(reason) + " " +
                                     std::string(read_properties(reader).reason));
    });
    if (wish.filter.empty()) return connection;
    net::converse(connection, subscribe(1, wish.filter, wish.concurrency), 1, [](const Packet& packet) {
        if (type_of(packet) != SUBACK) throw std::runtime_error("unexpected answer to SUBSCRIBE");
        Reader reader(packet.body);
        reader.u16();
        const Properties properties = read_properties(reader);
        if (const std::uint16_t reason = reader.u16(); reason != 0)
            throw std::runtime_error("SUBSCRIBE refused with " + std::to_string(reason) + " " +
                                     std::string(properties.reason));
    });
    return connection;
}

}  // namespace tbus
