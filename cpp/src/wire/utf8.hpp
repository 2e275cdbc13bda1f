#pragma once

#include <cstddef>
#include <string_view>

namespace polybus::wire {

/// The first byte that cannot be UTF-8 (surrogates and longer forms than needed cannot), or npos.
std::size_t find_utf8_fault(std::string_view text);

} // namespace polybus::wire
