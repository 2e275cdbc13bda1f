#pragma once

/// A session without sockets or clocks: what it sends comes out as messages, what it is sent goes in as messages, and
/// time passes when the test says so.

#include <string>
#include <vector>

#include "../src/core/session.hpp"
#include "check.hpp"

namespace script {

using namespace std::chrono_literals;
using namespace polybus;
using namespace polybus::core;

struct Recorder : Listener {
    struct Received {
        std::string topic;
        std::string payload;
        std::string requester;
        std::uint16_t packet_id = 0;
    };

    void on_connected(std::size_t resent, std::size_t renewed) override { connected.emplace_back(resent, renewed); }
    void on_message(const wire::PublishView& m) override {
        messages.push_back({std::string(m.topic), std::string(m.payload), "", 0});
    }
    void on_request(const wire::PublishView& m) override {
        requests.push_back(
            {std::string(m.topic), std::string(m.payload), std::string(m.response_destination), m.packet_id});
    }
    void on_withdrawn(std::string_view requester, std::uint16_t id) override {
        withdrawn.push_back(std::string(requester) + "/" + std::to_string(id));
    }
    void on_subscription_lost(const std::string& filter, int code, const std::string&) override {
        lost.push_back(filter + " " + std::to_string(code));
    }
    void on_message_refused(std::string_view topic, std::size_t, const std::string& reason) override {
        refused.push_back(std::string(topic) + ": " + reason);
    }

    std::vector<std::pair<std::size_t, std::size_t>> connected;
    std::vector<Received> messages;
    std::vector<Received> requests;
    std::vector<std::string> withdrawn;
    std::vector<std::string> lost;
    std::vector<std::string> refused;
};

struct Asked : Request {
    void end(Outcome outcome) override { outcomes.push_back(std::move(outcome)); }
    void forgotten() override { is_forgotten = true; }

    std::vector<Outcome> outcomes;
    bool is_forgotten = false;
};

struct Acked : Acknowledgement {
    void acknowledged(int code_, std::string_view) override { code = code_; }
    std::optional<int> code;
};

struct Flushed : Flush {
    void flushed(Result result_) override { result = result_; }
    std::optional<Result> result;
};

class Script {
public:
    explicit Script(Settings settings = {.client_id = "c"}) : session(std::move(settings), recorder) {}

    /// Opens a connection and lets the broker say welcome. Returns what was sent after the CONNECT.
    std::vector<wire::Packet> connect() {
        session.opened(now);
        const auto first = sent();
        CHECK_EQUAL(first.size(), 1U);
        connects.push_back(std::get<wire::Connect>(first.at(0)));
        feed(wire::ConnAck{});
        return sent();
    }

    void feed(const wire::Packet& packet) { feed_bytes(wire::encode(packet)); }

    void feed_bytes(std::string_view bytes) {
        const auto space = session.inbox().space(bytes.size());
        std::copy(bytes.begin(), bytes.end(), space.begin());
        session.inbox().filled(bytes.size());
        session.receive(now);
    }

    void answer(std::uint16_t id, std::string_view payload) {
        wire::Publish packet;
        packet.is_response = true;
        packet.payload = Bytes_(payload);
        packet.packet_id = id;
        packet.response_destination = "c";
        feed(packet);
    }

    void acknowledge(std::uint16_t id, wire::RequestState state, std::string reason = "") {
        wire::ReqAck packet;
        packet.packet_id = id;
        packet.state = state;
        if (!reason.empty()) packet.reason_string = reason;
        feed(packet);
    }

    /// Everything that is ready, as messages; BULKs are taken apart and counted.
    std::vector<wire::Packet> sent() {
        std::vector<wire::Packet> packets;
        while (session.outbox().fill(now)) {
            const std::string chunk(session.outbox().pending());
            session.written(chunk.size(), now);
            std::size_t pos = 0;
            while (const auto frame = wire::next_frame(chunk, pos, chunk.size())) {
                pos = frame->end;
                wire::Packet packet = wire::decode(frame->first_byte, frame->body);
                if (const auto* bulk = std::get_if<wire::Bulk>(&packet)) {
                    ++bulks;
                    wire::BulkReader reader(bulk->body.text());
                    while (const auto inner = reader.next())
                        packets.push_back(wire::decode(inner->first_byte, inner->body));
                } else {
                    packets.push_back(std::move(packet));
                }
            }
            CHECK_EQUAL(pos, chunk.size());
        }
        return packets;
    }

    std::shared_ptr<Asked> ask(std::uint16_t id, std::string_view topic = "t", Duration timeout = 5s,
                               bool is_priority = false) {
        auto asked = std::make_shared<Asked>();
        asked->id = id;
        asked->is_priority = is_priority;
        asked->deadline = now + timeout;
        wire::PublishView view;
        view.topic = topic;
        view.payload = "question";
        view.is_request = true;
        view.is_priority = is_priority;
        view.packet_id = id;
        view.timeout_s = 5;
        asked->bytes = std::make_shared<const std::string>(wire::encode_publish(view));
        session.request(asked, now);
        return asked;
    }

    void publish(std::string_view topic, std::string_view payload = "x", bool is_priority = false) {
        wire::PublishView view;
        view.topic = topic;
        view.payload = payload;
        view.is_priority = is_priority;
        session.publish(std::make_shared<const std::string>(wire::encode_publish(view)), is_priority, now);
    }

    /// Time passes, and what is due happens.
    void pass(Duration time) {
        now += time;
        session.tick(now);
    }

    void lose(const std::string& reason = "gone") { session.connection_lost(reason, now); }

    using Bytes_ = polybus::Bytes;

    Recorder recorder;
    Session session;
    Time now{1h};
    std::vector<wire::Connect> connects;
    int bulks = 0;
};

/// The topics of PUBLISHes, in order; other messages by the index of their type.
inline std::vector<std::string> topics(const std::vector<wire::Packet>& packets) {
    std::vector<std::string> list;
    for (const auto& packet : packets) {
        const auto* publish = std::get_if<wire::Publish>(&packet);
        list.push_back(publish ? publish->topic.value_or("answer") : "#" + std::to_string(packet.index()));
    }
    return list;
}

} // namespace script
