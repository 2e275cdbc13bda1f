#include "engine.hpp"

#include <algorithm>
#include <random>
#include <utility>

#include "../core/topics.hpp"
#include "../wire/utf8.hpp"
#include "loop.hpp"

namespace polybus::detail {

namespace {

constexpr std::size_t max_error_bytes = 4'096;
// The broker tells how a request ended; this is for the case that it does not.
constexpr std::chrono::milliseconds grace{1'000};

Time now() { return std::chrono::steady_clock::now(); }

core::Bytes shared(std::string bytes) { return std::make_shared<const std::string>(std::move(bytes)); }

/// Text of an application's own that has to fit into a message: UTF-8, and not too long.
std::string presentable(std::string_view text) {
    text = text.substr(0, max_error_bytes);
    const std::size_t fault = wire::find_utf8_fault(text);
    return std::string(text.substr(0, fault));
}

std::uint32_t whole_seconds(std::chrono::milliseconds timeout) {
    return static_cast<std::uint32_t>(std::chrono::ceil<std::chrono::seconds>(timeout).count());
}

void check_options(const Options& options) {
    if (options.client_id.empty() || options.client_id.size() > 0xFFFF)
        throw UsageError("Options::client_id has " + std::to_string(options.client_id.size()) +
                         " bytes; it needs 1 to 65,535, and must differ from those of other clients");
    if (options.keep_alive.count() < 0 || options.keep_alive.count() > 0xFFFF)
        throw UsageError("Options::keep_alive is " + std::to_string(options.keep_alive.count()) +
                         " s; it may be 0 (never) to 65,535");
    if (options.reconnect.jitter < 0 || options.reconnect.jitter > 1)
        throw UsageError("Options::reconnect.jitter is a part of the delay, from 0 to 1");
    if (options.reconnect.factor < 1) throw UsageError("Options::reconnect.factor is at least 1");
    for (const std::string* text : {&options.client_id, &options.token, &options.user_name})
        if (wire::find_utf8_fault(*text) != std::string_view::npos)
            throw UsageError("client_id, token and user_name are UTF-8");
    if (options.client_id.find('\0') != std::string::npos) throw UsageError("Options::client_id contains U+0000");
}

/// Clean: nobody remembers our PacketIds. Otherwise start anywhere, away from those of the run before.
std::uint16_t last_packet_id(const Options& options) {
    if (options.clean_start) return 0;
    return static_cast<std::uint16_t>(std::random_device{}());
}

class AckWaiter final : public core::Acknowledgement {
public:
    void acknowledged(int code, std::string_view reason) override {
        const std::lock_guard lock(mutex_);
        code_ = code;
        reason_ = reason;
        done_.notify_all();
    }

    bool wait_until(Time deadline) {
        std::unique_lock lock(mutex_);
        return done_.wait_until(lock, deadline, [&] { return code_.has_value(); });
    }

    [[nodiscard]] int code() const { return *code_; }
    [[nodiscard]] const std::string& reason() const { return reason_; }

private:
    std::mutex mutex_;
    std::condition_variable done_;
    std::optional<int> code_;
    std::string reason_;
};

class FlushWaiter final : public core::Flush {
public:
    void flushed(Result result) override {
        const std::lock_guard lock(mutex_);
        result_ = result;
        done_.notify_all();
    }

    std::optional<Result> wait_until(Time deadline) {
        std::unique_lock lock(mutex_);
        done_.wait_until(lock, deadline, [&] { return result_.has_value(); });
        return result_;
    }

private:
    std::mutex mutex_;
    std::condition_variable done_;
    std::optional<Result> result_;
};

} // namespace

// -- requests --------------------------------------------------------------------------------------------

void RequestState::end(Outcome outcome) {
    if (callback) return engine_.run_callback(*this, std::move(outcome));
    const std::lock_guard lock(mutex_);
    outcome_ = std::move(outcome);
    done_.notify_all();
}

void RequestState::forgotten() {
    engine_.packet_ids.give_back(id);
    if (size_) engine_.request_budget.give_back(size_);
}

bool RequestState::is_done() const {
    const std::lock_guard lock(mutex_);
    return outcome_.has_value();
}

bool RequestState::wait_until(std::optional<Time> latest) const {
    std::unique_lock lock(mutex_);
    const auto is_over = [&] { return outcome_.has_value(); };
    if (latest) return done_.wait_until(lock, *latest, is_over);
    done_.wait(lock, is_over);
    return true;
}

Outcome RequestState::take() {
    const std::lock_guard lock(mutex_);
    return *outcome_;
}

// -- life ------------------------------------------------------------------------------------------------

Engine::Engine(Options options)
    : message_budget(options.buffer_bytes), request_budget(options.request_bytes), packet_ids(last_packet_id(options)),
      options_(std::move(options)) {
    check_options(options_);
}

void Engine::start() {
    const std::weak_ptr<Engine> weak = weak_from_this();
    if (options_.on_event) {
        // The function is copied: an event may be told when the engine is gone.
        events_ = std::make_shared<Worker<Event>>(1, [on_event = options_.on_event](Event& event) {
            try {
                on_event(event);
            } catch (...) { // there is nobody left to tell
            }
        });
    }
    callbacks_ = std::make_shared<Worker<Callback>>(1, [weak](Callback& callback) {
        try {
            callback.state->callback(std::move(callback.outcome));
        } catch (const std::exception& error) {
            if (const auto engine = weak.lock()) engine->tell(event::HandlerFailed{"", error.what()});
        } catch (...) {
            if (const auto engine = weak.lock()) engine->tell(event::HandlerFailed{"", "unknown exception"});
        }
    });
    auto loop = std::make_unique<Loop>(*this);
    io_thread_ = std::thread([self = shared_from_this(), loop = std::move(loop)] {
        self->io_thread_id_ = std::this_thread::get_id();
        loop->run();
    });
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return is_first_attempt_over_; });
    if (!first_error_) return;
    lock.unlock();
    shut_down();
    std::rethrow_exception(first_error_);
}

