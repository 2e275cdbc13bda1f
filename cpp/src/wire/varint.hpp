#pragma once

/// Variable-length integers (TB-01): 7 bits a byte, the least significant group first, in as few bytes as needed.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace polybus::wire {

inline constexpr std::size_t max_varint = 268'435'455;
inline constexpr std::size_t max_varint_bytes = 4;

enum class VarintFault { none, cut_short, too_long, not_minimal };

struct Varint {
    std::size_t value = 0;
    std::size_t size_bytes = 0;
    VarintFault fault = VarintFault::none;
};

constexpr Varint decode_varint(std::string_view data, std::size_t pos, std::size_t end) {
    std::size_t value = 0;
    for (std::size_t count = 0; count < max_varint_bytes; ++count) {
        if (pos + count >= end) return {0, 0, VarintFault::cut_short};
        const auto digit = static_cast<std::uint8_t>(data[pos + count]);
        value |= static_cast<std::size_t>(digit & 0x7f) << (7 * count);
        if (digit < 0x80) {
            if (digit == 0 && count > 0) return {0, 0, VarintFault::not_minimal};
            return {value, count + 1, VarintFault::none};
        }
    }
    return {0, 0, VarintFault::too_long};
}

constexpr std::size_t varint_bytes(std::size_t value) {
    return value < (1U << 7) ? 1 : value < (1U << 14) ? 2 : value < (1U << 21) ? 3 : 4;
}

inline void append_varint(std::string& out, std::size_t value) {
    for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(0x80 | (value & 0x7f)));
    out.push_back(static_cast<char>(value));
}

} // namespace polybus::wire
