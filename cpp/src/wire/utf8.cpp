#include "utf8.hpp"

#include <cstdint>
#include <cstring>

namespace polybus::wire {

namespace {

struct Sequence {
    std::size_t size = 0;
    std::uint8_t second_lowest = 0x80;
    std::uint8_t second_highest = 0xbf;
};

// Table 3-7 of the Unicode standard: what may follow a first byte.
constexpr Sequence sequence_of(std::uint8_t first) {
    if (first >= 0xc2 && first <= 0xdf) return {2};
    if (first == 0xe0) return {3, 0xa0, 0xbf};
    if (first == 0xed) return {3, 0x80, 0x9f};
    if (first >= 0xe1 && first <= 0xef) return {3};
    if (first == 0xf0) return {4, 0x90, 0xbf};
    if (first >= 0xf1 && first <= 0xf3) return {4};
    if (first == 0xf4) return {4, 0x80, 0x8f};
    return {};
}

} // namespace

std::size_t find_utf8_fault(std::string_view text) {
    std::size_t pos = 0;
    while (pos < text.size()) {
        // Nearly all text is ASCII.
        std::uint64_t eight = 0;
        if (pos + sizeof eight <= text.size()) {
            std::memcpy(&eight, text.data() + pos, sizeof eight);
            if ((eight & 0x8080808080808080U) == 0) {
                pos += sizeof eight;
                continue;
            }
        }
        const auto first = static_cast<std::uint8_t>(text[pos]);
        if (first < 0x80) {
            ++pos;
            continue;
        }
        const Sequence sequence = sequence_of(first);
        if (sequence.size == 0 || pos + sequence.size > text.size()) return pos;
        const auto second = static_cast<std::uint8_t>(text[pos + 1]);
        if (second < sequence.second_lowest || second > sequence.second_highest) return pos;
        for (std::size_t i = 2; i < sequence.size; ++i)
            if ((static_cast<std::uint8_t>(text[pos + i]) & 0xc0) != 0x80) return pos;
        pos += sequence.size;
    }
    return std::string_view::npos;
}

} // namespace polybus::wire
