#include "loop.hpp"

#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <utility>

#include <polybus/errors.hpp>

namespace polybus::detail {

namespace {

constexpr std::size_t read_bytes = 64 * 1024;
constexpr std::size_t most_read_bytes = 4 * 1024 * 1024;
constexpr int reads_a_turn = 8; // then what was read is answered first
constexpr core::Duration farewell = std::chrono::seconds(1);

core::Settings settings_of(const Options& options) {
    return {options.client_id,   options.token,
            options.user_name,   static_cast<std::uint16_t>(options.keep_alive.count()),
            options.clean_start, options.bulking};
}

std::string hand_key(std::string_view requester, std::uint16_t packet_id) {
    std::string key(requester);
    key.push_back(static_cast<char>(packet_id >> 8));
    key.push_back(static_cast<char>(packet_id & 0xff));
    return key;
}

Time clock_now() { return std::chrono::steady_clock::now(); }

/// TLS writes without MSG_NOSIGNAL; a signal that this thread does not take ends nobody.
void block_sigpipe() {
    sigset_t set;
    ::sigemptyset(&set);
    ::sigaddset(&set, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

} // namespace

Loop::Loop(Engine& engine)
    : engine_(engine), session_(settings_of(engine.options()), *this),
      reconnect_(engine.options().reconnect, {engine.options().host, engine.options().port}),
      random_(std::random_device{}()) {
    if (engine.options().tls) tls_ = net::make_tls_context(*engine.options().tls);
}

void Loop::run() {
    block_sigpipe();
    try {
        open_link(clock_now());
        while (!is_over_) {
            now_ = clock_now();
            obey_commands(now_);
            session_.tick(now_);
            if (phase_ == waiting && !closing_ && now_ >= phase_deadline_) open_link(now_);
            if (phase_ == connecting) advance_link(now_);
            if (phase_ == talking) write_out(now_);
            check_ending(now_);
            if (phase_ != waiting && phase_ != draining && !session_.is_up() && !closing_ && now_ >= phase_deadline_)
                give_up_waiting(now_);
            check_leaving(now_);
            report_dropped();
            if (!is_over_) wait(now_);
        }
    } catch (const std::exception& error) { // nothing here throws unless memory is short
        over_reason_ = std::string("the client ended: ") + error.what();
    }
    finish(over_reason_);
}

// -- connecting ------------------------------------------------------------------------------------------------

void Loop::open_link(Time now) {
    phase_ = connecting;
    phase_deadline_ = now + engine_.options().connect_timeout;
    is_write_broken_ = false;
    const core::Address& address = reconnect_.current();
    link_ = std::make_unique<net::Link>(address.host, address.port, tls_.get());
}

void Loop::advance_link(Time now) {
    const net::Io io = link_->advance();
    if (io.status == net::Io::Status::failed) {
        const std::string text = reconnect_.current().text() + ": " + io.text;
        attempt_failed(std::make_exception_ptr(ConnectionFailed(text)), text, false, now);
    } else if (link_->is_open()) {
        phase_ = talking;
        session_.opened(now);
    }
}

void Loop::attempt_failed(std::exception_ptr error, const std::string& reason, bool is_final, Time now) {
    link_.reset();
    phase_ = waiting;
    session_.connection_lost(reason, now);
    if (!is_final && reconnect_.go_on()) return open_link(now);
    if (is_first_) {
        engine_.first_attempt_ended(std::move(error));
        over_reason_ = reason;
        is_over_ = true;
    } else if (is_final) {
        engine_.tell(event::Closed{reason});
        over_reason_ = reason;
        is_over_ = true;
    } else {
        schedule_reconnect(reason, now);
    }
}

void Loop::give_up_waiting(Time now) {
    const std::string text = reconnect_.current().text() + (phase_ == connecting ? ": not connected" : ": no CONNACK") +
                             " within the connect_timeout";
    attempt_failed(std::make_exception_ptr(ConnectionFailed(text)), text, false, now);
}

void Loop::refused(const wire::ConnAck& refusal, Time now) {
    using enum wire::ConnectReason;
    const std::string reason = refusal.reason_string.value_or("");
    const std::string reference = refusal.server_reference.value_or("");
    const ConnectRefused error(static_cast<int>(refusal.reason), reason, reference);
    if (refusal.reason == client_limit_reached) reconnect_.learn(reference);
    // Our id may still belong to the connection that broke, a full broker may get room; but who is not authorized
    // now will not be in a minute.
    const bool is_final = refusal.reason == malformed || refusal.reason == not_authorized;
    attempt_failed(std::make_exception_ptr(error), error.what(), is_final, now);
}

void Loop::schedule_reconnect(const std::string& reason, Time now) {
    const double random = static_cast<double>(random_()) / static_cast<double>(std::minstd_rand::max());
    const auto attempt = reconnect_.next(random);
    if (!attempt) {
        over_reason_ = "gave up reconnecting: " + reason;
        engine_.tell(event::Closed{over_reason_});
        is_over_ = true;
        return;
    }
    phase_ = waiting;
    phase_deadline_ = now + attempt->delay;
    engine_.tell(event::Reconnecting{attempt->number, attempt->delay, attempt->address.text(), reason});
}

void Loop::lost(const std::string& reason, Time now) {
    if (!session_.is_up() && !closing_) {
        const std::string text = reconnect_.current().text() + ": " + reason;
        return attempt_failed(std::make_exception_ptr(ConnectionFailed(text)), text, false, now);
    }
    const int code = session_.ending() ? session_.ending()->code : 0;
    session_.connection_lost(reason, now);
    link_.reset();
    phase_ = waiting;
    engine_.set_connected(false);
    withdraw_all();
    engine_.message_budget.give_back(session_.outbox().take_released());
    engine_.tell(event::Disconnected{reason, code});
    if (!closing_) schedule_reconnect(reason, now);
}

void Loop::check_ending(Time now) {
    if (!session_.ending() || phase_ != talking) return;
    const core::Ending ending = *session_.ending();
    if (ending.refusal) return refused(*ending.refusal, now);
    write_out(now); // our own DISCONNECT, if the fault was the broker's
    if (phase_ == talking) lost(ending.reason, now);
}

// -- leaving -----------------------------------------------------------------------------------------------------

void Loop::check_leaving(Time now) {
    if (!closing_ || is_over_) return;
    const bool is_talking = phase_ == talking && link_;
    if (phase_ != draining && is_talking && !session_.has_left() && now < *close_deadline_) return;
    if (phase_ == talking && session_.has_left() && now < *close_deadline_) {
        // Closing with bytes unread would throw away what the broker has not read yet.
        link_->finish_writing();
        phase_ = draining;
        phase_deadline_ = std::min(now + farewell, *close_deadline_);
        return;
    }
    if (phase_ == draining && now < phase_deadline_) return;
    over_reason_ = "the client is closed";
    is_over_ = true;
}

void Loop::finish(const std::string& reason) {
    link_.reset();
    withdraw_all();
    for (Command& command : engine_.mailbox.close()) {
        if (const auto* request = std::get_if<RequestCommand>(&command)) session_.request(request->request, now_);
        if (const auto* resume = std::get_if<ResumeCommand>(&command)) session_.resume(resume->request);
        if (const auto* subscribe = std::get_if<SubscribeCommand>(&command))
            subscribe->waiter->acknowledged(core::SubscriptionBook::closed, reason);
        if (const auto* end = std::get_if<EndCommand>(&command); end && end->waiter)
            end->waiter->acknowledged(core::SubscriptionBook::closed, reason);
        if (const auto* unsubscribe = std::get_if<UnsubscribeCommand>(&command))
            unsubscribe->waiter->acknowledged(core::SubscriptionBook::closed, reason);
        if (const auto* flush = std::get_if<FlushCommand>(&command))
            flush->waiter->flushed(core::Flush::Result::closed);
    }
    session_.close(reason);
    engine_.io_ended(reason);
}

// -- bytes -------------------------------------------------------------------------------------------------------

void Loop::read_in(Time now) {
    for (int turn = 0; turn < reads_a_turn; ++turn) {
        const std::size_t wanted = std::clamp(session_.wanted_bytes(), read_bytes, most_read_bytes);
        const std::span<char> space = session_.inbox().space(wanted);
        const net::Io io = link_->read(space);
        if (io.status == net::Io::Status::again) return;
        if (io.status != net::Io::Status::ok) {
            if (phase_ == draining) {
                phase_deadline_ = now;
                return;
            }
            return lost(io.text, now);
        }
        if (phase_ == draining) continue; // nobody listens any more
        session_.inbox().filled(io.size);
        session_.receive(now);
        if (session_.ending()) return check_ending(now);
        if (io.size < space.size() && !link_->has_buffered()) return;
    }
}

void Loop::write_out(Time now) {
    core::Outbox& outbox = session_.outbox();
    while (!is_write_broken_ && outbox.fill(now)) {
        const net::Io io = link_->write(outbox.pending());
        if (io.status == net::Io::Status::again) break;
        if (io.status != net::Io::Status::ok) {
            is_write_broken_ = true;
            read_in(now); // the broker may have said why
            if (link_ && phase_ == talking && !session_.ending()) lost(io.text, now);
            break;
        }
        session_.written(io.size, now);
    }
    if (const std::size_t released = outbox.take_released()) engine_.message_budget.give_back(released);
}

void Loop::wait(Time now) {
    std::optional<Time> deadline = session_.deadline();
    if (phase_ == waiting || phase_ == draining || !session_.is_up()) core::earliest(deadline, phase_deadline_);
    core::earliest(deadline, close_deadline_);
    int timeout_ms = -1;
    if (deadline) {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline - now).count();
        timeout_ms = static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000));
    }
    // Inline handlers put commands into the mailbox without a byte in the pipe.
    if ((link_ && link_->has_buffered()) || !engine_.mailbox.is_empty()) timeout_ms = 0;
    pollfd files[2] = {{engine_.mailbox.wake_descriptor(), POLLIN, 0}, {-1, 0, 0}};
    if (link_) files[1] = {link_->descriptor(), link_->poll_events(!session_.outbox().pending().empty()), 0};
    ::poll(files, 2, timeout_ms);
    if (files[0].revents) engine_.mailbox.drain_pipe();
    if (!link_ || (phase_ != talking && phase_ != draining)) return;
    if (files[1].revents & (POLLIN | POLLERR | POLLHUP) || link_->has_buffered()) {
        now_ = clock_now();
        read_in(now_);
    }
}

