#pragma once

/// Tests in a few lines: TEST("name") { CHECK(…); }. A failed check ends its test, and the program fails.

#include <chrono>
#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace check {

struct Case {
    std::string group;
    std::string name;
    void (*run)();
};

inline std::vector<Case>& cases() {
    static std::vector<Case> list;
    return list;
}

struct Registration {
    Registration(const char* group, const char* name, void (*run)()) { cases().push_back({group, name, run}); }
};

struct Failure : std::runtime_error {
    using std::runtime_error::runtime_error;
};

[[noreturn]] inline void fail(const char* file, int line, const std::string& text) {
    throw Failure(std::string(file) + ":" + std::to_string(line) + ": " + text);
}

template <class T>
std::string show(const T& value) {
    if constexpr (requires(std::ostringstream & out) { out << value; }) {
        std::ostringstream out;
        out << value;
        return out.str();
    } else {
        return "a value";
    }
}

/// How long anything may take on a busy machine before a test fails.
inline constexpr std::chrono::seconds patience{60};

/// Waits until it holds, by looking again and again.
inline bool eventually(const std::function<bool()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + patience;
    while (!condition()) {
        if (std::chrono::steady_clock::now() > deadline) return false;
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return true;
}

} // namespace check

#define CHECK_JOIN_(a, b) a##b
#define CHECK_JOIN(a, b) CHECK_JOIN_(a, b)

/// TEST_GROUP is defined by the file.
#define TEST(name)                                                                                                     \
    static void CHECK_JOIN(test_, __LINE__)();                                                                         \
    static const check::Registration CHECK_JOIN(registration_, __LINE__)(TEST_GROUP, name,                             \
                                                                         CHECK_JOIN(test_, __LINE__));                 \
    static void CHECK_JOIN(test_, __LINE__)()

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) check::fail(__FILE__, __LINE__, #condition);                                                 \
    } while (false)

#define CHECK_EQUAL(left, right)                                                                                       \
    do {                                                                                                               \
        const auto left_value = (left);                                                                                \
        const auto right_value = (right);                                                                              \
        if (!(left_value == right_value))                                                                              \
            check::fail(__FILE__, __LINE__,                                                                            \
                        #left " is " + check::show(left_value) + ", not " + check::show(right_value));                 \
    } while (false)

#define CHECK_EVENTUALLY(condition)                                                                                    \
    do {                                                                                                               \
        if (!check::eventually([&] { return (condition); })) check::fail(__FILE__, __LINE__, "never: " #condition);    \
    } while (false)

/// The expression must throw exactly this type (or a child of it); the text must contain `words`.
#define CHECK_THROWS(type, words, ...)                                                                                 \
    do {                                                                                                               \
        bool is_thrown = false;                                                                                        \
        try {                                                                                                          \
            static_cast<void>(__VA_ARGS__);                                                                            \
        } catch (const type& error) {                                                                                  \
            is_thrown = true;                                                                                          \
            if (std::string(error.what()).find(words) == std::string::npos)                                            \
                check::fail(__FILE__, __LINE__, std::string("'") + error.what() + "' does not say '" + words + "'");   \
        } catch (const std::exception& error) {                                                                        \
            check::fail(__FILE__, __LINE__, std::string(#type " expected, but: ") + error.what());                     \
        }                                                                                                              \
        if (!is_thrown) check::fail(__FILE__, __LINE__, #__VA_ARGS__ " does not throw " #type);                        \
    } while (false)
