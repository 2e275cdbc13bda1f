#include "reconnect.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace polybus::core {

std::string Address::text() const {
    return host.find(':') == std::string::npos ? host + ":" + std::to_string(port)
                                               : "[" + host + "]:" + std::to_string(port);
}

std::vector<Address> parse_server_reference(std::string_view text) {
    std::vector<Address> list;
    while (!text.empty()) {
        const std::string_view one = text.substr(0, text.find(';'));
        text.remove_prefix(std::min(text.size(), one.size() + 1));
        const std::size_t colon = one.rfind(':');
        if (colon == std::string_view::npos || colon == 0) continue;
        std::string_view host = one.substr(0, colon);
        if (host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
        std::uint16_t port = 0;
        const char* end = one.data() + one.size();
        const auto [stop, fault] = std::from_chars(one.data() + colon + 1, end, port);
        if (fault == std::errc{} && stop == end && port && !host.empty()) list.push_back({std::string(host), port});
    }
    return list;
}

void Reconnect::learn(std::string_view server_reference) {
    for (Address& address : parse_server_reference(server_reference))
        if (std::find(places_.begin(), places_.end(), address) == places_.end()) places_.push_back(std::move(address));
}

bool Reconnect::go_on() {
    if (place_ + 1 >= places_.size()) return false;
    ++place_;
    ++number_;
    return true;
}

void Reconnect::succeeded() {
    number_ = 0;
    failures_ = 0;
}

std::optional<Reconnect::Attempt> Reconnect::next(double random) {
    if (backoff_.attempts && failures_ >= *backoff_.attempts) return {};
    const double longest = static_cast<double>(backoff_.max.count());
    const double base = static_cast<double>(backoff_.initial.count()) * std::pow(backoff_.factor, failures_);
    const double delay = std::min(base, longest) * (1.0 - backoff_.jitter * random);
    // Where we were is the best guess at first; then begin at home again.
    if (failures_++ > 0) {
        place_ = 0;
        places_.resize(1);
    }
    ++number_;
    return Attempt{number_, std::chrono::milliseconds(static_cast<std::int64_t>(delay)), current()};
}

} // namespace polybus::core