// -- commands ------------------------------------------------------------------------------------------------------

void Loop::obey_commands(Time now) {
    engine_.mailbox.take(commands_);
    for (Command& command : commands_) std::visit([&](auto& which) { obey(which, now); }, command);
}

void Loop::obey(PublishCommand& command, Time now) {
    session_.publish(std::move(command.bytes), command.is_priority, now);
}

void Loop::obey(RequestCommand& command, Time now) { session_.request(std::move(command.request), now); }

void Loop::obey(ResumeCommand& command, Time) { session_.resume(std::move(command.request)); }

void Loop::obey(CancelCommand& command, Time now) { session_.cancel(command.id, now); }

void Loop::obey(ReplyCommand& command, Time) {
    const auto found = hands_.find(hand_key(command.hand->requester, command.hand->packet_id));
    if (found != hands_.end() && found->second == command.hand) hands_.erase(found);
    if (command.bytes) reply(*command.hand, std::move(command.bytes), command.is_priority);
}

void Loop::reply(const Hand& hand, core::Bytes bytes, bool is_priority) {
    session_.reply(std::move(bytes), is_priority, hand.connection, now_);
}

void Loop::obey(SubscribeCommand& command, Time now) {
    directory_.add(command.handling);
    const std::string& filter = command.handling->filter;
    session_.subscribe(filter, directory_.concurrency(filter), std::move(command.waiter), now);
}

