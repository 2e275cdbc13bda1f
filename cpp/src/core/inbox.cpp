#include "inbox.hpp"

#include <algorithm>
#include <cstring>

namespace polybus::core {

std::span<char> Inbox::space(std::size_t size) {
    if (capacity_ - end_ < size) {
        const std::size_t held = end_ - begin_;
        if (capacity_ < held + size) {
            capacity_ = std::max(held + size, 2 * capacity_);
            auto larger = std::make_unique_for_overwrite<char[]>(capacity_);
            if (held) std::memcpy(larger.get(), buffer_.get() + begin_, held);
            buffer_ = std::move(larger);
        } else {
            std::memmove(buffer_.get(), buffer_.get() + begin_, held);
        }
        begin_ = 0;
        end_ = held;
    }
    return {buffer_.get() + end_, capacity_ - end_};
}

void Inbox::consume(std::size_t size) {
    begin_ += size;
    if (begin_ < end_) return;
    clear();
    if (capacity_ > kept_bytes) {
        buffer_.reset();
        capacity_ = 0;
    }
}

} // namespace polybus::core