void Engine::first_attempt_ended(std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    is_first_attempt_over_ = true;
    first_error_ = std::move(error);
    changed_.notify_all();
}

void Engine::io_ended(const std::string& reason) {
    is_connected_ = false;
    message_budget.close();
    request_budget.close();
    packet_ids.close();
    const std::lock_guard lock(mutex_);
    is_io_over_ = true;
    closed_reason_ = reason;
    if (!is_first_attempt_over_) {
        is_first_attempt_over_ = true;
        first_error_ = std::make_exception_ptr(ConnectionFailed(reason));
    }
    changed_.notify_all();
}

void Engine::disconnect(int code, std::string_view reason) {
    if (code != 0 && code != 17 && code != 128 && code != 141)
        throw UsageError("disconnect: " + std::to_string(code) +
                         " is no reason of a DISCONNECT; 0 (normal), 17, 128 (error) and 141 are");
    if (wire::find_utf8_fault(reason) != std::string_view::npos)
        throw UsageError("disconnect: the reason is not UTF-8");
    mailbox.put(CloseCommand{code, std::string(reason)});
    if (is_io_thread()) return;
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return is_io_over_; });
}

void Engine::shut_down() noexcept {
    mailbox.put(CloseCommand{});
    if (io_thread_.joinable()) {
        if (is_io_thread())
            io_thread_.detach();
        else
            io_thread_.join();
    }
    std::vector<std::shared_ptr<WorkerBase>> workers;
    {
        const std::lock_guard lock(mutex_);
        for (const auto& weak : workers_)
            if (auto worker = weak.lock()) workers.push_back(std::move(worker));
    }
    for (const auto& worker : workers) worker->stop(true);
    // The I/O thread may be in the middle of an inline handler that destroys the client: it cannot wait for handlers
    // that may wait for it.
    if (!is_io_thread())
        for (const auto& worker : workers) worker->join();
    callbacks_->stop(false);
    if (!is_io_thread()) callbacks_->join();
    if (events_) {
        events_->stop(false);
        if (!is_io_thread()) events_->join();
    }
}

