#pragma once

/// The client of a Polybus broker, over TBus.
///
///     polybus::Client bus{{.client_id = "asker"}};
///     std::string answer = bus.request("triple", "14");
///
/// A client may be used from any number of threads. Handlers run in threads of the client: each subscription has a
/// queue of its own, so a slow handler holds up nobody else. Everything may be called from within handlers and
/// callbacks, also what blocks, except where a handler or callback was asked for inline.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <polybus/bytes.hpp>
#include <polybus/errors.hpp>
#include <polybus/events.hpp>
#include <polybus/message.hpp>
#include <polybus/options.hpp>

namespace polybus {

namespace detail {
class Engine;
class Handling;
class RequestState;
} // namespace detail

using MessageHandler = std::function<void(const Message&)>;
/// What it returns is the answer. An exception becomes the requester's ServiceError, with what().
using ServiceHandler = std::function<Bytes(const Message&)>;

/// How a request ended.
class Outcome {
public:
    enum class End { answered, timed_out, canceled, deleted, not_delivered, service_error, refused, closed };

    Outcome() = default;
    Outcome(End end, Bytes answer, std::string reason, std::uint16_t id)
        : end_(end), answer_(std::move(answer)), reason_(std::move(reason)), id_(id) {}

    [[nodiscard]] bool ok() const { return end_ == End::answered; }
    explicit operator bool() const { return ok(); }
    [[nodiscard]] End end() const { return end_; }
    [[nodiscard]] std::uint16_t id() const { return id_; }
    /// Why there is no answer, for people.
    [[nodiscard]] const std::string& reason() const { return reason_; }
    /// The answer. Throws the RequestFailed that belongs to `end()`, or Closed.
    [[nodiscard]] const Bytes& value() const&;
    [[nodiscard]] Bytes value() &&;

private:
    void check() const;

    End end_ = End::closed;
    Bytes answer_;
    std::string reason_;
    std::uint16_t id_ = 0;
};

using CompletionHandler = std::function<void(Outcome)>;

/// A request that is under way. Letting go of it does not cancel it.
class PendingRequest {
public:
    PendingRequest() = default;

    /// The PacketId: unique among the unfinished requests of this client.
    [[nodiscard]] std::uint16_t id() const;
    [[nodiscard]] bool is_done() const;
    /// True if it is done, false if the time passed.
    [[nodiscard]] bool wait_for(std::chrono::milliseconds time) const;
    /// Waits for the end. Throws as `Outcome::value` does.
    [[nodiscard]] Bytes get();
    /// Waits for the end, whatever it is.
    [[nodiscard]] Outcome outcome();
    /// Asks for its end as RequestCanceled; an answer that is on its way already wins.
    void cancel();

private:
    friend class Client;
    PendingRequest(std::shared_ptr<detail::RequestState> state, std::weak_ptr<detail::Engine> engine)
        : state_(std::move(state)), engine_(std::move(engine)) {}

    std::shared_ptr<detail::RequestState> state_;
    std::weak_ptr<detail::Engine> engine_;
};

/// A subscription or service. It ends when this goes out of scope: then its handler is not running, and will not
/// run again, unless it is the handler itself that lets go of it.
class Subscription {
public:
    Subscription() = default;
    Subscription(Subscription&&) noexcept = default;
    Subscription& operator=(Subscription&& other) noexcept;
    ~Subscription();

    [[nodiscard]] const std::string& filter() const;
    /// Messages that did not fit into the queue so far.
    [[nodiscard]] std::size_t dropped() const;
    /// Ends it now and waits for the broker's word. Throws SubscriptionRefused, OperationTimeout, Closed.
    void unsubscribe();
    /// Lets it live as long as the client.
    void release();

private:
    friend class Client;
    Subscription(std::shared_ptr<detail::Handling> handling, std::weak_ptr<detail::Engine> engine)
        : handling_(std::move(handling)), engine_(std::move(engine)) {}
    void end() noexcept;

    std::shared_ptr<detail::Handling> handling_;
    std::weak_ptr<detail::Engine> engine_;
};

class Client {
public:
    /// Connects. Throws ConnectionFailed, ConnectRefused, UsageError.
    explicit Client(Options options);
    Client(Client&&) noexcept = default;
    Client& operator=(Client&& other) noexcept;
    /// Disconnects: sends what was published before (`close_timeout`), ends unfinished requests with Closed and
    /// waits for handlers. Within a handler of its own it does not wait for that one.
    ~Client();

    /// Hands a message over to be sent. Waits only while `buffer_bytes` are waiting already; throws
    /// OperationTimeout if that lasts, UsageError for what cannot be sent, Closed.
    void publish(std::string_view topic, BytesView payload, PublishOptions options = {});

    /// Calls the handler for every message whose topic matches; requests are left to services.
    /// Throws SubscriptionRefused, OperationTimeout, Closed.
    [[nodiscard]] Subscription subscribe(std::string_view filter, MessageHandler handler,
                                         SubscribeOptions options = {});

    /// Offers a service. Messages (not requests) that match come to the handler too; then its result is ignored.
    [[nodiscard]] Subscription serve(std::string_view filter, ServiceHandler handler, ServeOptions options = {});

    /// Takes a filter back at the broker and ends every subscription to it here. A filter nobody subscribed to
    /// throws SubscriptionRefused 17, as the broker says.
    void unsubscribe(std::string_view filter);

    /// Asks, and waits for the answer. Throws RequestFailed's children, UsageError, Closed.
    [[nodiscard]] Bytes request(std::string_view topic, BytesView payload, RequestOptions options = {});
    /// Asks, and goes on. Waits only if 65,535 requests or `request_bytes` are unfinished.
    [[nodiscard]] PendingRequest request_async(std::string_view topic, BytesView payload, RequestOptions options = {});
    /// Asks, and calls back when it ended. Returns its id, for `cancel`.
    std::uint16_t request_async(std::string_view topic, BytesView payload, RequestOptions options,
                                CompletionHandler callback);
    /// A request of an earlier run under this client id (`clean_start = false`), by its id (TB-08).
    [[nodiscard]] PendingRequest resume(std::uint16_t id, std::chrono::milliseconds timeout);
    /// Asks for the end of a request as RequestCanceled. One that is not under way is left alone.
    void cancel(std::uint16_t id);

    /// Returns when the broker has read everything that was published before. Throws ConnectionLost if the
    /// connection broke meanwhile, OperationTimeout, Closed.
    void flush(std::chrono::milliseconds timeout = std::chrono::seconds(30));

    [[nodiscard]] bool is_connected() const;
    [[nodiscard]] const std::string& client_id() const;

    /// Says goodbye, with a reason for the broker's log, and ends the client. `code` is one of 0, 17, 128, 141.
    void disconnect(int code = 0, std::string_view reason = {});

private:
    std::shared_ptr<detail::Engine> engine_;
};

} // namespace polybus
