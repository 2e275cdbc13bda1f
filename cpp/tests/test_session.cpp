// The state machine, with a scripted broker and a clock of the test's own.

#define TEST_GROUP "session"

#include "script.hpp"

#include "../src/core/reconnect.hpp"
#include "../src/core/topics.hpp"

using namespace script;
using Names = std::vector<std::string>;
using State = wire::RequestState;
using End = Outcome::End;

TEST("CONNECT says who, how long, clean, token and what bulks are taken") {
    Script s({.client_id = "me", .token = "key", .user_name = "john", .keep_alive_s = 30});
    s.connect();
    CHECK(s.connects[0] == (wire::Connect{"me", 30, true, false, "key", "john", Session::bulk_limit}));
    Script plain({.client_id = "me", .clean_start = false, .bulking = Bulking::off});
    plain.connect();
    CHECK(plain.connects[0] == (wire::Connect{.client_id = "me", .keep_alive_s = 60}));
    CHECK(plain.session.is_up());
    CHECK_EQUAL(plain.recorder.connected.size(), 1U);
}

TEST("only the first connection is clean") {
    Script s;
    s.connect();
    s.lose();
    s.connect();
    CHECK(s.connects[0].clean_start);
    CHECK(!s.connects[1].clean_start);
}

TEST("a connection that was never let in does not count as the first") {
    Script s;
    s.session.opened(s.now);
    s.feed(wire::ConnAck{wire::ConnectReason::client_limit_reached, "full", "a:1;b:2"});
    CHECK(s.session.ending()->refusal.has_value());
    CHECK_EQUAL(*s.session.ending()->refusal->server_reference, "a:1;b:2");
    s.lose();
    s.sent();
    s.connect();
    CHECK(s.connects[0].clean_start);
}

TEST("nothing but CONNECT goes out before the CONNACK") {
    Script s;
    s.publish("early");
    s.ask(1);
    auto ack = std::make_shared<Acked>();
    s.session.subscribe("f", 0, ack, s.now);
    s.session.opened(s.now);
    CHECK_EQUAL(topics(s.sent()), (Names{"#0"}));
    s.feed(wire::ConnAck{});
    const auto after = topics(s.sent());
    CHECK_EQUAL(after.size(), 3U);
    CHECK_EQUAL(after[0], "#6"); // SUBSCRIBE first: it may be what the rest is for
}

TEST("a broker whose first word is no CONNACK, or that says it twice, is left") {
    Script s;
    s.session.opened(s.now);
    s.feed(wire::PingResp{});
    CHECK(s.session.ending().has_value());
    Script t;
    t.connect();
    t.feed(wire::ConnAck{});
    CHECK(t.session.ending().has_value());
    CHECK(std::holds_alternative<wire::Disconnect>(t.sent().at(0)));
}

TEST("a request is sent, answered, and its id is free again") {
    Script s;
    s.connect();
    const auto asked = s.ask(7);
    const auto sent = s.sent();
    const auto& publish = std::get<wire::Publish>(sent.at(0));
    CHECK(publish.is_request);
    CHECK_EQUAL(*publish.packet_id, 7);
    CHECK_EQUAL(*publish.timeout_s, 5U);
    s.answer(7, "42");
    CHECK_EQUAL(asked->outcomes.size(), 1U);
    CHECK(asked->outcomes[0].value() == "42");
    CHECK(asked->is_forgotten);
    s.answer(7, "43"); // a second answer is nobody's
    CHECK_EQUAL(asked->outcomes.size(), 1U);
}

TEST("every end that REQACK may tell") {
    const std::vector<std::pair<State, End>> table = {{State::canceled, End::canceled},
                                                      {State::deleted, End::deleted},
                                                      {State::timed_out, End::timed_out},
                                                      {State::not_delivered, End::not_delivered},
                                                      {State::error, End::service_error}};
    Script s;
    s.connect();
    std::uint16_t id = 1;
    for (const auto& [state, end] : table) {
        const auto asked = s.ask(id);
        s.acknowledge(id, state, "because");
        CHECK_EQUAL(asked->outcomes.size(), 1U);
        CHECK(asked->outcomes[0].end() == end);
        CHECK_EQUAL(asked->outcomes[0].reason(), "because");
        CHECK_EQUAL(asked->outcomes[0].id(), id++);
    }
    const auto asked = s.ask(id);
    s.acknowledge(id, State::delivered);
    s.acknowledge(id, State::unknown);
    CHECK(asked->outcomes.empty()); // neither is an end
}

