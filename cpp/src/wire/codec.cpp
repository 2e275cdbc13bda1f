#include "codec.hpp"

#include <array>
#include <utility>

#include <polybus/errors.hpp>

#include "layouts.hpp"

namespace polybus::wire {

namespace {

template <class Tuple, class Function>
void each(const Tuple& tuple, Function function) {
    std::apply([&](const auto&... item) { (function(item), ...); }, tuple);
}

template <class P>
constexpr std::uint8_t used_flags() {
    return std::apply([](const auto&... flag) { return static_cast<std::uint8_t>((0 | ... | flag.mask)); },
                      Layout<P>::flags);
}

template <class P>
void check_flags(std::uint8_t flags) {
    constexpr std::uint8_t used = used_flags<P>();
    if (flags & ~used)
        throw Wrong{"the flags are " + std::to_string(flags) + "; only " + std::to_string(used) + " may be set"};
    if constexpr (Layout<P>::exclusive != 0)
        if ((flags & Layout<P>::exclusive) == Layout<P>::exclusive)
            throw Wrong{"the flags Request and Response are set together; a message has at most one of them"};
}

// A request and an answer have to say which, an answer also whose.
void check_whole(const Publish& packet) {
    const std::string name = packet.is_request ? "a request" : "an answer";
    if (!packet.is_request && !packet.is_response) return;
    if (!packet.packet_id) throw Wrong{name + " needs a PacketId"};
    if (packet.is_response && !packet.response_destination) throw Wrong{name + " needs a ResponseDestination"};
}
template <class P>
void check_whole(const P&) {}

template <class P>
void decode_properties(Cursor& at, P& packet) {
    const std::size_t size = decode_length("the block of properties", at);
    Cursor inside{at.data, at.pos, at.pos + size};
    unsigned seen = 0;
    while (inside.pos < inside.end) {
        const auto id = static_cast<std::uint8_t>(inside.data[inside.pos]);
        unsigned bit = 1;
        bool is_known = false;
        each(Layout<P>::properties, [&](const auto& property) {
            if (!is_known && property.id == id) {
                is_known = true;
                if (seen & bit) throw Wrong{"property " + std::string(property.name) + " stands there twice"};
                seen |= bit;
                ++inside.pos;
                decode_value(property.codec, property.name, inside, packet.*(property.member));
            }
            bit <<= 1;
        });
        if (!is_known) {
            std::string allowed;
            each(Layout<P>::properties,
                 [&](const auto& property) { allowed += (allowed.empty() ? "" : ", ") + std::string(property.name); });
            throw Wrong{"property " + std::to_string(id) + " is unknown, or not allowed here; allowed are " + allowed};
        }
    }
    unsigned bit = 1;
    each(Layout<P>::properties, [&](const auto& property) {
        if (property.is_needed && !(seen & bit)) throw Wrong{"property " + std::string(property.name) + " is missing"};
        bit <<= 1;
    });
    at.pos = inside.pos;
}

template <class P>
Packet decode_as(std::uint8_t flags, std::string_view body) {
    using L = Layout<P>;
    check_flags<P>(flags);
    P packet;
    each(L::flags, [&](const auto& flag) { packet.*(flag.member) = (flags & flag.mask) != 0; });
    Cursor at{body};
    each(L::head, [&](const auto& field) {
        if (!(flags & field.absent_with)) decode_value(field.codec, field.name, at, packet.*(field.member));
    });
    if constexpr (L::has_properties != Properties::never)
        if (L::has_properties == Properties::always || at.pos < at.end) decode_properties(at, packet);
    each(L::tail, [&](const auto& field) { decode_value(field.codec, field.name, at, packet.*(field.member)); });
    if (at.pos < at.end)
        throw Wrong{"the message is complete at byte " + quantity(at.pos) + " of " + quantity(at.end) +
                    ", but goes on"};
    check_whole(packet);
    return packet;
}

template <class T>
bool is_absent(const std::optional<T>& value) {
    return !value.has_value();
}
template <class T>
bool is_absent(const T&) {
    return false;
}

template <class P>
std::string encode_body(const P& packet, std::uint8_t& flags) {
    using L = Layout<P>;
    each(L::flags, [&](const auto& flag) {
        if (packet.*(flag.member)) flags = static_cast<std::uint8_t>(flags | flag.mask);
    });
    check_flags<P>(flags);
    std::string body;
    each(L::head, [&](const auto& field) {
        if (!(flags & field.absent_with))
            encode_value(field.codec, field.name, body, packet.*(field.member));
        else if (!is_absent(packet.*(field.member)))
            throw Wrong{std::string(field.name) + " has no place in an answer"};
    });
    if constexpr (L::has_properties != Properties::never) {
        std::string block;
        each(L::properties, [&](const auto& property) {
            if (is_absent(packet.*(property.member))) return;
            block.push_back(static_cast<char>(property.id));
            encode_value(property.codec, property.name, block, packet.*(property.member));
        });
        if (!block.empty() || L::has_properties == Properties::always) {
            append_varint(body, block.size());
            body += block;
        }
    }
    each(L::tail, [&](const auto& field) { encode_value(field.codec, field.name, body, packet.*(field.member)); });
    check_whole(packet);
    return body;
}

using Decoder = Packet (*)(std::uint8_t, std::string_view);

struct Entry {
    const char* name = nullptr;
    const char* rule = nullptr;
    Decoder decode = nullptr;
};

template <class... P>
constexpr std::array<Entry, 16> make_entries(std::variant<P...>*) {
    std::array<Entry, 16> entries{};
    ((entries[static_cast<std::size_t>(Layout<P>::type)] = {Layout<P>::name, Layout<P>::rule, &decode_as<P>}), ...);
    return entries;
}

constexpr std::array<Entry, 16> entries = make_entries(static_cast<Packet*>(nullptr));

int reason_for(unsigned kind) {
    return kind == static_cast<unsigned>(Type::connect) ? static_cast<int>(ConnectReason::malformed)
                                                        : static_cast<int>(DisconnectReason::unspecified);
}

Malformed bad_bulk(const std::string& text) { return {128, Layout<Bulk>::rule, "BULK: " + text}; }

} // namespace

std::optional<Frame> next_frame(std::string_view data, std::size_t pos, std::size_t max_size) {
    if (pos >= data.size()) return {};
    const auto first_byte = static_cast<std::uint8_t>(data[pos]);
    const Varint length = decode_varint(data, pos + 1, data.size());
    if (length.fault == VarintFault::cut_short) return {};
    if (length.fault != VarintFault::none)
        throw Malformed{reason_for(first_byte >> 4), representation,
                        std::string("the remaining length is ") + words(length.fault)};
    const std::size_t size = 1 + length.size_bytes + length.value;
    if (size > max_size)
        throw Malformed{reason_for(first_byte >> 4), representation,
                        "a message of " + quantity(size) + " bytes is larger than " + quantity(max_size) +
                            ", the largest that is taken"};
    if (size > data.size() - pos) return {};
    return Frame{first_byte, data.substr(pos + 1 + length.size_bytes, length.value), pos + size};
}

std::size_t whole_size(std::string_view data, std::size_t pos) {
    if (pos >= data.size()) return 0;
    const Varint length = decode_varint(data, pos + 1, data.size());
    return length.fault == VarintFault::none ? 1 + length.size_bytes + length.value : 0;
}

Packet decode(std::uint8_t first_byte, std::string_view body) {
    const auto kind = static_cast<unsigned>(first_byte >> 4);
    const Entry& entry = entries[kind];
    if (!entry.decode)
        throw Malformed{reason_for(kind), "TB-02",
                        "message type " + std::to_string(kind) + " is not used: 1 to 6 and 8 to 14 are"};
    try {
        return entry.decode(first_byte & 0x0f, body);
    } catch (const Wrong& wrong) {
        throw Malformed{reason_for(kind), wrong.rule ? wrong.rule : entry.rule, entry.name + (": " + wrong.text)};
    }
}

std::string encode(const Packet& packet) {
    return std::visit(
        []<class P>(const P& value) {
            using L = Layout<P>;
            try {
                std::uint8_t flags = 0;
                const std::string body = encode_body(value, flags);
                if constexpr (std::is_same_v<P, Bulk>) {
                    BulkReader reader(body);
                    while (reader.next()) {
                    }
                }
                if (body.size() > max_varint) throw Wrong{"it is larger than a message can be", representation};
                std::string out;
                out.reserve(1 + max_varint_bytes + body.size());
                out.push_back(static_cast<char>(static_cast<std::uint8_t>(L::type) << 4 | flags));
                append_varint(out, body.size());
                out += body;
                return out;
            } catch (const Wrong& wrong) {
                throw UsageError(std::string(L::name) + ": " + wrong.text + " [" + (wrong.rule ? wrong.rule : L::rule) +
                                 "]");
            } catch (const Malformed& malformed) {
                throw UsageError(malformed.text + " [" + malformed.rule + "]");
            }
        },
        packet);
}

std::optional<Frame> BulkReader::next() {
    if (body_.empty()) throw bad_bulk("there are no messages");
    if (pos_ >= body_.size()) return {};
    const auto kind = static_cast<Type>(static_cast<std::uint8_t>(body_[pos_]) >> 4);
    if (kind == Type::bulk || kind == Type::connect)
        throw bad_bulk(std::string(entries[static_cast<std::size_t>(kind)].name) + " is not allowed inside");
    const auto frame = next_frame(body_, pos_, max_varint + 1 + max_varint_bytes);
    if (!frame)
        throw bad_bulk("what begins at byte " + quantity(pos_) + " of " + quantity(body_.size()) +
                       " is not a whole message");
    pos_ = frame->end;
    return frame;
}

void append_bulk_header(std::string& out, std::size_t size) {
    out.push_back(static_cast<char>(static_cast<std::uint8_t>(Type::bulk) << 4));
    append_varint(out, size);
}

} // namespace polybus::wire
