#pragma once

/// The values that stand in TBus messages: how each is written, read and bounded.
///
/// `Wrong` says what is wrong with a value, not who is to blame: the codec knows whether it came from the peer or
/// from our caller.

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include <polybus/bytes.hpp>

#include "packets.hpp"
#include "utf8.hpp"
#include "varint.hpp"

namespace polybus::wire {

/// The requirement that says how integers, strings, properties and frames are written.
inline constexpr const char* representation = "TB-01";

/// Something that a message may not hold. Without a rule it is that of the message's layout.
struct Wrong {
    std::string text;
    const char* rule = nullptr;
};

/// An unsigned integer of the size of the field that holds it; an enumeration is one of its meanings.
struct Number {
    std::uint32_t lowest = 0;
};

/// UTF-8 behind its length; shortest and longest are bytes.
struct Text {
    bool may_hold_null = true;
    std::size_t shortest = 0;
    std::size_t longest = max_varint;
};

/// All the bytes up to the end of the message.
struct Rest {
    std::size_t shortest = 0;
};

inline std::string quantity(std::size_t value) { return std::to_string(value); }

inline const char* words(VarintFault fault) {
    switch (fault) {
    case VarintFault::too_long: return "a varint of more than 4 bytes";
    case VarintFault::not_minimal: return "a varint of more bytes than its value needs";
    default: return "a varint that does not end";
    }
}

/// A place in a message body, and the end that must not be passed.
struct Cursor {
    std::string_view data;
    std::size_t pos = 0;
    std::size_t end = data.size();

    [[nodiscard]] std::size_t left() const { return end - pos; }
};

/// How many bytes `name` has. Throws Wrong if they reach past the end.
inline std::size_t decode_length(const char* name, Cursor& at) {
    if (at.pos >= at.end) throw Wrong{std::string(name) + " is missing: nothing is left where its length should be"};
    const Varint size = decode_varint(at.data, at.pos, at.data.size());
    if (size.fault != VarintFault::none)
        throw Wrong{"the length of " + std::string(name) + " is " + words(size.fault), representation};
    const std::size_t start = at.pos + size.size_bytes;
    if (start > at.end || size.value > at.end - start)
        throw Wrong{std::string(name) + " says it has " + quantity(size.value) + " bytes, but what is left is " +
                    quantity(start > at.end ? 0 : at.end - start)};
    at.pos = start;
    return size.value;
}

template <class T>
void check_value(const Number& codec, const char* name, T value) {
    if constexpr (std::is_enum_v<T>) {
        if (std::find(meanings<T>.begin(), meanings<T>.end(), value) == meanings<T>.end())
            throw Wrong{std::string(name) + " is " + quantity(static_cast<std::size_t>(value)) +
                        ", which has no meaning"};
    } else if (value < codec.lowest) {
        throw Wrong{std::string(name) + " is " + quantity(value) + ", which is less than " + quantity(codec.lowest)};
    }
}

inline void check_value(const Text& codec, const char* name, std::string_view text) {
    if (const std::size_t fault = find_utf8_fault(text); fault != std::string_view::npos)
        throw Wrong{std::string(name) + " is not UTF-8 from its byte " + quantity(fault) + " on", representation};
    if (text.size() < codec.shortest) throw Wrong{std::string(name) + " is empty"};
    if (text.size() > codec.longest)
        throw Wrong{std::string(name) + " has " + quantity(text.size()) + " bytes and may have at most " +
                    quantity(codec.longest)};
    if (!codec.may_hold_null && text.find('\0') != std::string_view::npos)
        throw Wrong{std::string(name) + " contains U+0000", representation};
}

inline void check_value(const Rest& codec, const char* name, std::size_t size) {
    if (size < codec.shortest) throw Wrong{"there are no " + std::string(name)};
}

template <class T>
requires std::is_enum_v<T> || std::unsigned_integral<T>
void decode_value(const Number& codec, const char* name, Cursor& at, T& value) {
    if (at.left() < sizeof(T))
        throw Wrong{std::string(name) + " has " + quantity(sizeof(T)) + " bytes, but what is left is " +
                    quantity(at.left())};
    std::uint32_t number = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i) number = number << 8 | static_cast<std::uint8_t>(at.data[at.pos++]);
    value = static_cast<T>(number);
    check_value(codec, name, value);
}

inline void decode_value(const Text& codec, const char* name, Cursor& at, std::string& value) {
    const std::size_t size = decode_length(name, at);
    value.assign(at.data.substr(at.pos, size));
    check_value(codec, name, value);
    at.pos += size;
}

inline void decode_value(const Rest& codec, const char* name, Cursor& at, Bytes& value) {
    check_value(codec, name, at.left());
    value.assign(at.data.substr(at.pos, at.left()));
    at.pos = at.end;
}

template <class Codec, class T>
void decode_value(const Codec& codec, const char* name, Cursor& at, std::optional<T>& value) {
    decode_value(codec, name, at, value.emplace());
}

template <class T>
requires std::is_enum_v<T> || std::unsigned_integral<T>
void encode_value(const Number& codec, const char* name, std::string& out, T value) {
    check_value(codec, name, value);
    for (std::size_t i = sizeof(T); i-- > 0;)
        out.push_back(static_cast<char>(static_cast<std::uint32_t>(value) >> (8 * i)));
}

inline void encode_value(const Text& codec, const char* name, std::string& out, const std::string& value) {
    check_value(codec, name, value);
    append_varint(out, value.size());
    out += value;
}

inline void encode_value(const Rest& codec, const char* name, std::string& out, const Bytes& value) {
    check_value(codec, name, value.size());
    out += value.text();
}

template <class Codec, class T>
void encode_value(const Codec& codec, const char* name, std::string& out, const std::optional<T>& value) {
    if (!value) throw Wrong{std::string(name) + " is missing"};
    encode_value(codec, name, out, *value);
}

} // namespace polybus::wire
