#pragma once

/// Bytes that arrived and are not read yet. The owner reads from its socket straight into `space`.

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

namespace polybus::core {

class Inbox {
public:
    /// Room for at least `size` more bytes.
    std::span<char> space(std::size_t size);
    void filled(std::size_t size) { end_ += size; }
    [[nodiscard]] std::string_view data() const { return {buffer_.get() + begin_, end_ - begin_}; }
    void consume(std::size_t size);
    void clear() { begin_ = end_ = 0; }

private:
    static constexpr std::size_t kept_bytes = 1024 * 1024; // a larger buffer goes when it is empty

    std::unique_ptr<char[]> buffer_;
    std::size_t capacity_ = 0;
    std::size_t begin_ = 0;
    std::size_t end_ = 0;
};

} // namespace polybus::core
