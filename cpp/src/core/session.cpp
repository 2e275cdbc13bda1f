#include "session.hpp"

#include <algorithm>
#include <utility>

namespace polybus::core {

namespace {

Lane lane_of(bool is_priority) { return is_priority ? Lane::priority : Lane::regular; }

Bytes shared(std::string bytes) { return std::make_shared<const std::string>(std::move(bytes)); }

} // namespace

// -- the connection ------------------------------------------------------------------------------------

void Session::opened(Time now) {
    state_ = State::greeting;
    ending_.reset();
    inbox_.clear();
    ++connection_;
    wire::Connect connect;
    connect.client_id = settings_.client_id;
    connect.keep_alive_s = settings_.keep_alive_s;
    connect.clean_start = settings_.clean_start && !was_up_;
    if (!settings_.token.empty()) connect.token = settings_.token;
    if (!settings_.user_name.empty()) connect.user_name = settings_.user_name;
    if (settings_.bulking != Bulking::off) connect.bulk_limit = bulk_limit;
    send(connect, now);
}

std::size_t Session::wanted_bytes() const {
    const std::string_view data = inbox_.data();
    const std::size_t whole = wire::whole_size(data, 0);
    return whole > data.size() ? whole - data.size() : 0;
}

void Session::receive(Time now) {
    if (ping_deadline_) ping_deadline_ = now + ping_patience; // whoever sends is alive
    std::size_t pos = 0;
    try {
        // Whatever else answers at this port need not send as much as it seems to promise.
        const std::string_view first = inbox_.data().substr(0, 1);
        if (state_ == State::greeting && !first.empty() &&
            static_cast<std::uint8_t>(first[0]) >> 4 != static_cast<int>(wire::Type::connack))
            throw wire::Malformed{128, "TB-03", "the first message is no CONNACK"};
        while (state_ != State::down && !ending_) {
            const auto frame = wire::next_frame(inbox_.data(), pos, wire::max_varint + 1 + wire::max_varint_bytes);
            if (!frame) break;
            pos = frame->end;
            handle(*frame, false, now);
        }
    } catch (const wire::Malformed& malformed) {
        fail("the broker sent something that is no TBus: " + malformed.text + " [" + malformed.rule + "]", now);
    }
    inbox_.consume(pos);
}

void Session::handle(const wire::Frame& frame, bool is_in_bulk, Time now) {
    const auto kind = static_cast<wire::Type>(frame.kind());
    const bool is_greeting = state_ == State::greeting;
    if (is_greeting != (kind == wire::Type::connack))
        throw wire::Malformed{128, "TB-03", is_greeting ? "the first message is no CONNACK" : "a second CONNACK"};
    if (kind == wire::Type::publish) return handle_publish(frame);
    if (kind == wire::Type::bulk && !is_in_bulk) {
        wire::BulkReader reader(frame.body);
        while (const auto inner = reader.next()) {
            if (ending_) return;
            handle(*inner, true, now);
        }
        return;
    }
    const wire::Packet packet = wire::decode(frame.first_byte, frame.body);
    switch (kind) {
    case wire::Type::connack: return handle(std::get<wire::ConnAck>(packet), now);
    case wire::Type::reqack: return handle(std::get<wire::ReqAck>(packet));
    case wire::Type::suback:
        if (const auto lost = subscriptions_.acknowledged(std::get<wire::SubAck>(packet)))
            listener_.on_subscription_lost(lost->filter, lost->code, lost->reason);
        return;
    case wire::Type::unsuback: return subscriptions_.acknowledged(std::get<wire::UnsubAck>(packet));
    case wire::Type::pingresp: return handle_pingresp(now);
    case wire::Type::disconnect: {
        const auto& goodbye = std::get<wire::Disconnect>(packet);
        return end({"the broker disconnected: " + goodbye.reason_string.value_or("no reason given"),
                    static_cast<int>(goodbye.reason)});
    }
    default:
        throw wire::Malformed{128, "TB-02", "message type " + std::to_string(frame.kind()) + " is not sent to clients"};
    }
}

void Session::handle_publish(const wire::Frame& frame) {
    const auto publish = wire::decode_publish(frame.flags(), frame.body);
    if (!publish) {
        static_cast<void>(wire::decode(frame.first_byte, frame.body)); // finds the words
        throw wire::Malformed{128, "TB-04", "PUBLISH cannot be read"};
    }
    if (publish->is_response) {
        if (!requests_.answered(publish->packet_id, publish->payload))
            keep_orphan({Outcome::End::answered, polybus::Bytes(publish->payload), {}, publish->packet_id});
    } else if (publish->is_request) {
        listener_.on_request(*publish);
    } else {
        listener_.on_message(*publish);
    }
}

void Session::handle(const wire::ConnAck& packet, Time now) {
    if (packet.reason != wire::ConnectReason::success)
        return end(
            {"the broker refused the connection: " + packet.reason_string.value_or("no reason given"), 0, packet});
    const bool is_first = !was_up_;
    was_up_ = true;
    state_ = State::up;
    if (settings_.keep_alive_s) next_ping_ = now + std::chrono::milliseconds(settings_.keep_alive_s * 500);
    const auto renewed = subscriptions_.renew();
    renewed_ = is_first ? 0 : renewed.size();
    for (const auto& subscribe : renewed) send(subscribe, now);
    outbox_.open();
    is_resuming_ = !is_first && !requests_.unfinished().empty();
    if (is_resuming_)
        send_ping({Ping::resume, {}}, Lane::control, now);
    else
        send_again(now);
}

void Session::handle(const wire::ReqAck& packet) {
    using enum wire::RequestState;
    if (packet.response_destination) { // to a service; 14: an answer came too late, which is nobody's fault
        if (packet.state == canceled) listener_.on_withdrawn(*packet.response_destination, packet.packet_id);
        return;
    }
    const std::string reason = packet.reason_string.value_or("");
    if (requests_.acknowledged(packet.packet_id, packet.state, reason)) return;
    if (packet.state == delivered || packet.state == unknown) return;
    const Outcome::End end = packet.state == canceled        ? Outcome::End::canceled
                             : packet.state == deleted       ? Outcome::End::deleted
                             : packet.state == timed_out     ? Outcome::End::timed_out
                             : packet.state == not_delivered ? Outcome::End::not_delivered
                                                             : Outcome::End::service_error;
    keep_orphan({end, {}, reason, packet.packet_id});
}

void Session::handle_pingresp(Time now) {
    if (pings_in_flight_.empty()) return;
    const auto asked = pings_.extract(pings_in_flight_.front());
    pings_in_flight_.pop_front();
    const PingPurpose& purpose = asked.mapped();
    switch (purpose.kind) {
    case Ping::keep_alive:
        is_pinging_ = false;
        ping_deadline_.reset();
        return;
    case Ping::flush: return purpose.waiter->flushed(Flush::Result::done);
    case Ping::resume:
        ping_deadline_.reset();
        is_resuming_ = false;
        return send_again(now);
    }
}

void Session::fail(const std::string& reason, Time now) {
    if (state_ == State::up) {
        wire::Disconnect goodbye{wire::DisconnectReason::unspecified, reason};
        send(goodbye, now);
    }
    end({reason, 0});
}

void Session::end(Ending ending) {
    if (!ending_) ending_ = std::move(ending);
}

void Session::connection_lost(const std::string& reason, Time now) {
    const Ending ending = ending_ ? *ending_ : Ending{reason, 0};
    blame(ending, now);
    state_ = State::down;
    ending_.reset();
    is_resuming_ = false;
    is_leaving_said_ = false;
    inbox_.clear();
    outbox_.connection_lost();
    subscriptions_.connection_lost();
    pings_in_flight_.clear();
    is_pinging_ = false;
    next_ping_.reset();
    ping_deadline_.reset();
    for (auto& [number, purpose] : std::exchange(pings_, {}))
        if (purpose.waiter) purpose.waiter->flushed(Flush::Result::connection_lost);
}

/// What makes the broker break off must not be sent again for ever. A message that was not read to the end is known
/// to be the cause if the broker said so, and suspected if it did not; of requests that were wholly sent, those are
/// suspected that were sent within the last second. Three connections are enough, a known cause counts twice: a
/// broker that is stopped says 128 as well, and then the next one takes what this one did not.
void Session::blame(const Ending& ending, Time now) {
    const bool is_said = ending.code == static_cast<int>(wire::DisconnectReason::unspecified);
    const int weight = is_said ? 2 : 1;
    const std::string reason =
        is_said ? ending.reason : "the connection was lost while this was sent: " + ending.reason;
    if (Outgoing* half = outbox_.half_written()) {
        if (half->kind == Outgoing::Kind::request) {
            Request* request = requests_.find(half->packet_id);
            if (request && (request->breaks += weight) >= max_breaks)
                requests_.finish(request->id, Outcome::End::refused, reason);
        } else if (half->kind == Outgoing::Kind::message && (half->breaks += weight) >= max_breaks) {
            const auto frame = wire::next_frame(*half->bytes, 0, half->bytes->size());
            const auto publish = frame ? wire::decode_publish(frame->flags(), frame->body) : std::nullopt;
            if (publish) listener_.on_message_refused(publish->topic, publish->payload.size(), reason);
            outbox_.drop_half_written();
        }
        return;
    }
    if (!is_said) return;
    for (Request* request : requests_.unfinished()) {
        if (request->connection != connection_ || now - request->sent_at > break_time) continue;
        if (++request->breaks >= max_breaks) requests_.finish(request->id, Outcome::End::refused, reason);
    }
}

void Session::disconnect(int code, std::string_view reason, Time now) {
    if (is_leaving_said_ || state_ != State::up) return;
    wire::Disconnect goodbye;
    goodbye.reason = static_cast<wire::DisconnectReason>(code);
    if (!reason.empty()) goodbye.reason_string = std::string(reason);
    Bytes bytes = shared(wire::encode(goodbye));
    is_leaving_said_ = true;
    outbox_.hurry();
    outbox_.push(Lane::regular, {std::move(bytes), Outgoing::Kind::control}, now);
    state_ = State::leaving;
}

bool Session::has_left() const { return state_ != State::leaving || outbox_.is_empty(); }

void Session::close(const std::string& reason) {
    requests_.finish_all(Outcome::End::closed, reason);
    subscriptions_.close(reason);
    for (auto& [number, purpose] : std::exchange(pings_, {}))
        if (purpose.waiter) purpose.waiter->flushed(Flush::Result::closed);
    pings_in_flight_.clear();
}

// -- time ------------------------------------------------------------------------------------------------

std::optional<Time> Session::deadline() const {
    std::optional<Time> first = requests_.deadline();
    earliest(first, next_ping_);
    earliest(first, ping_deadline_);
    if (state_ != State::down) earliest(first, outbox_.deadline());
    return first;
}

void Session::tick(Time now) {
    if (ping_deadline_ && now >= *ping_deadline_) {
        ping_deadline_.reset();
        next_ping_.reset();
        fail("no PINGRESP within 5 s", now);
    }
    if (next_ping_ && now >= *next_ping_) {
        next_ping_ = now + std::chrono::milliseconds(settings_.keep_alive_s * 500);
        // One at a time: the next must not make us more patient with the one before.
        if (!std::exchange(is_pinging_, true)) send_ping({Ping::keep_alive, {}}, Lane::control, now);
    }
    for (const Request* request : requests_.expire(now))
        if (request->connection == connection_ && state_ == State::up && !is_resuming_) send_cancel(*request, now);
}

// -- what the application wants ----------------------------------------------------------------------------

void Session::publish(Bytes bytes, bool is_priority, Time now) {
    outbox_.push(lane_of(is_priority), {std::move(bytes), Outgoing::Kind::message}, now);
}

void Session::request(std::shared_ptr<Request> request, Time now) {
    Request& added = *request;
    requests_.add(std::move(request));
    if (state_ == State::up && !is_resuming_) send_request(added, now);
}

void Session::resume(std::shared_ptr<Request> request) {
    const auto found = std::find_if(orphans_.begin(), orphans_.end(),
                                    [&](const Outcome& outcome) { return outcome.id() == request->id; });
    if (found == orphans_.end()) return requests_.add(std::move(request));
    request->end(std::move(*found));
    orphans_.erase(found);
    request->forgotten();
}

void Session::cancel(std::uint16_t id, Time now) {
    Request* request = requests_.find(id);
    if (!request || request->is_ended || request->is_canceled) return;
    request->is_canceled = true;
    if (state_ == State::up && !is_resuming_)
        send_cancel(*request, now);
    else if (!request->connection && request->bytes) // the broker never heard of it
        requests_.finish(id, Outcome::End::canceled, "the request was canceled");
}

void Session::reply(Bytes bytes, bool is_priority, std::uint64_t connection, Time now) {
    if (connection != connection_ || state_ == State::down) return;
    outbox_.push(lane_of(is_priority), {std::move(bytes), Outgoing::Kind::answer}, now);
}

void Session::subscribe(std::string_view filter, std::optional<std::uint16_t> concurrency,
                        SubscriptionBook::Waiter waiter, Time now) {
    const wire::Subscribe packet = subscriptions_.want(filter, concurrency, std::move(waiter));
    if (state_ == State::up) send(packet, now);
}

void Session::unsubscribe(std::string_view filter, SubscriptionBook::Waiter waiter, Time now) {
    if (const auto packet = subscriptions_.drop(filter, std::move(waiter), state_ == State::up)) send(*packet, now);
}

void Session::flush(std::shared_ptr<Flush> waiter, Time now) {
    if (state_ != State::up) return waiter->flushed(Flush::Result::connection_lost);
    send_ping({Ping::flush, std::move(waiter)}, Lane::regular, now);
}

// -- sending -------------------------------------------------------------------------------------------------

void Session::send(const wire::Packet& packet, Time now) {
    outbox_.push(Lane::control, {shared(wire::encode(packet)), Outgoing::Kind::control}, now);
}

void Session::send_request(Request& request, Time now) {
    request.connection = connection_;
    request.sent_at = now;
    outbox_.push(lane_of(request.is_priority), {request.bytes, Outgoing::Kind::request, request.id}, now);
}

/// In the lane of its request, which it must not overtake.
void Session::send_cancel(const Request& request, Time now) {
    wire::ReqAck cancel;
    cancel.packet_id = request.id;
    cancel.state = wire::RequestState::canceled;
    outbox_.push(lane_of(request.is_priority), {shared(wire::encode(cancel)), Outgoing::Kind::control}, now);
}

void Session::send_ping(PingPurpose purpose, Lane lane, Time now) {
    static const Bytes pingreq = shared(wire::encode(wire::PingReq{}));
    if (++last_ping_ == 0) ++last_ping_;
    pings_.emplace(last_ping_, std::move(purpose));
    Outgoing outgoing{pingreq, Outgoing::Kind::control};
    outgoing.ping = last_ping_;
    outbox_.push(lane, std::move(outgoing), now);
}

/// PINGRESPs come in the order in which PINGREQs were written, which need not be that in which they were queued.
void Session::written(std::size_t size, Time now) {
    outbox_.written(size);
    for (const std::uint32_t ping : outbox_.take_pings()) {
        pings_in_flight_.push_back(ping);
        if (pings_.at(ping).kind != Ping::flush && !ping_deadline_) ping_deadline_ = now + ping_patience;
    }
}

void Session::send_again(Time now) {
    std::size_t resent = 0;
    for (Request* request : requests_.unfinished()) {
        if (request->is_canceled) {
            send_cancel(*request, now);
        } else if (request->bytes) {
            resent += request->connection != 0;
            send_request(*request, now);
        }
    }
    listener_.on_connected(resent, renewed_);
}

void Session::keep_orphan(Outcome outcome) {
    if (settings_.clean_start) return;
    std::erase_if(orphans_, [&](const Outcome& known) { return known.id() == outcome.id(); });
    orphans_.push_back(std::move(outcome));
    if (orphans_.size() > max_orphans) orphans_.pop_front();
}

} // namespace polybus::core