TEST("cancel: told to the broker, ended by its word; an answer on its way wins") {
    Script s;
    s.connect();
    const auto asked = s.ask(1);
    s.session.cancel(1, s.now);
    s.session.cancel(1, s.now);
    const auto sent = s.sent();
    CHECK_EQUAL(sent.size(), 2U); // behind its request, and once
    CHECK(std::get<wire::ReqAck>(sent[1]).state == State::canceled);
    CHECK(asked->outcomes.empty());
    s.acknowledge(1, State::canceled);
    CHECK(asked->outcomes.at(0).end() == End::canceled);

    const auto late = s.ask(2);
    s.session.cancel(2, s.now);
    s.answer(2, "done");
    s.acknowledge(2, State::unknown);
    CHECK(late->outcomes.at(0).ok());
    CHECK_EQUAL(late->outcomes.size(), 1U);

    const auto unknown = s.ask(3);
    s.session.cancel(3, s.now);
    s.acknowledge(3, State::unknown);
    CHECK(unknown->outcomes.at(0).end() == End::canceled);
    s.session.cancel(99, s.now); // never was
}

TEST("a cancel does not overtake its request, whatever its priority") {
    Script s;
    s.connect();
    s.ask(1, "regular");
    s.ask(2, "urgent", 5s, true);
    s.session.cancel(1, s.now);
    s.session.cancel(2, s.now);
    const auto sent = s.sent();
    CHECK_EQUAL(topics(sent), (Names{"urgent", "#4", "regular", "#4"}));
    CHECK_EQUAL(std::get<wire::ReqAck>(sent[1]).packet_id, 2);
    CHECK_EQUAL(std::get<wire::ReqAck>(sent[3]).packet_id, 1);
}

TEST("a broker that never answers: the deadline is kept here, and the id stays out of use for a while") {
    Script s({.client_id = "c", .keep_alive_s = 0});
    s.connect();
    const auto asked = s.ask(1, "t", 5s);
    s.sent();
    s.pass(4900ms);
    CHECK(asked->outcomes.empty());
    CHECK(*s.session.deadline() <= s.now + 200ms);
    s.pass(200ms);
    CHECK(asked->outcomes.at(0).end() == End::timed_out);
    CHECK(!asked->is_forgotten);
    CHECK(std::get<wire::ReqAck>(s.sent().at(0)).state == State::canceled); // the broker may stop too
    s.answer(1, "late");
    CHECK_EQUAL(asked->outcomes.size(), 1U);
    CHECK(asked->is_forgotten);

    const auto silent = s.ask(2, "t", 1s);
    s.pass(2s);
    CHECK(!silent->is_forgotten);
    s.pass(RequestBook::quarantine + 1s);
    CHECK(silent->is_forgotten);
    CHECK_EQUAL(silent->outcomes.size(), 1U);
}

TEST("a request that was never sent leaves nothing behind when its time is up") {
    Script s;
    s.connect();
    s.lose();
    const auto asked = s.ask(1, "t", 1s);
    s.pass(2s);
    CHECK(asked->outcomes.at(0).end() == End::timed_out);
    CHECK(asked->is_forgotten);
    CHECK(s.connect().empty());
}

