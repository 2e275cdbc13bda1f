#pragma once

/// What may be chosen, all with defaults: `polybus::Options{.client_id = "asker", .port = 5035}`.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include <polybus/events.hpp>

namespace polybus {

/// How messages that go out are put together (TB-12).
enum class Bulking {
    adaptive, ///< what is ready together goes together; more gathers only while the socket takes nothing
    fixed,    ///< as the document does: when messages come fast, gather them for 50 ms
    off,      ///< every message by itself, and none of the broker's BULKs either
};

/// Encrypted connections. Needs a library built with OpenSSL.
struct Tls {
    std::string ca_file{};   ///< whom to trust; empty: the system's authorities
    std::string cert_file{}; ///< who we are, if the broker asks for that
    std::string key_file{};
    std::string server_name{}; ///< the name in the broker's certificate, if it is not the host
    bool insecure = false;     ///< trust anyone
};

/// How to come back after the connection was lost: the n-th delay is initial·factorⁿ, at most `max`, and up to
/// `jitter` of it less, so that a thousand clients do not come back in the same instant.
struct Backoff {
    std::chrono::milliseconds initial{100};
    std::chrono::milliseconds max{30'000};
    double factor = 2.0;
    double jitter = 0.5;
    /// How often in a row: then the client gives up. No value: for ever. 0: the first loss is the end.
    std::optional<int> attempts{};
};

struct Options {
    std::string client_id{};
    std::string host{"127.0.0.1"};
    std::uint16_t port = 5035;
    std::string token{};     ///< a password or token, if the broker asks for one
    std::string user_name{}; ///< beside the token
    std::optional<Tls> tls{};
    /// The client pings at half of this time, and takes a broker that says nothing for 5 s more as gone. 0: never.
    std::chrono::seconds keep_alive{60};
    /// Forget what an earlier run under this client id left: its unfinished requests and its answers. Without it,
    /// `Client::resume` finds them. Reconnects never forget.
    bool clean_start = true;
    Bulking bulking = Bulking::adaptive;
    Backoff reconnect{};
    std::chrono::milliseconds connect_timeout{5'000};
    /// How long subscribe and unsubscribe wait for the broker, and publish for room.
    std::chrono::milliseconds operation_timeout{5'000};
    /// How long disconnect() and the destructor go on sending what was published before.
    std::chrono::milliseconds close_timeout{5'000};
    /// What may wait to be sent; when it is full, publish waits. One message always fits.
    std::size_t buffer_bytes = 64 * 1024 * 1024;
    /// What unfinished requests may take, since they may have to be sent again; then request waits.
    std::size_t request_bytes = 256 * 1024 * 1024;
    /// The largest message the broker takes, if you know it: a larger one is refused here at once.
    std::size_t packet_size_bytes = 268'435'455;
    /// Called from a thread of its own, one event after the other.
    std::function<void(const Event&)> on_event{};
};

struct PublishOptions {
    bool priority = false;
    /// How long the message may wait at the broker for its first subscriber, in whole seconds. 0: not at all.
    std::chrono::seconds timeout{0};
};

struct RequestOptions {
    bool priority = false;
    /// How long the whole request may take.
    std::chrono::milliseconds timeout{5'000};
    /// May it wait for a service to appear? If not and there is none, it ends at once with NotDelivered.
    bool wait_for_service = true;
    /// Run the completion callback on the I/O thread: fastest, but it must be short and may not block.
    bool inline_callback = false;
};

struct SubscribeOptions {
    /// Messages that may wait for the handler; those that come when it is full are dropped, and an event says so.
    std::size_t queue_size = 1'000;
    /// Run the handler on the I/O thread: fastest, but it must be short and may not block.
    bool inline_handler = false;
};

struct ServeOptions {
    /// How many requests the handler works on at the same time, each in a thread of its own; with
    /// `inline_handler`, how many the broker may send ahead.
    std::uint16_t concurrency = 1;
    std::size_t queue_size = 1'000;
    bool inline_handler = false;
};

} // namespace polybus
