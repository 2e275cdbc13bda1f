#pragma once

/// What happens to a client by itself, told to `Options::on_event`.

#include <chrono>
#include <cstddef>
#include <string>
#include <variant>

namespace polybus {

namespace event {

/// The broker has said welcome. `resent` requests were sent again, `renewed` subscriptions were made again.
struct Connected {
    int attempt = 1;
    std::size_t resent = 0;
    std::size_t renewed = 0;
    std::string broker{};
};

/// The connection is gone. `code` is that of the broker's DISCONNECT, or 0 if there was none.
struct Disconnected {
    std::string reason{};
    int code = 0;
};

/// The next attempt comes after `delay`; `reason` is how the connection, or the attempt before, ended.
struct Reconnecting {
    int attempt = 1;
    std::chrono::milliseconds delay{};
    std::string broker{};
    std::string reason{};
};

/// It is over, and was not asked for: the client gave up. Every later call throws `polybus::Closed`.
struct Closed {
    std::string reason{};
};

/// A handler or callback let an exception escape. For a request, the requester is told as well.
struct HandlerFailed {
    std::string topic{};
    std::string what{};
};

/// A handler is too slow: `count` messages more did not fit into its queue.
struct MessagesDropped {
    std::string filter{};
    std::size_t count = 0;
};

/// The broker did not renew a subscription after a reconnect.
struct SubscriptionLost {
    std::string filter{};
    int code = 0;
    std::string reason{};
};

/// The broker broke the connection off while this message was being sent. It is not sent again.
struct MessageRefused {
    std::string topic{};
    std::size_t size_bytes = 0;
    std::string reason{};
};

} // namespace event

using Event =
    std::variant<event::Connected, event::Disconnected, event::Reconnecting, event::Closed, event::HandlerFailed,
                 event::MessagesDropped, event::SubscriptionLost, event::MessageRefused>;

/// A line for people.
std::string describe(const Event& event);

} // namespace polybus