void Loop::obey(EndCommand& command, Time now) {
    const Handling& handling = *command.handling;
    directory_.remove(handling);
    for (const auto& [key, hand] : hands_)
        if (hand->handling == &handling) hand->stop.request_stop();
    if (command.is_refused) return;
    if (directory_.with_filter(handling.filter).empty())
        session_.unsubscribe(handling.filter, std::move(command.waiter), now);
    else // others are left
        session_.subscribe(handling.filter, directory_.concurrency(handling.filter), std::move(command.waiter), now);
}

void Loop::obey(UnsubscribeCommand& command, Time now) {
    for (const auto& handling : directory_.with_filter(command.filter)) {
        handling->is_over = true;
        if (handling->worker) handling->worker->stop(true);
        directory_.remove(*handling);
        for (const auto& [key, hand] : hands_)
            if (hand->handling == handling.get()) hand->stop.request_stop();
    }
    session_.unsubscribe(command.filter, std::move(command.waiter), now);
}

void Loop::obey(FlushCommand& command, Time now) { session_.flush(std::move(command.waiter), now); }

void Loop::obey(CloseCommand& command, Time now) {
    if (closing_) return;
    closing_ = std::move(command);
    close_deadline_ = now + engine_.options().close_timeout;
    withdraw_all();
    session_.disconnect(closing_->code, closing_->reason, now);
}

// -- what arrives ----------------------------------------------------------------------------------------------------

void Loop::on_connected(std::size_t resent, std::size_t renewed) {
    const int attempt = reconnect_.number();
    engine_.set_connected(true);
    engine_.tell(event::Connected{attempt, resent, renewed, reconnect_.current().text()});
    reconnect_.succeeded();
    if (std::exchange(is_first_, false)) engine_.first_attempt_ended(nullptr);
}

