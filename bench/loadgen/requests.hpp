// The parts of `loadgen requests`.
#pragma once

#include "child.hpp"
#include "link.hpp"

namespace requests {

struct Plan {
    std::uint16_t port;
    std::uint16_t service_port;  // of the broker where the services are
    std::size_t pairs;
    double rate;  // a second and pair; 0: as many as the window allows
    std::size_t window;
    Bulking bulking;
    std::uint16_t concurrency;
    std::uint32_t timeout_s;
    int segment_bytes;
    double warmup_s;
    double seconds;
    std::size_t storm;
    std::uint16_t storm_port;
    std::vector<int> watch;

    tbus::Wish wish(const char* side, std::size_t index) const;
};

constexpr char TELL_TOTALS = 'T';
constexpr char BEGIN_STORM = 'B';

inline std::string topic_of(std::size_t pair) {
    char text[48];
    std::snprintf(text, sizeof text, "bench/requests/%04zu", pair);
    return text;
}

// Answers each request with its own payload. Says its totals when ready, and again when asked.
void serve(const Plan& plan, const Control& control);

struct StormReport {
    std::int64_t begin_ns = 0;
    std::int64_t end_ns = 0;  // when the last one had its answer, or patience ended
    std::size_t accepted = 0;
    std::size_t refused = 0;  // answered, but not with success, or closed without an answer
};

// Connects many clients at once when told to. Says an empty report when ready, then the real one.
void storm(const Plan& plan, const Control& control);

}  // namespace requests
