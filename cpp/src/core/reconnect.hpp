#pragma once

/// Where to connect next, and when. Other brokers that a full one names (CONNACK 131, TB-14) are tried at once, one
/// after the other; then it is the first one's turn again, after a growing delay.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <polybus/options.hpp>

#include "clock.hpp"

namespace polybus::core {

struct Address {
    std::string host;
    std::uint16_t port = 0;

    [[nodiscard]] std::string text() const;
    friend bool operator==(const Address&, const Address&) = default;
};

/// `ip:port;ip:port`; what is not understood is left out.
std::vector<Address> parse_server_reference(std::string_view text);

class Reconnect {
public:
    struct Attempt {
        int number = 1; ///< since the connection was lost
        std::chrono::milliseconds delay{0};
        Address address;
    };

    Reconnect(Backoff backoff, Address home) : backoff_(backoff), places_{std::move(home)} {}

    [[nodiscard]] const Address& current() const { return places_[place_]; }
    [[nodiscard]] int number() const { return number_; }
    /// A full broker named others.
    void learn(std::string_view server_reference);
    /// True if there is a place that was named and not tried yet: it is `current` now.
    bool go_on();
    void succeeded();
    /// The next attempt; nothing if it is time to give up. `random` is from 0 to 1.
    std::optional<Attempt> next(double random);

private:
    Backoff backoff_;
    std::vector<Address> places_; // home is the first
    std::size_t place_ = 0;
    int number_ = 1;
    int failures_ = 0;
};

} // namespace polybus::core