TEST("after a reconnect: stored ends first, then the rest again under the same ids, in order") {
    Script s;
    s.connect();
    const auto first = s.ask(1, "one");
    const auto second = s.ask(2, "two");
    const auto third = s.ask(3, "three");
    s.sent();
    s.lose();
    const auto fresh = s.ask(4, "four");
    // the broker is asked for a sign that all stored ends have come
    CHECK_EQUAL(topics(s.connect()), (Names{"#10"}));
    s.answer(2, "stored answer");
    CHECK(second->outcomes.at(0).ok());
    CHECK_EQUAL(s.recorder.connected.size(), 1U);
    s.feed(wire::PingResp{});
    CHECK_EQUAL(topics(s.sent()), (Names{"one", "three", "four"}));
    CHECK_EQUAL(s.recorder.connected.at(1).first, 2U); // four was never sent before
    s.answer(1, "a"), s.answer(3, "b"), s.answer(4, "c");
    CHECK(first->outcomes.at(0).ok() && third->outcomes.at(0).ok() && fresh->outcomes.at(0).ok());
}

TEST("canceled while away: what the broker never saw ends at once, the rest is canceled there") {
    Script s;
    s.connect();
    const auto known = s.ask(1);
    s.sent();
    s.lose();
    const auto fresh = s.ask(2);
    s.session.cancel(1, s.now);
    s.session.cancel(2, s.now);
    CHECK(fresh->outcomes.at(0).end() == End::canceled);
    CHECK(known->outcomes.empty());
    s.connect();
    s.feed(wire::PingResp{});
    const auto sent = s.sent();
    CHECK_EQUAL(sent.size(), 1U);
    CHECK(std::get<wire::ReqAck>(sent[0]).state == State::canceled);
}

TEST("subscriptions are renewed, with their concurrency; a refusal of that is told") {
    Script s;
    s.connect();
    auto watch = std::make_shared<Acked>();
    auto serve = std::make_shared<Acked>();
    s.session.subscribe("watch/#", 0, watch, s.now);
    s.session.subscribe("serve", 4, serve, s.now);
    auto sent = s.sent();
    CHECK_EQUAL(*std::get<wire::Subscribe>(sent.at(1)).concurrency, 4);
    for (const auto& packet : sent) s.feed(wire::SubAck{std::get<wire::Subscribe>(packet).packet_id});
    CHECK_EQUAL(*watch->code, 0);
    CHECK_EQUAL(*serve->code, 0);
    s.lose();
    sent = s.connect();
    CHECK_EQUAL(sent.size(), 2U);
    CHECK_EQUAL(s.recorder.connected.at(1).second, 2U);
    const auto& again = std::get<wire::Subscribe>(sent[0]);
    CHECK_EQUAL(again.topic_filter, "serve");
    CHECK_EQUAL(*again.concurrency, 4);
    s.feed(wire::SubAck{again.packet_id, wire::SubscribeReason::not_authorized, "no more"});
    CHECK_EQUAL(s.recorder.lost, (Names{"serve 135"}));
    s.lose();
    CHECK_EQUAL(s.connect().size(), 1U); // it is not tried again
}

TEST("a subscription under way when the connection breaks is still granted") {
    Script s;
    s.connect();
    auto ack = std::make_shared<Acked>();
    s.session.subscribe("f", 0, ack, s.now);
    s.sent();
    s.lose();
    CHECK(!ack->code);
    const auto sent = s.connect();
    s.feed(wire::SubAck{std::get<wire::Subscribe>(sent.at(0)).packet_id});
    CHECK_EQUAL(*ack->code, 0);
}

TEST("refused subscriptions and unsubscriptions, with and without a connection") {
    Script s;
    s.connect();
    auto ack = std::make_shared<Acked>();
    s.session.subscribe("a/#/b", 0, ack, s.now);
    s.feed(wire::SubAck{std::get<wire::Subscribe>(s.sent().at(0)).packet_id, wire::SubscribeReason::invalid_filter});
    CHECK_EQUAL(*ack->code, 143);
    auto gone = std::make_shared<Acked>();
    s.session.unsubscribe("never", gone, s.now);
    s.feed(wire::UnsubAck{std::get<wire::Unsubscribe>(s.sent().at(0)).packet_id,
                          wire::UnsubscribeReason::no_subscription_existed});
    CHECK_EQUAL(*gone->code, 17);
    s.lose();
    auto away = std::make_shared<Acked>();
    s.session.unsubscribe("never", away, s.now);
    CHECK_EQUAL(*away->code, 17);
    CHECK(s.connect().empty());
}

