// The public face: everything is handed on to the engine.

#include <polybus/client.hpp>

#include <utility>

#include "engine.hpp"

namespace polybus {

// -- Outcome -------------------------------------------------------------------------------------------------

void Outcome::check() const {
    switch (end_) {
    case End::answered: return;
    case End::timed_out: throw RequestTimeout(reason_, id_);
    case End::canceled: throw RequestCanceled(reason_, id_);
    case End::deleted: throw RequestDeleted(reason_, id_);
    case End::not_delivered: throw NotDelivered(reason_, id_);
    case End::service_error: throw ServiceError(reason_, id_);
    case End::refused: throw RequestRefused(reason_, id_);
    case End::closed: throw Closed(reason_);
    }
}

const Bytes& Outcome::value() const& {
    check();
    return answer_;
}

Bytes Outcome::value() && {
    check();
    return std::move(answer_);
}

// -- PendingRequest --------------------------------------------------------------------------------------------

namespace {

detail::RequestState& checked(const std::shared_ptr<detail::RequestState>& state) {
    if (!state) throw UsageError("this PendingRequest belongs to no request");
    return *state;
}

} // namespace

std::uint16_t PendingRequest::id() const { return checked(state_).id; }

bool PendingRequest::is_done() const { return checked(state_).is_done(); }

bool PendingRequest::wait_for(std::chrono::milliseconds time) const {
    const detail::RequestState& state = checked(state_);
    if (const auto engine = engine_.lock(); engine && !state.is_done()) engine->check_may_block("wait_for");
    return state.wait_until(std::chrono::steady_clock::now() + time);
}

Outcome PendingRequest::outcome() {
    detail::RequestState& state = checked(state_);
    if (const auto engine = engine_.lock(); engine && !state.is_done()) engine->check_may_block("get");
    state.wait_until({});
    return state.take();
}

Bytes PendingRequest::get() { return outcome().value(); }

void PendingRequest::cancel() {
    const detail::RequestState& state = checked(state_);
    if (const auto engine = engine_.lock(); engine && !state.is_done()) engine->cancel(state.id);
}

// -- Subscription ------------------------------------------------------------------------------------------------

Subscription& Subscription::operator=(Subscription&& other) noexcept {
    if (this != &other) {
        end();
        handling_ = std::move(other.handling_);
        engine_ = std::move(other.engine_);
    }
    return *this;
}

Subscription::~Subscription() { end(); }

void Subscription::end() noexcept {
    const auto handling = std::exchange(handling_, nullptr);
    if (!handling) return;
    try {
        if (const auto engine = engine_.lock()) engine->end(handling, false);
    } catch (...) { // the client is closed, and with it the subscription
    }
}

const std::string& Subscription::filter() const {
    if (!handling_) throw UsageError("this Subscription has ended");
    return handling_->filter;
}

std::size_t Subscription::dropped() const { return handling_ ? handling_->dropped.load() : 0; }

void Subscription::unsubscribe() {
    const auto handling = std::exchange(handling_, nullptr);
    if (!handling) throw UsageError("this Subscription has ended");
    const auto engine = engine_.lock();
    if (!engine) throw Closed("the client is closed");
    engine->end(handling, true);
}

void Subscription::release() { handling_.reset(); }

// -- Client ----------------------------------------------------------------------------------------------------

Client::Client(Options options) : engine_(std::make_shared<detail::Engine>(std::move(options))) { engine_->start(); }

Client& Client::operator=(Client&& other) noexcept {
    if (this != &other) {
        if (engine_) engine_->shut_down();
        engine_ = std::move(other.engine_);
    }
    return *this;
}

Client::~Client() {
    if (engine_) engine_->shut_down();
}

void Client::publish(std::string_view topic, BytesView payload, PublishOptions options) {
    engine_->publish(topic, payload, options);
}

Subscription Client::subscribe(std::string_view filter, MessageHandler handler, SubscribeOptions options) {
    if (!handler) throw UsageError("subscribe: the handler is empty");
    auto adapted = [handler = std::move(handler)](const Message& message) {
        handler(message);
        return Bytes();
    };
    return {engine_->subscribe(std::make_shared<detail::Handling>(std::string(filter), std::move(adapted), std::nullopt,
                                                                  options.queue_size, options.inline_handler)),
            engine_};
}

Subscription Client::serve(std::string_view filter, ServiceHandler handler, ServeOptions options) {
    if (!handler) throw UsageError("serve: the handler is empty");
    if (options.concurrency == 0) throw UsageError("serve: concurrency is at least 1; subscribe() takes messages only");
    return {engine_->subscribe(std::make_shared<detail::Handling>(std::string(filter), std::move(handler),
                                                                  options.concurrency, options.queue_size,
                                                                  options.inline_handler)),
            engine_};
}

void Client::unsubscribe(std::string_view filter) { engine_->unsubscribe(filter); }

Bytes Client::request(std::string_view topic, BytesView payload, RequestOptions options) {
    engine_->check_may_block("request");
    return request_async(topic, payload, options).get();
}

PendingRequest Client::request_async(std::string_view topic, BytesView payload, RequestOptions options) {
    return {engine_->request(topic, payload, options, nullptr), engine_};
}

std::uint16_t Client::request_async(std::string_view topic, BytesView payload, RequestOptions options,
                                    CompletionHandler callback) {
    if (!callback) throw UsageError("request_async: the callback is empty");
    return engine_->request(topic, payload, options, std::move(callback))->id;
}

PendingRequest Client::resume(std::uint16_t id, std::chrono::milliseconds timeout) {
    return {engine_->resume(id, timeout), engine_};
}

void Client::cancel(std::uint16_t id) { engine_->cancel(id); }

void Client::flush(std::chrono::milliseconds timeout) { engine_->flush(timeout); }

bool Client::is_connected() const { return engine_->is_connected(); }

const std::string& Client::client_id() const { return engine_->options().client_id; }

void Client::disconnect(int code, std::string_view reason) { engine_->disconnect(code, reason); }

} // namespace polybus
