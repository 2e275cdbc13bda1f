#pragma once

#include <string_view>

namespace polybus::core {

/// Does a topic match a filter? `#` at the end stands for the rest, `+` for one level; neither stands for a first
/// level that begins with `$`.
bool matches(std::string_view filter, std::string_view topic);

/// Why this cannot be the topic of a message, or nothing.
const char* find_topic_fault(std::string_view topic);

} // namespace polybus::core