void Engine::watch(const std::shared_ptr<WorkerBase>& worker) {
    const std::lock_guard lock(mutex_);
    std::erase_if(workers_, [](const auto& weak) { return weak.expired(); });
    workers_.push_back(worker);
}

// -- what may go wrong -------------------------------------------------------------------------------------

std::string Engine::closed_reason() const {
    const std::lock_guard lock(mutex_);
    return closed_reason_.empty() ? "the client is closed" : closed_reason_;
}

void Engine::throw_closed() const { throw Closed(closed_reason()); }

void Engine::check(Granted granted, const char* what) const {
    if (granted == Granted::closed) throw_closed();
    if (granted == Granted::timeout) throw OperationTimeout(what);
}

void Engine::check_may_block(const char* what) const {
    if (is_io_thread())
        throw UsageError(std::string(what) +
                         " would wait for the I/O thread, and this is the I/O thread: do not ask for an inline handler "
                         "or callback here");
}

void Engine::put(Command command) {
    if (!mailbox.put(std::move(command), !is_io_thread())) throw_closed();
}

Time Engine::deadline_of(std::chrono::milliseconds timeout) const { return is_io_thread() ? now() : now() + timeout; }

void Engine::tell(Event event) {
    if (events_) events_->push(std::move(event));
}

// -- publishing and asking -----------------------------------------------------------------------------------