TEST("pings at half the keep alive; 5 s without an answer end the connection") {
    Script s({.client_id = "c", .keep_alive_s = 20});
    s.connect();
    s.pass(9900ms);
    CHECK(s.sent().empty());
    s.pass(200ms);
    CHECK(std::holds_alternative<wire::PingReq>(s.sent().at(0)));
    s.pass(4900ms);
    CHECK(!s.session.ending());
    s.feed(wire::PingResp{});
    s.pass(5200ms);
    CHECK(std::holds_alternative<wire::PingReq>(s.sent().at(0)));
    s.pass(4900ms);
    CHECK(!s.session.ending());
    s.pass(200ms);
    CHECK(s.session.ending().has_value());
    CHECK(s.session.ending()->reason.find("PINGRESP") != std::string::npos);
}

TEST("a short keep alive gives a silent broker 5 s and no more") {
    Script s({.client_id = "c", .keep_alive_s = 1});
    s.connect();
    for (int i = 0; i < 10; ++i) {
        s.pass(500ms);
        CHECK_EQUAL(s.sent().size(), i == 0 ? 1U : 0U);
        CHECK(!s.session.ending());
    }
    s.pass(600ms);
    CHECK(s.session.ending().has_value());
}

TEST("whoever sends is alive: a long message does not count against the broker") {
    Script s({.client_id = "c", .keep_alive_s = 20});
    s.connect();
    s.pass(10s);
    s.sent();
    for (int i = 0; i < 5; ++i) {
        s.pass(4s);
        s.feed_bytes(i == 0 ? std::string("\x30\x7f\x01t\x00", 5) : std::string("xxxx"));
        s.sent();
    }
    CHECK(!s.session.ending());
}

TEST("keep alive 0: no pings at all") {
    Script s({.client_id = "c", .keep_alive_s = 0});
    s.connect();
    CHECK(!s.session.deadline());
    s.pass(1000h);
    CHECK(s.sent().empty());
}

TEST("priority overtakes what still waits") {
    Script s;
    s.connect();
    s.publish("r1");
    s.publish("r2");
    s.publish("p1", "x", true);
    s.publish("p2", "x", true);
    CHECK_EQUAL(topics(s.sent()), (Names{"p1", "p2", "r1", "r2"}));
}

