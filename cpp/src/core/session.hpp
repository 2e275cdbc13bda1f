#pragma once

/// The client's side of TBus as a state machine: bytes and `now` in; bytes, and calls on a listener, out. It knows
/// neither sockets nor clocks nor threads, and outlives connections.
///
///     down ── opened ──▶ greeting ── CONNACK 0 ──▶ up ── disconnect ──▶ leaving
///      ▲                    │                       │                      │
///      └──── connection_lost: the connection ended, or `ending()` says that it must ─────┘
///
/// After a reconnect, unfinished requests are sent again under their PacketIds, and the broker knows them again. What
/// they ended with meanwhile comes right behind the CONNACK (TB-08): a PINGREQ and its PINGRESP are waited for
/// first, so that a request that is answered already is not asked a second time.

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include <polybus/options.hpp>

#include "../wire/codec.hpp"
#include "clock.hpp"
#include "inbox.hpp"
#include "outbox.hpp"
#include "requests.hpp"
#include "subscriptions.hpp"

namespace polybus::core {

/// What arrives for the application. Called from within `receive`; everything in it may be called back.
class Listener {
public:
    virtual ~Listener() = default;
    virtual void on_connected(std::size_t resent, std::size_t renewed) = 0;
    virtual void on_message(const wire::PublishView& message) = 0;
    virtual void on_request(const wire::PublishView& request) = 0;
    /// The broker takes a request back that this service was given.
    virtual void on_withdrawn(std::string_view requester, std::uint16_t packet_id) = 0;
    virtual void on_subscription_lost(const std::string& filter, int code, const std::string& reason) = 0;
    virtual void on_message_refused(std::string_view topic, std::size_t size_bytes, const std::string& reason) = 0;
};

struct Settings {
    std::string client_id{};
    std::string token{};
    std::string user_name{};
    std::uint16_t keep_alive_s = 60;
    bool clean_start = true;
    Bulking bulking = Bulking::adaptive;
};

/// Why a connection has to end.
struct Ending {
    std::string reason;
    int code = 0;                           ///< of the broker's DISCONNECT; 0: it did not say anything
    std::optional<wire::ConnAck> refusal{}; ///< the broker did not let us in
};

/// Waits until the broker has read everything that was sent before.
class Flush {
public:
    virtual ~Flush() = default;
    enum class Result { done, connection_lost, closed };
    virtual void flushed(Result result) = 0;
};

class Session {
public:
    static constexpr std::uint32_t bulk_limit = 256 * 1024;
    static constexpr Duration ping_patience = std::chrono::seconds(5);
    static constexpr int max_breaks = 3;
    static constexpr Duration break_time = std::chrono::seconds(1);
    static constexpr std::size_t max_orphans = 1'000;

    Session(Settings settings, Listener& listener)
        : settings_(std::move(settings)), listener_(listener), outbox_(settings_.bulking) {}

    // -- the connection ------------------------------------------------------------------------------
    void opened(Time now);
    /// Bytes go to `inbox()` first.
    void receive(Time now);
    Inbox& inbox() { return inbox_; }
    /// How many bytes more the message at hand has; 0 if that is not known.
    [[nodiscard]] std::size_t wanted_bytes() const;
    Outbox& outbox() { return outbox_; }
    void written(std::size_t size, Time now);
    /// Set when the connection is to be closed.
    [[nodiscard]] const std::optional<Ending>& ending() const { return ending_; }
    void connection_lost(const std::string& reason, Time now);
    /// Messages go, DISCONNECT follows them.
    void disconnect(int code, std::string_view reason, Time now);
    /// DISCONNECT and all before it are written, or there is nobody to say it to.
    [[nodiscard]] bool has_left() const;
    /// Everybody who waits for something is told that it is over.
    void close(const std::string& reason);

    [[nodiscard]] bool is_up() const { return state_ == State::up; }
    /// Counts connections; what belongs to one carries its number.
    [[nodiscard]] std::uint64_t connection() const { return connection_; }

    [[nodiscard]] std::optional<Time> deadline() const;
    void tick(Time now);

    // -- what the application wants -------------------------------------------------------------------
    void publish(Bytes bytes, bool is_priority, Time now);
    void request(std::shared_ptr<Request> request, Time now);
    /// A request of an earlier run.
    void resume(std::shared_ptr<Request> request);
    void cancel(std::uint16_t id, Time now);
    /// An answer or a REQACK of a service, unless its connection is gone.
    void reply(Bytes bytes, bool is_priority, std::uint64_t connection, Time now);
    void subscribe(std::string_view filter, std::optional<std::uint16_t> concurrency, SubscriptionBook::Waiter waiter,
                   Time now);
    void unsubscribe(std::string_view filter, SubscriptionBook::Waiter waiter, Time now);
    void flush(std::shared_ptr<Flush> waiter, Time now);

private:
    enum class State { down, greeting, up, leaving };
    enum class Ping { keep_alive, resume, flush };
    struct PingPurpose {
        Ping kind;
        std::shared_ptr<Flush> waiter;
    };

    void handle(const wire::Frame& frame, bool is_in_bulk, Time now);
    void handle_publish(const wire::Frame& frame);
    void handle(const wire::ConnAck& packet, Time now);
    void handle(const wire::ReqAck& packet);
    void handle_pingresp(Time now);
    void fail(const std::string& reason, Time now);
    void end(Ending ending);

    void send(const wire::Packet& packet, Time now);
    void send_request(Request& request, Time now);
    void send_cancel(const Request& request, Time now);
    void send_ping(PingPurpose purpose, Lane lane, Time now);
    void send_again(Time now);
    void blame(const Ending& ending, Time now);
    void keep_orphan(Outcome outcome);

    Settings settings_;
    Listener& listener_;
    Outbox outbox_;
    Inbox inbox_;
    RequestBook requests_;
    SubscriptionBook subscriptions_;

    State state_ = State::down;
    std::optional<Ending> ending_;
    std::uint64_t connection_ = 0;
    bool was_up_ = false;
    bool is_resuming_ = false;
    bool is_leaving_said_ = false;
    std::size_t renewed_ = 0;

    std::uint32_t last_ping_ = 0;
    std::unordered_map<std::uint32_t, PingPurpose> pings_;
    std::deque<std::uint32_t> pings_in_flight_;
    bool is_pinging_ = false; ///< for keep alive
    std::optional<Time> next_ping_;
    std::optional<Time> ping_deadline_;

    // Ends of requests of an earlier run, until somebody asks for them; the oldest first.
    std::deque<Outcome> orphans_;
};

} // namespace polybus::core
