#pragma once

/// Payloads: `Bytes` owns them, `BytesView` is what functions take.

#include <cstddef>
#include <ranges>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace polybus {

template <class T>
concept Octet = std::is_same_v < std::remove_cv_t<T>,
char > || std::is_same_v<std::remove_cv_t<T>, unsigned char> || std::is_same_v<std::remove_cv_t<T>, std::byte>;

/// Something that holds its bytes in a row: std::string, std::vector<unsigned char>, std::span<const std::byte>, …
/// A literal is no such thing: its zero at the end does not belong to the text.
template <class R>
concept OctetRange = std::ranges::contiguous_range<R> && std::ranges::sized_range<R> &&
    Octet<std::ranges::range_value_t<R>> && !std::is_array_v<std::remove_cvref_t<R>>;

/// Bytes that belong to somebody else. Made from text and from every range of bytes without being asked:
/// `bus.publish("topic", "text")`, `bus.publish("topic", vector)`.
class BytesView {
public:
    constexpr BytesView() = default;
    constexpr BytesView(const char* text) : text_(text) {}
    constexpr BytesView(const char* data, std::size_t size) : text_(data, size) {}
    template <OctetRange R>
    requires(!std::is_same_v<std::remove_cvref_t<R>, BytesView>) constexpr BytesView(const R& range)
        : text_(std::ranges::empty(range) ? nullptr : reinterpret_cast<const char*>(std::ranges::data(range)),
                std::ranges::size(range)) {}

    [[nodiscard]] constexpr std::size_t size() const { return text_.size(); }
    [[nodiscard]] constexpr bool empty() const { return text_.empty(); }
    [[nodiscard]] constexpr std::string_view text() const { return text_; }
    [[nodiscard]] std::span<const std::byte> span() const { return std::as_bytes(std::span(text_)); }

private:
    std::string_view text_;
};

/// Bytes of one's own: the payload of a message, the answer to a request.
class Bytes {
public:
    using value_type = unsigned char;

    Bytes() = default;
    Bytes(std::string text) : text_(std::move(text)) {}
    Bytes(const char* text) : text_(text) {}
    Bytes(std::string_view text) : text_(text) {}
    Bytes(BytesView bytes) : text_(bytes.text()) {}
    template <OctetRange R>
    requires(!std::is_same_v<std::remove_cvref_t<R>, Bytes> && !std::is_convertible_v<const R&, std::string_view>)
        Bytes(const R& range)
        : text_(BytesView(range).text()) {}

    [[nodiscard]] std::size_t size() const { return text_.size(); }
    [[nodiscard]] bool empty() const { return text_.empty(); }
    [[nodiscard]] const unsigned char* data() const { return reinterpret_cast<const unsigned char*>(text_.data()); }
    [[nodiscard]] const unsigned char* begin() const { return data(); }
    [[nodiscard]] const unsigned char* end() const { return data() + size(); }
    unsigned char operator[](std::size_t index) const { return data()[index]; }

    /// The same bytes as text, without a copy. Of a temporary it is a string: a view would look at nothing.
    [[nodiscard]] std::string_view text() const& { return text_; }
    [[nodiscard]] std::string text() && { return std::move(text_); }
    /// The same bytes as a string; `std::move(bytes).str()` copies nothing.
    [[nodiscard]] const std::string& str() const& { return text_; }
    [[nodiscard]] std::string str() && { return std::move(text_); }
    operator std::string() const& { return text_; }
    operator std::string() && { return std::move(text_); }
    [[nodiscard]] std::vector<unsigned char> vector() const { return {begin(), end()}; }
    [[nodiscard]] std::span<const std::byte> span() const { return std::as_bytes(std::span(text_)); }

    void assign(std::string_view text) { text_.assign(text); }

    friend bool operator==(const Bytes&, const Bytes&) = default;
    friend bool operator==(const Bytes& bytes, std::string_view text) { return bytes.text_ == text; }
    friend bool operator==(const Bytes& bytes, const std::string& text) { return bytes.text_ == text; }
    friend bool operator==(const Bytes& bytes, const char* text) { return bytes.text_ == text; }

private:
    std::string text_;
};

} // namespace polybus