TEST("priority overtakes a backlog, up to the chunk that is being written") {
    Script s;
    s.connect();
    for (int i = 0; i < 10; ++i) s.publish("r" + std::to_string(i), std::string(40'000, 'x'));
    CHECK(s.session.outbox().fill(s.now)); // one chunk is on its way
    s.publish("urgent", "x", true);
    const auto sent = topics(s.sent());
    CHECK_EQUAL(sent.at(0), "r0");
    CHECK_EQUAL(sent.at(1), "urgent");
    CHECK_EQUAL(sent.size(), 11U);
}

TEST("adaptive: together what is ready together, alone what is alone; off: never a BULK") {
    Script s;
    s.connect();
    s.publish("alone");
    s.sent();
    CHECK_EQUAL(s.bulks, 0);
    for (int i = 0; i < 100; ++i) s.publish("many");
    CHECK_EQUAL(s.sent().size(), 100U);
    CHECK_EQUAL(s.bulks, 1);
    for (int i = 0; i < 3; ++i) s.publish("large", std::string(Outbox::chunk_bytes, 'x'));
    CHECK_EQUAL(s.sent().size(), 3U);
    CHECK_EQUAL(s.bulks, 1);

    Script off({.client_id = "c", .bulking = Bulking::off});
    off.connect();
    for (int i = 0; i < 100; ++i) off.publish("many");
    CHECK_EQUAL(off.sent().size(), 100U);
    CHECK_EQUAL(off.bulks, 0);
}

TEST("fixed: ten fast messages open a window of 50 ms, slow ones never wait, priority neither") {
    Script s({.client_id = "c", .bulking = Bulking::fixed});
    s.connect();
    for (int i = 0; i < 20; ++i) {
        s.publish("slow");
        CHECK_EQUAL(s.sent().size(), 1U);
        s.pass(20ms);
    }
    std::size_t at_once = 0;
    for (int i = 0; i < 20; ++i) {
        s.publish("fast");
        at_once += s.sent().size();
        s.pass(1ms);
    }
    CHECK(at_once < 20);
    s.publish("urgent", "x", true);
    CHECK_EQUAL(topics(s.sent()), (Names{"urgent"}));
    CHECK(s.session.deadline().has_value());
    s.pass(50ms);
    CHECK_EQUAL(s.sent().size(), 20 - at_once);
    CHECK_EQUAL(s.bulks, 1);
}

TEST("BULKs of the broker are unpacked; one that is wrong counts up to its fault") {
    Script s;
    s.connect();
    wire::Publish message;
    message.topic = "t";
    message.payload = Script::Bytes_("x");
    const std::string one = wire::encode(message);
    s.feed(wire::Bulk{Script::Bytes_(one + one + one)});
    CHECK_EQUAL(s.recorder.messages.size(), 3U);
    const std::string body = one + std::string("\x60\x02\xc0\x00", 4);
    std::string bulk;
    wire::append_bulk_header(bulk, body.size());
    s.feed_bytes(bulk + body);
    CHECK_EQUAL(s.recorder.messages.size(), 4U);
    CHECK(s.session.ending().has_value());
}

TEST("messages, requests and withdrawals reach the listener byte by byte too") {
    Script s;
    s.connect();
    wire::Publish request;
    request.topic = "work";
    request.payload = Script::Bytes_("job");
    request.is_request = true;
    request.packet_id = 9;
    request.response_destination = "asker";
    wire::ReqAck cancel;
    cancel.packet_id = 9;
    cancel.state = State::canceled;
    cancel.response_destination = "asker";
    cancel.topic = "work";
    for (const char byte : wire::encode(request) + wire::encode(cancel)) s.feed_bytes(std::string(1, byte));
    CHECK_EQUAL(s.recorder.requests.size(), 1U);
    CHECK_EQUAL(s.recorder.requests[0].payload, "job");
    CHECK_EQUAL(s.recorder.withdrawn, (Names{"asker/9"}));
}

TEST("answers belong to the connection their request came on") {
    Script s;
    s.connect();
    const std::uint64_t connection = s.session.connection();
    wire::PublishView view;
    view.is_response = true;
    view.response_destination = "asker";
    view.packet_id = 9;
    const auto answer = std::make_shared<const std::string>(wire::encode_publish(view));
    s.session.reply(answer, false, connection, s.now);
    CHECK_EQUAL(topics(s.sent()), (Names{"answer"}));
    s.session.reply(answer, false, connection, s.now);
    s.lose();
    CHECK(s.connect().empty()); // the one that waited went with its connection
    s.session.reply(answer, false, connection, s.now);
    CHECK(s.sent().empty());
}

TEST("messages that were not wholly written go on the next connection, once each and in order") {
    Script s;
    s.connect();
    for (const char* topic : {"a", "b", "c"}) s.publish(topic, "12345");
    CHECK(s.session.outbox().fill(s.now));
    // the BULK's header and "a", and a bit of "b"
    s.session.written(2 + 10 + 3, s.now);
    s.publish("d");
    s.lose();
    CHECK_EQUAL(topics(s.connect()), (Names{"b", "c", "d"}));
    CHECK(s.session.outbox().take_released() > 0);
}

TEST("what the broker breaks off for is not sent for ever: a message") {
    Script s;
    s.connect();
    s.publish("huge", std::string(200'000, 'x'));
    s.publish("small");
    for (int round = 0; round < 2; ++round) {
        if (round) {
            s.session.opened(s.now);
            CHECK(s.session.outbox().fill(s.now));
            s.session.written(s.session.outbox().pending().size(), s.now);
            s.feed(wire::ConnAck{});
        }
        CHECK(s.session.outbox().fill(s.now));
        s.session.written(100'000, s.now);
        s.feed(wire::Disconnect{wire::DisconnectReason::unspecified, "larger than 65536"});
        s.lose();
    }
    CHECK_EQUAL(s.recorder.refused.size(), 1U);
    CHECK(s.recorder.refused[0].find("larger than 65536") != std::string::npos);
    CHECK_EQUAL(topics(s.connect()), (Names{"small"}));
}

TEST("what the broker breaks off for is not sent for ever: requests") {
    Script s;
    s.connect();
    const auto poison = s.ask(1, "poison", 60s);
    int connections = 1;
    while (poison->outcomes.empty()) {
        CHECK(connections <= Session::max_breaks);
        s.sent();
        s.feed(wire::Disconnect{wire::DisconnectReason::unspecified, "not like this"});
        s.lose();
        if (!poison->outcomes.empty()) break;
        s.connect();
        s.feed(wire::PingResp{});
        ++connections;
    }
    CHECK(poison->outcomes.at(0).end() == End::refused);
    CHECK_EQUAL(connections, Session::max_breaks);

    // a broker that is stopped now and then is no reason to give up
    const auto patient = s.ask(2, "patient", 600s);
    for (int restart = 0; restart < 5; ++restart) {
        s.connect();
        s.feed(wire::PingResp{});
        s.sent();
        s.pass(10s);
        s.feed(wire::Disconnect{wire::DisconnectReason::unspecified, "server shutting down"});
        s.lose();
    }
    CHECK(patient->outcomes.empty());
}

TEST("flush: a round trip behind everything; a lost connection is told") {
    Script s({.client_id = "c", .keep_alive_s = 20});
    s.connect();
    s.publish("a");
    auto flushed = std::make_shared<Flushed>();
    s.session.flush(flushed, s.now);
    s.pass(10s); // a ping of keep alive overtakes it
    CHECK_EQUAL(topics(s.sent()), (Names{"#10", "a", "#10"}));
    s.feed(wire::PingResp{});
    CHECK(!flushed->result); // that one was for keep alive
    s.feed(wire::PingResp{});
    CHECK(flushed->result == Flush::Result::done);
    auto broken = std::make_shared<Flushed>();
    s.session.flush(broken, s.now);
    s.lose();
    CHECK(broken->result == Flush::Result::connection_lost);
}

TEST("disconnect: behind all that waits, and then nothing") {
    Script s;
    s.connect();
    s.publish("a");
    s.session.disconnect(128, "failed connection to database", s.now);
    CHECK(!s.session.has_left());
    const auto sent = s.sent();
    CHECK_EQUAL(topics(sent), (Names{"a", "#12"}));
    CHECK_EQUAL(*std::get<wire::Disconnect>(sent[1]).reason_string, "failed connection to database");
    CHECK(s.session.has_left());
}

TEST("close tells everybody who waits") {
    Script s;
    s.connect();
    const auto asked = s.ask(1);
    auto subscribing = std::make_shared<Acked>();
    auto unsubscribing = std::make_shared<Acked>();
    auto flushing = std::make_shared<Flushed>();
    s.session.subscribe("f", 0, subscribing, s.now);
    s.session.unsubscribe("g", unsubscribing, s.now);
    s.session.flush(flushing, s.now);
    s.session.close("over");
    CHECK(asked->outcomes.at(0).end() == End::closed);
    CHECK_EQUAL(*subscribing->code, SubscriptionBook::closed);
    CHECK_EQUAL(*unsubscribing->code, SubscriptionBook::closed);
    CHECK(flushing->result == Flush::Result::closed);
}

TEST("ends of an earlier run are kept until they are asked for, unless the start was clean") {
    Script s({.client_id = "c", .clean_start = false});
    s.connect();
    s.answer(5, "from before");
    s.acknowledge(6, State::timed_out, "too late");
    const auto resume = [&](std::uint16_t id) {
        auto asked = std::make_shared<Asked>();
        asked->id = id;
        asked->deadline = s.now + 5s;
        s.session.resume(asked);
        return asked;
    };
    CHECK(resume(5)->outcomes.at(0).value() == "from before");
    CHECK(resume(6)->outcomes.at(0).end() == End::timed_out);
    const auto later = resume(7);
    CHECK(later->outcomes.empty());
    s.answer(7, "now");
    CHECK(later->outcomes.at(0).value() == "now");

    Script clean;
    clean.connect();
    clean.answer(5, "whose?");
    auto asked = std::make_shared<Asked>();
    asked->id = 5;
    asked->deadline = clean.now + 5s;
    clean.session.resume(asked);
    CHECK(asked->outcomes.empty());
}

TEST("garbage ends the connection and nothing else") {
    std::uint32_t state = 12345;
    for (int round = 0; round < 300; ++round) {
        Script s;
        s.connect();
        const auto asked = s.ask(1);
        std::string bytes;
        for (int i = 0; i < 64; ++i) {
            state = state * 1664525 + 1013904223;
            bytes.push_back(static_cast<char>(state >> 24));
        }
        s.feed_bytes(bytes);
        s.sent();
        s.lose();
        s.connect();
        CHECK(s.session.is_up());
    }
}

TEST("backoff: grows, is bounded, has jitter, gives up; named brokers come at once") {
    Reconnect r({.initial = 100ms, .max = 1000ms, .factor = 2.0, .jitter = 0.5}, {"home", 1});
    r.succeeded();
    std::vector<std::int64_t> delays;
    for (int i = 0; i < 6; ++i) delays.push_back(r.next(0.0)->delay.count());
    CHECK(delays == (std::vector<std::int64_t>{100, 200, 400, 800, 1000, 1000}));
    CHECK_EQUAL(r.next(1.0)->delay.count(), 500);
    CHECK_EQUAL(r.number(), 7);

    Reconnect few({.attempts = 2}, {"home", 1});
    CHECK(few.next(0).has_value());
    CHECK(few.next(0).has_value());
    CHECK(!few.next(0).has_value());
    CHECK(!Reconnect({.attempts = 0}, {"home", 1}).next(0).has_value());

    Reconnect full({}, {"home", 1});
    full.learn("10.0.0.2:5;nonsense;[::1]:6;10.0.0.3:99999;:7;home:1");
    CHECK(full.go_on());
    CHECK_EQUAL(full.current().text(), "10.0.0.2:5");
    CHECK(full.go_on());
    CHECK_EQUAL(full.current().text(), "[::1]:6");
    CHECK(!full.go_on());
    full.succeeded();
    CHECK_EQUAL(full.next(0)->address.text(), "[::1]:6"); // where we were is the best guess
    CHECK_EQUAL(full.next(0)->address.text(), "home:1");
}

TEST("filters") {
    for (const auto& [filter, topic] : std::vector<std::pair<const char*, const char*>>{{"a", "a"},
                                                                                        {"#", "a/b"},
                                                                                        {"a/#", "a"},
                                                                                        {"a/#", "a/b/c"},
                                                                                        {"a/+", "a/b"},
                                                                                        {"+/b", "a/b"},
                                                                                        {"+", "a"},
                                                                                        {"a/+/c", "a//c"},
                                                                                        {"$sys/#", "$sys/x"},
                                                                                        {"/a", "/a"},
                                                                                        {"a/+", "a/"}})
        if (!matches(filter, topic)) throw check::Failure(std::string(filter) + " should match " + topic);
    for (const auto& [filter, topic] : std::vector<std::pair<const char*, const char*>>{{"a", "b"},
                                                                                        {"a", "a/b"},
                                                                                        {"a/b", "a"},
                                                                                        {"a/+", "a"},
                                                                                        {"a/+", "a/b/c"},
                                                                                        {"#", "$sys/x"},
                                                                                        {"+/x", "$sys/x"},
                                                                                        {"ab", "a"},
                                                                                        {"a/#", "ab"}})
        if (matches(filter, topic)) throw check::Failure(std::string(filter) + " should not match " + topic);
}