void Engine::publish(std::string_view topic, BytesView payload, const PublishOptions& options) {
    if (const char* fault = core::find_topic_fault(topic)) throw UsageError(std::string("publish: ") + fault);
    if (options.timeout.count() < 0 || options.timeout.count() > 0xFFFF'FFFF)
        throw UsageError("publish: a timeout is 0 to 4,294,967,295 s, not " + std::to_string(options.timeout.count()));
    wire::PublishView view;
    view.topic = topic;
    view.payload = payload.text();
    view.is_priority = options.priority;
    view.timeout_s = static_cast<std::uint32_t>(options.timeout.count());
    const std::size_t most = std::min(options_.packet_size_bytes, wire::max_varint);
    if (payload.size() + topic.size() + 16 > most)
        throw UsageError("publish: " + std::to_string(payload.size()) + " bytes do not fit into a message of " +
                         std::to_string(most) + " bytes (Options::packet_size_bytes)");
    auto bytes = shared(wire::encode_publish(view));
    check(message_budget.take(bytes->size(), deadline_of(options_.operation_timeout)),
          "publish: as much as Options::buffer_bytes allows waits to be sent already");
    put(PublishCommand{std::move(bytes), options.priority});
}

std::shared_ptr<RequestState> Engine::request(std::string_view topic, BytesView payload, const RequestOptions& options,
                                              CompletionHandler callback) {
    if (const char* fault = core::find_topic_fault(topic)) throw UsageError(std::string("request: ") + fault);
    if (options.timeout.count() <= 0 || options.timeout > std::chrono::seconds(0xFFFF'FFFF))
        throw UsageError("request: a timeout is more than 0 ms, not " + std::to_string(options.timeout.count()));
    const std::size_t most = std::min(options_.packet_size_bytes, wire::max_varint);
    if (payload.size() + topic.size() + 16 > most)
        throw UsageError("request: " + std::to_string(payload.size()) + " bytes do not fit into a message of " +
                         std::to_string(most) + " bytes (Options::packet_size_bytes)");
    const Time deadline = now() + options.timeout;
    const Time patience = deadline_of(options.timeout);
    const std::size_t size = payload.size() + topic.size() + 32;
    check(request_budget.take(size, patience), "request: Options::request_bytes are unfinished already");
    std::uint16_t id = 0;
    const Granted granted = packet_ids.take(id, patience);
    if (granted != Granted::yes) request_budget.give_back(size);
    check(granted, "request: 65,535 requests are unfinished, and no PacketId is free");

    auto state = std::make_shared<RequestState>(*this, size);
    state->id = id;
    state->is_priority = options.priority;
    state->callback = std::move(callback);
    state->is_inline = options.inline_callback;
    // A timeout that TBus cannot say in whole seconds is kept here.
    const bool is_whole = options.timeout % std::chrono::seconds(1) == std::chrono::milliseconds(0);
    state->deadline = is_whole && options.wait_for_service ? deadline + grace : deadline;
    wire::PublishView view;
    view.topic = topic;
    view.payload = payload.text();
    view.is_request = true;
    view.is_priority = options.priority;
    view.packet_id = id;
    view.timeout_s = options.wait_for_service ? whole_seconds(options.timeout) : 0;
    state->bytes = shared(wire::encode_publish(view));
    if (!mailbox.put(RequestCommand{state}, !is_io_thread())) {
        state->forgotten();
        throw_closed();
    }
    return state;
}

std::shared_ptr<RequestState> Engine::resume(std::uint16_t id, std::chrono::milliseconds timeout) {
    if (id == 0) throw UsageError("resume: 0 is no id of a request");
    if (!packet_ids.take_this(id))
        throw UsageError("resume: " + std::to_string(id) + " is the id of a request that this client is making itself");
    auto state = std::make_shared<RequestState>(*this, 0);
    state->id = id;
    state->deadline = now() + timeout;
    if (!mailbox.put(ResumeCommand{state})) {
        state->forgotten();
        throw_closed();
    }
    return state;
}

void Engine::cancel(std::uint16_t id) { put(CancelCommand{id}); }

void Engine::flush(std::chrono::milliseconds timeout) {
    check_may_block("flush");
    auto waiter = std::make_shared<FlushWaiter>();
    put(FlushCommand{waiter});
    const auto result = waiter->wait_until(now() + timeout);
    if (!result) throw OperationTimeout("flush: the broker has not read everything in time");
    if (*result == core::Flush::Result::closed) throw_closed();
    if (*result == core::Flush::Result::connection_lost)
        throw ConnectionLost("flush: the connection was lost before the broker confirmed what it had read");
}

// -- subscribing ---------------------------------------------------------------------------------------------

std::shared_ptr<Handling> Engine::subscribe(std::shared_ptr<Handling> handling) {
    check_may_block("subscribe");
    if (handling->filter.find('\0') != std::string::npos ||
        wire::find_utf8_fault(handling->filter) != std::string::npos)
        throw UsageError("subscribe: a filter is UTF-8 without U+0000");
    if (!handling->is_inline) {
        const std::size_t threads = std::max<std::size_t>(1, handling->concurrency.value_or(1));
        handling->worker = std::make_shared<Worker<Delivery>>(
            threads, [weak = weak_from_this(), weak_handling = std::weak_ptr(handling)](Delivery& delivery) {
                const auto alive = weak_handling.lock();
                if (const auto engine = weak.lock(); engine && alive) engine->handle(*alive, delivery);
            });
        watch(handling->worker);
    }
    auto waiter = std::make_shared<AckWaiter>();
    put(SubscribeCommand{handling, waiter});
    if (!waiter->wait_until(now() + options_.operation_timeout)) {
        end(handling, false);
        throw OperationTimeout("subscribe: the broker has not acknowledged '" + handling->filter + "' in time");
    }
    if (waiter->code() == core::SubscriptionBook::closed) throw_closed();
    if (waiter->code() != 0) {
        mailbox.put(EndCommand{handling, nullptr, true});
        throw SubscriptionRefused(waiter->code(), waiter->reason(), handling->filter);
    }
    return handling;
}

void Engine::end(const std::shared_ptr<Handling>& handling, bool waits) {
    if (waits) check_may_block("unsubscribe");
    auto waiter = waits ? std::make_shared<AckWaiter>() : nullptr;
    bool is_open = true;
    if (!handling->is_over.exchange(true) || waits) is_open = mailbox.put(EndCommand{handling, waiter});
    if (handling->worker) {
        handling->worker->stop(true);
        if (!is_io_thread()) handling->worker->join();
    } else {
        const std::lock_guard until_it_returned(handling->inline_guard);
    }
    if (!waits) return;
    if (!is_open) throw_closed();
    wait_for(waiter, handling->filter);
}

void Engine::wait_for(const core::SubscriptionBook::Waiter& waiter, const std::string& filter) {
    auto& ack = static_cast<AckWaiter&>(*waiter);
    if (!ack.wait_until(now() + options_.operation_timeout))
        throw OperationTimeout("unsubscribe: the broker has not acknowledged '" + filter + "' in time");
    if (ack.code() == core::SubscriptionBook::closed) throw_closed();
    if (ack.code() != 0) throw SubscriptionRefused(ack.code(), ack.reason(), filter);
}

void Engine::unsubscribe(std::string_view filter) {
    check_may_block("unsubscribe");
    if (filter.find('\0') != std::string_view::npos || wire::find_utf8_fault(filter) != std::string_view::npos)
        throw UsageError("unsubscribe: a filter is UTF-8 without U+0000");
    auto waiter = std::make_shared<AckWaiter>();
    put(UnsubscribeCommand{std::string(filter), waiter});
    wait_for(waiter, std::string(filter));
}

// -- handlers --------------------------------------------------------------------------------------------------

/// Runs a handler. What it returns or throws becomes the bytes of an answer or a REQACK 13 if it was a request.
core::Bytes Engine::run_handler(const Handling& handling, const Message& message, std::uint16_t packet_id) {
    std::string failure;
    try {
        const Bytes answer = handling.handler(message);
        if (!message.is_request) return {};
        if (answer.size() + message.requester.size() + 32 <= options_.packet_size_bytes) {
            wire::PublishView view;
            view.payload = answer.text();
            view.is_response = true;
            view.is_priority = message.priority;
            view.response_destination = message.requester;
            view.packet_id = packet_id;
            return shared(wire::encode_publish(view));
        }
        failure = "the answer has " + std::to_string(answer.size()) + " bytes, which is more than a message may have";
    } catch (const std::exception& error) {
        failure = error.what();
    } catch (...) {
        failure = "unknown exception";
    }
    tell(event::HandlerFailed{message.topic, failure});
    if (!message.is_request) return {};
    wire::ReqAck failed;
    failed.packet_id = packet_id;
    failed.state = wire::RequestState::error;
    failed.response_destination = message.requester;
    failed.reason_string = presentable(failure);
    return shared(wire::encode(failed));
}

void Engine::handle(Handling& handling, Delivery& delivery) {
    const std::shared_ptr<Hand>& hand = delivery.hand;
    core::Bytes bytes;
    if (!hand || !hand->stop.stop_requested())
        bytes = run_handler(handling, delivery.message, hand ? hand->packet_id : std::uint16_t{0});
    if (!hand) return;
    --handling.load;
    if (hand->stop.stop_requested()) bytes.reset(); // TB-10: a service that was told to stop says nothing
    mailbox.put(ReplyCommand{hand, std::move(bytes), delivery.message.priority});
}

void Engine::run_callback(RequestState& state, Outcome outcome) {
    auto shared_state = std::static_pointer_cast<RequestState>(state.shared_from_this());
    if (!state.is_inline) {
        callbacks_->push({std::move(shared_state), std::move(outcome)});
        return;
    }
    try {
        state.callback(std::move(outcome));
    } catch (const std::exception& error) {
        tell(event::HandlerFailed{"", error.what()});
    } catch (...) {
        tell(event::HandlerFailed{"", "unknown exception"});
    }
}

} // namespace polybus::detail
