#pragma once

/// As much JSON as the shared vectors need: objects, arrays, strings with escapes, whole numbers, true, false, null.

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace json {

struct Value;
using Object = std::map<std::string, Value>;
using Array = std::vector<Value>;

struct Value {
    std::variant<std::nullptr_t, bool, std::uint64_t, std::string, Array, Object> data;

    [[nodiscard]] bool is_null() const { return std::holds_alternative<std::nullptr_t>(data); }
    [[nodiscard]] bool boolean() const { return std::get<bool>(data); }
    [[nodiscard]] std::uint64_t number() const { return std::get<std::uint64_t>(data); }
    [[nodiscard]] const std::string& text() const { return std::get<std::string>(data); }
    [[nodiscard]] const Array& array() const { return std::get<Array>(data); }
    [[nodiscard]] const Object& object() const { return std::get<Object>(data); }
    [[nodiscard]] bool has(const std::string& key) const { return object().contains(key); }
    const Value& operator[](const std::string& key) const { return object().at(key); }
};

class Parser {
public:
    explicit Parser(std::string_view text) : text_(text) {}

    Value parse() {
        Value value = parse_value();
        skip();
        if (pos_ != text_.size()) throw std::runtime_error("JSON goes on behind its end");
        return value;
    }

private:
    void skip() {
        while (pos_ < text_.size() && std::string_view(" \t\r\n").find(text_[pos_]) != std::string_view::npos) ++pos_;
    }

    char peek() {
        skip();
        if (pos_ >= text_.size()) throw std::runtime_error("JSON ends too early");
        return text_[pos_];
    }

    void expect(char letter) {
        if (peek() != letter)
            throw std::runtime_error(std::string("JSON: no ") + letter + " at byte " + std::to_string(pos_));
        ++pos_;
    }

    bool take(std::string_view word) {
        if (text_.substr(pos_, word.size()) != word) return false;
        pos_ += word.size();
        return true;
    }

    Value parse_value() {
        const char letter = peek();
        if (letter == '{') return {parse_object()};
        if (letter == '[') return {parse_array()};
        if (letter == '"') return {parse_string()};
        if (take("true")) return {true};
        if (take("false")) return {false};
        if (take("null")) return {nullptr};
        std::uint64_t number = 0;
        const std::size_t begin = pos_;
        while (pos_ < text_.size() && text_[pos_] >= '0' && text_[pos_] <= '9')
            number = 10 * number + static_cast<std::uint64_t>(text_[pos_++] - '0');
        if (pos_ == begin) throw std::runtime_error("JSON: no value at byte " + std::to_string(pos_));
        return {number};
    }

    Object parse_object() {
        Object object;
        expect('{');
        if (peek() == '}') return ++pos_, object;
        for (;;) {
            skip();
            std::string key = parse_string();
            expect(':');
            object.emplace(std::move(key), parse_value());
            if (peek() == '}') return ++pos_, object;
            expect(',');
        }
    }

    Array parse_array() {
        Array array;
        expect('[');
        if (peek() == ']') return ++pos_, array;
        for (;;) {
            array.push_back(parse_value());
            if (peek() == ']') return ++pos_, array;
            expect(',');
        }
    }

    std::string parse_string() {
        expect('"');
        std::string out;
        for (;;) {
            if (pos_ >= text_.size()) throw std::runtime_error("JSON: a string does not end");
            const char letter = text_[pos_++];
            if (letter == '"') return out;
            if (letter != '\\') {
                out.push_back(letter);
                continue;
            }
            const char escape = text_.at(pos_++);
            switch (escape) {
            case 'n': out.push_back('\n'); break;
            case 't': out.push_back('\t'); break;
            case 'r': out.push_back('\r'); break;
            case 'b': out.push_back('\b'); break;
            case 'f': out.push_back('\f'); break;
            case 'u': append_utf8(out, parse_code_point()); break;
            default: out.push_back(escape);
            }
        }
    }

    std::uint32_t parse_hex4() {
        const auto value = static_cast<std::uint32_t>(std::stoul(std::string(text_.substr(pos_, 4)), nullptr, 16));
        pos_ += 4;
        return value;
    }

    std::uint32_t parse_code_point() {
        const std::uint32_t first = parse_hex4();
        if (first < 0xd800 || first > 0xdbff || !take("\\u")) return first;
        return 0x10000 + ((first - 0xd800) << 10) + (parse_hex4() - 0xdc00);
    }

    static void append_utf8(std::string& out, std::uint32_t code) {
        const auto put = [&](std::uint32_t byte) { out.push_back(static_cast<char>(byte)); };
        if (code < 0x80) {
            put(code);
        } else if (code < 0x800) {
            put(0xc0 | code >> 6), put(0x80 | (code & 0x3f));
        } else if (code < 0x10000) {
            put(0xe0 | code >> 12), put(0x80 | (code >> 6 & 0x3f)), put(0x80 | (code & 0x3f));
        } else {
            put(0xf0 | code >> 18), put(0x80 | (code >> 12 & 0x3f)), put(0x80 | (code >> 6 & 0x3f)),
                put(0x80 | (code & 0x3f));
        }
    }

    std::string_view text_;
    std::size_t pos_ = 0;
};

} // namespace json
