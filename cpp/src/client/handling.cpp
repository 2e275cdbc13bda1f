#include "handling.hpp"

#include <algorithm>

#include "../core/topics.hpp"

namespace polybus::detail {

void Directory::add(std::shared_ptr<Handling> handling) {
    handlings_.push_back(std::move(handling));
    cache_.clear();
}

void Directory::remove(const Handling& handling) {
    std::erase_if(handlings_, [&](const auto& known) { return known.get() == &handling; });
    cache_.clear();
}

Directory::List Directory::with_filter(std::string_view filter) const {
    List list;
    for (const auto& handling : handlings_)
        if (handling->filter == filter) list.push_back(handling);
    return list;
}

const Directory::List& Directory::find(std::string_view topic) {
    if (const auto found = cache_.find(topic); found != cache_.end()) return found->second;
    if (cache_.size() >= max_cached) cache_.clear();
    List list;
    for (const auto& handling : handlings_)
        if (core::matches(handling->filter, topic)) list.push_back(handling);
    return cache_.emplace(topic, std::move(list)).first->second;
}

std::uint16_t Directory::concurrency(std::string_view filter) const {
    std::size_t sum = 0;
    for (const auto& handling : handlings_)
        if (handling->filter == filter) sum += handling->concurrency.value_or(0);
    return static_cast<std::uint16_t>(std::min<std::size_t>(sum, 0xFFFF));
}

} // namespace polybus::detail
