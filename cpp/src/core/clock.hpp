#pragma once

/// Time is data: nothing in `core` reads a clock, callers pass `now`.

#include <chrono>
#include <optional>

namespace polybus::core {

using Time = std::chrono::steady_clock::time_point;
using Duration = std::chrono::steady_clock::duration;

inline void earliest(std::optional<Time>& so_far, std::optional<Time> other) {
    if (other && (!so_far || *other < *so_far)) so_far = other;
}

} // namespace polybus::core