void Loop::on_message(const wire::PublishView& message) {
    if (closing_) return;
    const Directory::List& list = directory_.find(message.topic);
    if (list.size() == 1) return deliver(std::shared_ptr(list.front()), message);
    for (const auto& handling : Directory::List(list)) deliver(handling, message);
}

void Loop::deliver(const std::shared_ptr<Handling>& handling, const wire::PublishView& message) {
    if (handling->is_inline) return deliver_inline(*handling, message);
    if (handling->worker->waiting() >= handling->queue_size) {
        ++handling->dropped;
        ++dropped_[handling->filter];
        return;
    }
    Delivery delivery;
    delivery.message.topic = message.topic;
    delivery.message.payload.assign(message.payload);
    delivery.message.priority = message.is_priority;
    handling->worker->push(std::move(delivery));
}

void Loop::on_request(const wire::PublishView& request) {
    if (closing_) return;
    std::shared_ptr<Handling> chosen;
    for (const auto& handling : directory_.find(request.topic))
        if (handling->concurrency && !handling->is_over && (!chosen || handling->load < chosen->load))
            chosen = handling;
    if (chosen && chosen->is_inline) return deliver_inline(*chosen, request);

    auto hand = std::make_shared<Hand>();
    hand->requester = request.response_destination;
    hand->packet_id = request.packet_id;
    hand->connection = session_.connection();
    const char* fault = !chosen ? "the service has ended"
                        : chosen->load > std::size_t{*chosen->concurrency} + chosen->queue_size ? "the service is full"
                                                                                                : nullptr;
    if (fault) {
        wire::ReqAck failed;
        failed.packet_id = request.packet_id;
        failed.state = wire::RequestState::error;
        failed.response_destination = hand->requester;
        failed.reason_string = fault;
        return reply(*hand, std::make_shared<const std::string>(wire::encode(failed)), request.is_priority);
    }
    hand->handling = chosen.get();
    Delivery delivery;
    delivery.message.topic = request.topic;
    delivery.message.payload.assign(request.payload);
    delivery.message.priority = request.is_priority;
    delivery.message.is_request = true;
    delivery.message.requester = hand->requester;
    delivery.message.time_left = std::chrono::seconds(request.timeout_s);
    delivery.message.stop = hand->stop.get_token();
    delivery.hand = hand;
    ++chosen->load;
    hands_.insert_or_assign(hand_key(request.response_destination, request.packet_id), std::move(hand));
    chosen->worker->push(std::move(delivery));
}

/// On this thread, with a Message that is used again and again, and the answer straight into the outbox.
void Loop::deliver_inline(Handling& handling, const wire::PublishView& publish) {
    const std::lock_guard while_it_runs(handling.inline_guard);
    if (handling.is_over) return;
    Message message = std::move(inline_message_);
    message.topic.assign(publish.topic);
    message.payload.assign(publish.payload);
    message.priority = publish.is_priority;
    message.is_request = publish.is_request;
    message.requester.assign(publish.response_destination);
    message.time_left = std::chrono::seconds(publish.timeout_s);
    const std::uint64_t connection = session_.connection();
    if (auto bytes = engine_.run_handler(handling, message, publish.packet_id))
        session_.reply(std::move(bytes), publish.is_priority, connection, now_);
    inline_message_ = std::move(message);
}

void Loop::on_withdrawn(std::string_view requester, std::uint16_t packet_id) {
    const auto found = hands_.find(hand_key(requester, packet_id));
    if (found == hands_.end()) return;
    const std::shared_ptr<Hand> hand = std::move(found->second);
    hands_.erase(found);
    hand->stop.request_stop();
}

void Loop::withdraw_all() {
    for (const auto& [key, hand] : std::exchange(hands_, {})) hand->stop.request_stop();
}

void Loop::on_subscription_lost(const std::string& filter, int code, const std::string& reason) {
    for (const auto& handling : directory_.with_filter(filter)) {
        handling->is_over = true;
        directory_.remove(*handling);
    }
    engine_.tell(event::SubscriptionLost{filter, code, reason});
}

void Loop::on_message_refused(std::string_view topic, std::size_t size_bytes, const std::string& reason) {
    engine_.tell(event::MessageRefused{std::string(topic), size_bytes, reason});
}

void Loop::report_dropped() {
    if (dropped_.empty()) return;
    for (const auto& [filter, count] : std::exchange(dropped_, {})) engine_.tell(event::MessagesDropped{filter, count});
}

} // namespace polybus::detail
