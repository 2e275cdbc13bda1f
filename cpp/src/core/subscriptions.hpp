#pragma once

/// What this client is subscribed to, or wants to be: made again after every reconnect, for TBus subscriptions end
/// with their connection.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "../wire/packets.hpp"

namespace polybus::core {

/// Waits for SUBACK or UNSUBACK. Called once; a negative code says that the client was closed.
class Acknowledgement {
public:
    virtual ~Acknowledgement() = default;
    virtual void acknowledged(int code, std::string_view reason) = 0;
};

class SubscriptionBook {
public:
    using Waiter = std::shared_ptr<Acknowledgement>;
    static constexpr int closed = -1;

    struct Lost {
        std::string filter;
        int code;
        std::string reason;
    };

    /// Remember a filter; what is returned is to be sent if there is a connection.
    wire::Subscribe want(std::string_view filter, std::optional<std::uint16_t> concurrency, Waiter waiter);
    /// Forget a filter. Without a connection there is nothing to send: the waiter is told at once.
    std::optional<wire::Unsubscribe> drop(std::string_view filter, Waiter waiter, bool is_connected);
    /// Everything again, for a new connection.
    std::vector<wire::Subscribe> renew();

    /// A subscription that nobody waits for and the broker refused, if this was one.
    std::optional<Lost> acknowledged(const wire::SubAck& packet);
    void acknowledged(const wire::UnsubAck& packet);
    /// What the broker had is gone; unsubscribing is done by that.
    void connection_lost();
    void close(std::string_view reason);

    [[nodiscard]] std::size_t size() const { return wanted_.size(); }

private:
    struct Wanted {
        std::optional<std::uint16_t> concurrency;
        std::vector<Waiter> waiters;
    };

    std::uint16_t new_id();

    std::map<std::string, Wanted, std::less<>> wanted_;
    std::unordered_map<std::uint16_t, std::string> subscribing_;
    std::unordered_map<std::uint16_t, Waiter> unsubscribing_;
    std::uint16_t last_id_ = 0;
};

} // namespace polybus::core
