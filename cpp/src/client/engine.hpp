#pragma once

/// What a Client, its subscriptions and its requests share: the I/O thread's mailbox, the limits, the threads.

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <polybus/client.hpp>

#include "handling.hpp"
#include "limits.hpp"
#include "mailbox.hpp"
#include "worker.hpp"

namespace polybus::detail {

/// A request as its owner sees it, and as the core does.
class RequestState final : public core::Request {
public:
    RequestState(Engine& engine, std::size_t size) : engine_(engine), size_(size) {}

    void end(Outcome outcome) override;
    void forgotten() override;

    [[nodiscard]] bool is_done() const;
    /// No time: as long as it takes.
    bool wait_until(std::optional<Time> latest) const;
    Outcome take();

    CompletionHandler callback;
    bool is_inline = false;

private:
    Engine& engine_; ///< only in `end` and `forgotten`, which the I/O thread calls
    std::size_t size_;
    mutable std::mutex mutex_;
    mutable std::condition_variable done_;
    std::optional<Outcome> outcome_;
};

class Engine : public std::enable_shared_from_this<Engine> {
public:
    explicit Engine(Options options);

    /// Starts the I/O thread and waits for the first connection. Throws what the Client's constructor throws.
    void start();
    /// Says goodbye and waits for the I/O thread's end, but not for handlers.
    void disconnect(int code, std::string_view reason);
    /// Disconnects, and waits for every thread that is not this one.
    void shut_down() noexcept;

    void publish(std::string_view topic, BytesView payload, const PublishOptions& options);
    std::shared_ptr<RequestState> request(std::string_view topic, BytesView payload, const RequestOptions& options,
                                          CompletionHandler callback);
    std::shared_ptr<RequestState> resume(std::uint16_t id, std::chrono::milliseconds timeout);
    void cancel(std::uint16_t id);
    std::shared_ptr<Handling> subscribe(std::shared_ptr<Handling> handling);
    void unsubscribe(std::string_view filter);
    /// Ends one subscription; with `waits`, when the broker said so.
    void end(const std::shared_ptr<Handling>& handling, bool waits);
    void flush(std::chrono::milliseconds timeout);

    /// Throws UsageError where waiting would hold up what is waited for.
    void check_may_block(const char* what) const;
    [[nodiscard]] bool is_io_thread() const { return std::this_thread::get_id() == io_thread_id_; }
    [[nodiscard]] bool is_connected() const { return is_connected_; }
    [[nodiscard]] const Options& options() const { return options_; }

    // -- for the I/O thread and the workers ----------------------------------------------------------
    void tell(Event event);
    core::Bytes run_handler(const Handling& handling, const Message& message, std::uint16_t packet_id);
    void handle(Handling& handling, Delivery& delivery);
    void run_callback(RequestState& state, Outcome outcome);
    void set_connected(bool is_connected) { is_connected_ = is_connected; }
    void first_attempt_ended(std::exception_ptr error);
    void io_ended(const std::string& reason);
    [[nodiscard]] std::string closed_reason() const;

    Mailbox mailbox;
    Budget message_budget;
    Budget request_budget;
    PacketIds packet_ids;

private:
    struct Callback {
        std::shared_ptr<RequestState> state;
        Outcome outcome;
    };

    void put(Command command);
    [[noreturn]] void throw_closed() const;
    void check(Granted granted, const char* what) const;
    void wait_for(const core::SubscriptionBook::Waiter& waiter, const std::string& filter);
    void watch(const std::shared_ptr<WorkerBase>& worker);
    Time deadline_of(std::chrono::milliseconds timeout) const;

    const Options options_;
    std::thread io_thread_;
    std::atomic<std::thread::id> io_thread_id_{};
    std::atomic<bool> is_connected_{false};

    mutable std::mutex mutex_;
    std::condition_variable changed_;
    bool is_first_attempt_over_ = false;
    std::exception_ptr first_error_;
    bool is_io_over_ = false;
    std::string closed_reason_;
    std::vector<std::weak_ptr<WorkerBase>> workers_;

    std::shared_ptr<Worker<Event>> events_;
    std::shared_ptr<Worker<Callback>> callbacks_;
};

} // namespace polybus::detail
