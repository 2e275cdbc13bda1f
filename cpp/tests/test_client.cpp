// The client against brokers that misbehave, and against itself: threads, closing, callbacks that call back.

#define TEST_GROUP "client"

#include <condition_variable>

#include <polybus/polybus.hpp>

#include "check.hpp"
#include "fake_broker.hpp"
#include "recorder.hpp"

using namespace std::chrono_literals;
using namespace polybus;

namespace {

Options options_for(const fake::Broker& broker, Events* events = nullptr) {
    Options options;
    options.client_id = "test";
    options.port = broker.port();
    options.reconnect.initial = 1ms;
    options.reconnect.max = 20ms;
    if (events) options.on_event = events->recorder();
    return options;
}

/// A broker that grants subscriptions and lets `act` handle the rest.
auto granting(std::function<void(fake::Peer&, const wire::Packet&)> act = {}) {
    return [act](fake::Peer& peer) {
        peer.welcome();
        for (;;) {
            const wire::Packet packet = peer.receive();
            if (const auto* subscribe = std::get_if<wire::Subscribe>(&packet))
                peer.send(wire::SubAck{subscribe->packet_id});
            else if (const auto* unsubscribe = std::get_if<wire::Unsubscribe>(&packet))
                peer.send(wire::UnsubAck{unsubscribe->packet_id});
            else if (std::holds_alternative<wire::PingReq>(packet))
                peer.send(wire::PingResp{});
            if (act) act(peer, packet);
        }
    };
}

/// Sends every PUBLISH back: as an answer if it is a request, else as the message it is.
void echo(fake::Peer& peer, const wire::Packet& packet) {
    const auto* publish = std::get_if<wire::Publish>(&packet);
    if (!publish) return;
    if (publish->is_request)
        peer.answer(*publish, publish->payload.text());
    else
        peer.send(*publish);
}

wire::Publish request_to(const char* topic, std::uint16_t id) {
    wire::Publish request;
    request.topic = topic;
    request.payload = Bytes("job");
    request.is_request = true;
    request.packet_id = id;
    request.response_destination = "asker";
    return request;
}

} // namespace

// -- connecting ------------------------------------------------------------------------------------------------

TEST("a refusal has its code and its words") {
    fake::Broker broker([](fake::Peer& peer) {
        peer.expect<wire::Connect>();
        peer.send(wire::ConnAck{wire::ConnectReason::not_authorized, "wrong token"});
    });
    try {
        Client bus{options_for(broker)};
        CHECK(false);
    } catch (const ConnectRefused& error) {
        CHECK_EQUAL(error.code(), 135);
        CHECK_EQUAL(error.reason(), "wrong token");
        CHECK(std::string(error.what()).find("not authorized: wrong token") != std::string::npos);
    }
    CHECK_EQUAL(broker.connections(), 1);
}

TEST("nobody there, nobody answering, not TBus at all") {
    std::uint16_t free_port = 0;
    {
        fake::Broker gone([](fake::Peer&) {});
        free_port = gone.port();
    }
    CHECK_THROWS(ConnectionFailed, "127.0.0.1:" + std::to_string(free_port),
                 Client(Options{.client_id = "c", .port = free_port}));
    fake::Broker silent([](fake::Peer& peer) { peer.hang(); });
    Options options = options_for(silent);
    options.connect_timeout = 50ms;
    CHECK_THROWS(ConnectionFailed, "connect_timeout", Client(options));
    fake::Broker http([](fake::Peer& peer) { peer.send_bytes("HTTP/1.1 400 Bad Request\r\n\r\n"); });
    CHECK_THROWS(ConnectionFailed, "no TBus", Client(options_for(http)));
    fake::Broker closes([](fake::Peer& peer) { peer.expect<wire::Connect>(); });
    CHECK_THROWS(ConnectionFailed, "closed", Client(options_for(closes)));
    CHECK_THROWS(ConnectionFailed, "not known", Client(Options{.client_id = "c", .host = "no.such.host.invalid"}));
}

TEST("options that cannot be are refused with the reason") {
    CHECK_THROWS(UsageError, "client_id", Client(Options{}));
    CHECK_THROWS(UsageError, "client_id", Client(Options{.client_id = std::string(65'536, 'x')}));
    CHECK_THROWS(UsageError, "keep_alive", Client(Options{.client_id = "c", .keep_alive = 65'536s}));
    CHECK_THROWS(UsageError, "UTF-8", Client(Options{.client_id = "\xff"}));
    CHECK_THROWS(UsageError, "jitter", Client(Options{.client_id = "c", .reconnect = {.jitter = 2}}));
}

TEST("a full broker names another one, and the client goes there") {
    fake::Broker second(granting(echo));
    fake::Broker first([&](fake::Peer& peer) {
        peer.expect<wire::Connect>();
        peer.send(wire::ConnAck{wire::ConnectReason::client_limit_reached, "full",
                                "127.0.0.1:" + std::to_string(second.port())});
    });
    Events events;
    Client bus{options_for(first, &events)};
    CHECK_EQUAL(bus.request("t", "hello").text(), "hello");
    CHECK_EVENTUALLY(events.count<event::Connected>() == 1);
    CHECK_EQUAL(events.of<event::Connected>()[0].attempt, 2);
    CHECK_EQUAL(events.of<event::Connected>()[0].broker, "127.0.0.1:" + std::to_string(second.port()));
}

TEST("a full broker that names nobody, or only full ones") {
    fake::Broker full([](fake::Peer& peer) {
        peer.expect<wire::Connect>();
        peer.send(wire::ConnAck{wire::ConnectReason::client_limit_reached, "full"});
    });
    fake::Broker naming([&](fake::Peer& peer) {
        peer.expect<wire::Connect>();
        peer.send(wire::ConnAck{wire::ConnectReason::client_limit_reached, "full",
                                "127.0.0.1:" + std::to_string(full.port())});
    });
    CHECK_THROWS(ConnectRefused, "131", Client(options_for(full)));
    CHECK_THROWS(ConnectRefused, "131", Client(options_for(naming)));
    CHECK_EQUAL(full.connections(), 2);
}

// -- losing the connection ---------------------------------------------------------------------------------------

TEST("a connection that breaks in the middle of a message: back again, and the request with the same id") {
    Recorded<int> ids;
    fake::Broker broker([&](fake::Peer& peer) {
        const auto connect = peer.expect<wire::Connect>();
        CHECK_EQUAL(connect.clean_start, peer.index == 0);
        peer.send(wire::ConnAck{});
        if (peer.index > 0) {
            peer.expect<wire::Subscribe>();
            peer.expect<wire::PingReq>();
            peer.send(wire::PingResp{});
        } else {
            peer.send(wire::SubAck{peer.expect<wire::Subscribe>().packet_id});
        }
        const auto request = peer.next<wire::Publish>();
        ids.add(*request.packet_id);
        if (peer.index < 2) return peer.send_bytes(std::string("\x34\x10\x0b\x08\x06", 5)); // and away
        peer.answer(request, "at last");
        peer.idle();
    });
    Events events;
    Client bus{options_for(broker, &events)};
    auto subscription = bus.subscribe("news/#", [](const Message&) {});
    CHECK_EQUAL(bus.request("t", "?", {.timeout = 60s}).text(), "at last");
    CHECK_EQUAL(ids.size(), 3U);
    CHECK(ids.all()[0] == ids.all()[1] && ids.all()[1] == ids.all()[2]);
    CHECK_EVENTUALLY(events.count<event::Connected>() == 3);
    CHECK_EQUAL(events.of<event::Connected>()[2].resent, 1U);
    CHECK_EQUAL(events.of<event::Connected>()[2].renewed, 1U);
    CHECK_EQUAL(events.count<event::Disconnected>(), 2U);
    CHECK_EQUAL(events.count<event::Reconnecting>(), 2U);
    CHECK_EQUAL(broker.fault(), "");
}

TEST("garbage from the broker: told so, left, and tried again") {
    fake::Broker broker([](fake::Peer& peer) {
        peer.welcome();
        if (peer.index == 0) {
            peer.send_bytes(std::string_view("\x70\x00", 2));
            CHECK(peer.next<wire::Disconnect>().reason == wire::DisconnectReason::unspecified);
            return;
        }
        echo(peer, peer.next<wire::Publish>());
        peer.idle();
    });
    Events events;
    Client bus{options_for(broker, &events)};
    CHECK_EVENTUALLY(events.count<event::Connected>() == 2);
    CHECK(events.of<event::Disconnected>()[0].reason.find("no TBus") != std::string::npos);
    CHECK_EQUAL(bus.request("t", "x").text(), "x");
    CHECK_EQUAL(broker.fault(), "");
}

TEST("half open: a broker that takes everything and says nothing is given up after 5 s") {
    fake::Broker broker([](fake::Peer& peer) {
        peer.welcome();
        if (peer.index > 0) return peer.idle();
        for (;;) peer.receive();
    });
    Events events;
    Options options = options_for(broker, &events);
    options.keep_alive = 1s;
    Client bus{options};
    CHECK_EVENTUALLY(events.count<event::Connected>() == 2);
    CHECK(events.of<event::Disconnected>()[0].reason.find("PINGRESP") != std::string::npos);
}

TEST("messages published without a connection wait for the next one") {
    Recorded<std::string> seen;
    Gate may_come_back;
    fake::Broker broker([&](fake::Peer& peer) {
        if (peer.index > 0) may_come_back.wait();
        peer.welcome();
        if (peer.index == 0) return;
        for (;;) seen.add(*peer.next<wire::Publish>().topic);
    });
    Events events;
    Client bus{options_for(broker, &events)};
    CHECK_EVENTUALLY(events.count<event::Disconnected>() == 1);
    CHECK(!bus.is_connected());
    bus.publish("one", "1");
    bus.publish("two", "2");
    bus.publish("urgent", "3", {.priority = true});
    may_come_back.open();
    CHECK_EVENTUALLY(seen.size() == 3);
    CHECK(seen.all() == (std::vector<std::string>{"urgent", "one", "two"}));
}

TEST("a limit on attempts: then it is closed, and everything says so") {
    fake::Broker broker([](fake::Peer& peer) {
        if (peer.index == 0) return peer.welcome();
        peer.expect<wire::Connect>();
        peer.send(wire::ConnAck{wire::ConnectReason::client_id_in_use});
    });
    Events events;
    Options options = options_for(broker, &events);
    options.reconnect.attempts = 2;
    Client bus{options};
    CHECK_EVENTUALLY(events.count<event::Closed>() == 1);
    CHECK_EQUAL(events.count<event::Reconnecting>(), 2U);
    CHECK_EVENTUALLY(broker.connections() == 3);
    CHECK_EVENTUALLY([&] {
        try {
            bus.publish("t", "x");
            return false;
        } catch (const Closed&) {
            return true;
        }
    }());
    CHECK_THROWS(Closed, "gave up reconnecting", bus.request("t", "x"));
}

TEST("not authorized any more: no further attempts") {
    fake::Broker broker([](fake::Peer& peer) {
        peer.expect<wire::Connect>();
        peer.send(wire::ConnAck{peer.index ? wire::ConnectReason::not_authorized : wire::ConnectReason::success});
    });
    Events events;
    Client bus{options_for(broker, &events)};
    CHECK_EVENTUALLY(events.count<event::Closed>() == 1);
    CHECK(events.of<event::Closed>()[0].reason.find("135") != std::string::npos);
    CHECK_EQUAL(broker.connections(), 2);
}

// -- requests ------------------------------------------------------------------------------------------------------

TEST("a broker that never answers: RequestTimeout all the same") {
    fake::Broker broker(granting());
    Client bus{options_for(broker)};
    CHECK_THROWS(RequestTimeout, "in time", bus.request("t", "x", {.timeout = 50ms}));
}

TEST("two answers to one request: the first counts") {
    fake::Broker broker(granting([](fake::Peer& peer, const wire::Packet& packet) {
        if (const auto* publish = std::get_if<wire::Publish>(&packet)) {
            peer.answer(*publish, "first");
            peer.answer(*publish, "second");
        }
    }));
    Client bus{options_for(broker)};
    for (int i = 0; i < 3; ++i) CHECK_EQUAL(bus.request("t", "x").text(), "first");
}

TEST("every end becomes its exception, with the id") {
    static constexpr wire::RequestState states[] = {wire::RequestState::timed_out, wire::RequestState::deleted,
                                                    wire::RequestState::not_delivered, wire::RequestState::error};
    int next = 0;
    fake::Broker broker(granting([&](fake::Peer& peer, const wire::Packet& packet) {
        const auto* publish = std::get_if<wire::Publish>(&packet);
        if (!publish) return;
        wire::ReqAck ack;
        ack.packet_id = *publish->packet_id;
        ack.state = states[next++ % 4];
        ack.reason_string = "why";
        peer.send(ack);
    }));
    Client bus{options_for(broker)};
    CHECK_THROWS(RequestTimeout, "why", bus.request("t", "x"));
    CHECK_THROWS(RequestDeleted, "why", bus.request("t", "x"));
    CHECK_THROWS(NotDelivered, "why", bus.request("t", "x"));
    try {
        auto pending = bus.request_async("t", "x");
        const auto id = pending.id();
        try {
            static_cast<void>(pending.get());
            CHECK(false);
        } catch (const RequestFailed& error) {
            CHECK_EQUAL(error.id(), id);
            throw;
        }
    } catch (const ServiceError& error) {
        CHECK_EQUAL(std::string(error.what()), "why");
    }
}

TEST("65,535 requests may be unfinished; the next one waits for an id") {
    Gate answers;
    fake::Broker broker([&](fake::Peer& peer) {
        peer.welcome();
        const auto first = peer.next<wire::Publish>();
        for (int i = 1; i < 65'535; ++i) peer.next<wire::Publish>();
        answers.wait();
        peer.answer(first, "free");
        peer.idle();
    });
    Client bus{options_for(broker)};
    std::atomic<int> ended{0};
    for (int i = 0; i < 65'535; ++i)
        bus.request_async("t", "x", {.timeout = 600s, .inline_callback = true}, [&](const Outcome&) { ++ended; });
    CHECK_THROWS(OperationTimeout, "65,535", bus.request_async("t", "x", {.timeout = 20ms}));
    std::jthread opener([&] { answers.open(); });
    auto pending = bus.request_async("t", "x", {.timeout = 60s});
    opener.join();
    CHECK_EVENTUALLY(ended == 1);
    bus.disconnect();
    CHECK_EQUAL(ended.load(), 65'535);
    CHECK_THROWS(Closed, "closed", pending.get());
}

TEST("what cannot be sent is refused before it is sent") {
    fake::Broker broker(granting());
    Options options = options_for(broker);
    options.packet_size_bytes = 1'000;
    Client bus{options};
    CHECK_THROWS(UsageError, "1000", (bus.publish("t", std::string(1'000, 'x')), 0));
    CHECK_THROWS(UsageError, "1000", bus.request("t", std::string(1'000, 'x')));
    CHECK_THROWS(UsageError, "wildcards", (bus.publish("a/#", "x"), 0));
    CHECK_THROWS(UsageError, "at least one character", (bus.publish("", "x"), 0));
    CHECK_THROWS(UsageError, "UTF-8", (bus.publish("\xff", "x"), 0));
    CHECK_THROWS(UsageError, "U+0000", (bus.publish(std::string_view("a\0b", 3), "x"), 0));
    CHECK_THROWS(UsageError, "timeout", bus.request("t", "x", {.timeout = 0ms}));
    CHECK_THROWS(UsageError, "timeout", (bus.publish("t", "x", {.timeout = -1s}), 0));
    CHECK_THROWS(UsageError, "is no reason", (bus.disconnect(5), 0));
    CHECK_THROWS(UsageError, "empty", bus.subscribe("t", nullptr));
    CHECK_THROWS(UsageError, "concurrency", bus.serve("t", [](const Message&) { return Bytes(); }, {.concurrency = 0}));
}

TEST("a broker that does not read: publish waits for room, then says so") {
    Gate reads;
    fake::Broker broker([&](fake::Peer& peer) {
        peer.welcome();
        reads.wait();
        peer.idle();
    });
    Options options = options_for(broker);
    options.buffer_bytes = 100'000;
    options.operation_timeout = 50ms;
    Client bus{options};
    const std::string payload(50'000, 'x');
    CHECK_THROWS(OperationTimeout, "buffer_bytes", [&] {
        for (int i = 0; i < 10'000; ++i) bus.publish("t", payload);
        return 0;
    }());
    reads.open();
    CHECK_EVENTUALLY([&] {
        try {
            bus.publish("t", payload);
            return true;
        } catch (const OperationTimeout&) {
            return false;
        }
    }());
    bus.flush();
}

// -- handlers --------------------------------------------------------------------------------------------------------

TEST("a slow handler holds up no other one; what does not fit into its queue is counted and told") {
    fake::Broker broker(granting(echo));
    Events events;
    Client bus{options_for(broker, &events)};
    Gate done;
    Gate entered;
    std::atomic<int> quick{0};
    auto slow = bus.subscribe("slow", [&](const Message&) { entered.open(), done.wait(); }, {.queue_size = 3});
    auto fast = bus.subscribe("fast", [&](const Message&) { ++quick; });
    bus.publish("slow", "first");
    entered.wait();
    for (int i = 0; i < 10; ++i) bus.publish("slow", "x");
    for (int i = 0; i < 10; ++i) bus.publish("fast", "x");
    CHECK_EVENTUALLY(quick == 10);
    CHECK_EVENTUALLY(slow.dropped() == 7);
    CHECK_EVENTUALLY([&] {
        std::size_t told = 0;
        for (const auto& dropped : events.of<event::MessagesDropped>()) told += dropped.count;
        return told == 7;
    }());
    done.open();
}

TEST("overlapping filters get a message once each") {
    fake::Broker broker(granting(echo));
    Client bus{options_for(broker)};
    std::atomic<int> all{0}, some{0}, twice{0};
    auto a = bus.subscribe("#", [&](const Message&) { ++all; });
    auto b = bus.subscribe("x/+", [&](const Message&) { ++some; });
    auto c = bus.subscribe("x/+", [&](const Message&) { ++twice; });
    bus.publish("x/1", "");
    bus.publish("y", "");
    CHECK_EVENTUALLY(all == 2 && some == 1 && twice == 1);
    b.unsubscribe(); // the other one with this filter goes on
    bus.publish("x/2", "");
    CHECK_EVENTUALLY(all == 3 && twice == 2);
    CHECK_EQUAL(some.load(), 1);
}

TEST("a service works on as many requests at once as it said") {
    Recorded<int> asked;
    fake::Broker broker([&](fake::Peer& peer) {
        peer.welcome();
        const auto subscribe = peer.expect<wire::Subscribe>();
        asked.add(*subscribe.concurrency);
        peer.send(wire::SubAck{subscribe.packet_id});
        for (std::uint16_t id = 1; id <= 3; ++id) peer.send(request_to("work", id));
        for (int i = 0; i < 3; ++i) asked.add(*peer.next<wire::Publish>().packet_id);
        peer.idle();
    });
    Client bus{options_for(broker)};
    std::atomic<int> inside{0};
    Gate together;
    auto service = bus.serve("work",
                             [&](const Message& message) {
                                 if (++inside == 3) together.open();
                                 together.wait(); // only if all three are in here at the same time
                                 return message.payload;
                             },
                             {.concurrency = 3});
    CHECK_EVENTUALLY(asked.size() == 4);
    CHECK_EQUAL(asked.all()[0], 3);
}

TEST("a handler that throws: the requester is told, the event too, and the next request is served") {
    Recorded<std::string> said;
    fake::Broker broker([&](fake::Peer& peer) {
        peer.welcome();
        peer.send(wire::SubAck{peer.expect<wire::Subscribe>().packet_id});
        for (std::uint16_t id = 1; id <= 3; ++id) {
            peer.send(request_to("work", id));
            const auto failed = peer.expect<wire::ReqAck>();
            CHECK(failed.state == wire::RequestState::error);
            CHECK_EQUAL(*failed.response_destination, "asker");
            said.add(*failed.reason_string);
        }
        peer.idle();
    });
    Events events;
    Client bus{options_for(broker, &events)};
    int count = 0;
    auto service = bus.serve("work", [&](const Message&) -> Bytes {
        if (++count == 1) throw std::runtime_error("cannot do it");
        if (count == 2) throw std::runtime_error(std::string(10'000, 'y') + "\xff");
        throw 42;
    });
    CHECK_EVENTUALLY(said.size() == 3);
    CHECK_EQUAL(said.all()[0], "cannot do it");
    CHECK_EQUAL(said.all()[1], std::string(4'096, 'y'));
    CHECK_EQUAL(said.all()[2], "unknown exception");
    CHECK_EVENTUALLY(events.count<event::HandlerFailed>() == 3);
    CHECK_EQUAL(broker.fault(), "");
}

TEST("a canceled request: its handler is told to stop, and sends nothing") {
    Gate entered;
    Recorded<std::string> said;
    fake::Broker broker([&](fake::Peer& peer) {
        peer.welcome();
        peer.send(wire::SubAck{peer.expect<wire::Subscribe>().packet_id});
        peer.send(request_to("work", 1));
        entered.wait();
        wire::ReqAck cancel;
        cancel.packet_id = 1;
        cancel.state = wire::RequestState::canceled;
        cancel.response_destination = "asker";
        cancel.topic = "work";
        peer.send(cancel);
        peer.send(request_to("work", 2));
        const auto answer = peer.next<wire::Publish>();
        said.add(std::to_string(*answer.packet_id) + answer.payload.str());
        peer.idle();
    });
    Client bus{options_for(broker)};
    auto service = bus.serve("work", [&](const Message& message) -> Bytes {
        entered.open();
        if (message.topic == "work" && !message.stop.stop_requested() && said.size() == 0) {
            static std::atomic<int> calls{0};
            if (++calls == 1) {
                std::mutex mutex;
                std::condition_variable_any stopped;
                std::unique_lock lock(mutex);
                stopped.wait(lock, message.stop, [] { return false; });
            }
        }
        return "done";
    });
    CHECK_EVENTUALLY(said.size() == 1);
    CHECK_EQUAL(said.all()[0], "2done");
}

TEST("inline handlers and callbacks run, and are told that they may not block") {
    fake::Broker broker(granting(echo));
    Client bus{options_for(broker)};
    Recorded<std::string> said;
    const auto complain = [&](auto call) {
        try {
            call();
            said.add("nothing");
        } catch (const UsageError& error) {
            said.add(error.what());
        }
    };
    auto watch = bus.subscribe("t",
                               [&](const Message&) {
                                   complain([&] { static_cast<void>(bus.request("t", "x")); });
                                   complain([&] { static_cast<void>(bus.subscribe("u", [](const Message&) {})); });
                                   complain([&] { bus.unsubscribe("t"); });
                                   complain([&] { bus.flush(); });
                                   bus.publish("other", "x"); // does not block
                               },
                               {.inline_handler = true});
    bus.publish("t", "x");
    CHECK_EVENTUALLY(said.size() == 4);
    for (const std::string& text : said.all()) CHECK(text.find("inline") != std::string::npos);
    Gate completed;
    bus.request_async("t", "x", {.inline_callback = true}, [&](const Outcome& outcome) {
        if (outcome.ok()) completed.open();
    });
    CHECK_EVENTUALLY(completed.is_open());
}

TEST("callbacks that throw are reported and harm nobody") {
    fake::Broker broker(granting(echo));
    Events events;
    Client bus{options_for(broker, &events)};
    for (const bool is_inline : {true, false})
        bus.request_async("t", "x", {.inline_callback = is_inline},
                          [](const Outcome&) { throw std::runtime_error("oops"); });
    CHECK_EVENTUALLY(events.count<event::HandlerFailed>() == 2);
    CHECK_EQUAL(bus.request("t", "x").text(), "x");
}

TEST("when a Subscription is gone its handler does not run, and its filter is taken back") {
    Gate unsubscribed;
    fake::Broker broker(granting([&](fake::Peer& peer, const wire::Packet& packet) {
        echo(peer, packet);
        if (std::holds_alternative<wire::Unsubscribe>(packet)) unsubscribed.open();
    }));
    Client bus{options_for(broker)};
    std::atomic<bool> is_inside{false};
    std::atomic<int> count{0};
    {
        auto subscription = bus.subscribe("t", [&](const Message&) {
            is_inside = true;
            std::this_thread::yield();
            ++count;
            is_inside = false;
        });
        for (int i = 0; i < 100; ++i) bus.publish("t", "x");
        CHECK_EVENTUALLY(count > 0);
    }
    CHECK(!is_inside);
    const int then = count;
    CHECK_EVENTUALLY(unsubscribed.is_open());
    bus.flush();
    CHECK_EQUAL(count.load(), then);
}

TEST("a handler may end its own subscription, or let go of all of them") {
    fake::Broker broker(granting(echo));
    Client bus{options_for(broker)};
    Gate ended;
    Subscription own;
    Gate assigned;
    own = bus.subscribe("t", [&](const Message&) {
        assigned.wait();
        own.unsubscribe();
        ended.open();
    });
    assigned.open();
    bus.publish("t", "x");
    CHECK_EVENTUALLY(ended.is_open());
}

TEST("a handler may ask, subscribe and disconnect") {
    fake::Broker broker(granting(echo));
    Client bus{options_for(broker)};
    Recorded<std::string> said;
    auto subscription = bus.subscribe("t", [&](const Message&) {
        said.add(bus.request("q", "answer").str());
        bus.subscribe("more", [](const Message&) {}).release();
        bus.disconnect();
        said.add("disconnected");
    });
    bus.publish("t", "x");
    CHECK_EVENTUALLY(said.size() == 2);
    CHECK_EQUAL(said.all()[0], "answer");
    CHECK_THROWS(Closed, "closed", (bus.publish("t", "x"), 0));
}

TEST("a completion callback may ask and wait for the answer") {
    fake::Broker broker(granting(echo));
    Client bus{options_for(broker)};
    Recorded<std::string> said;
    bus.request_async("t", "one", {},
                      [&](const Outcome& outcome) { said.add(outcome.value().str() + bus.request("t", "two").str()); });
    CHECK_EVENTUALLY(said.size() == 1);
    CHECK_EQUAL(said.all()[0], "onetwo");
}

// -- the end -------------------------------------------------------------------------------------------------------

TEST("after disconnect everything throws Closed, and nothing hangs") {
    fake::Broker broker(granting(echo));
    Client bus{options_for(broker)};
    auto subscription = bus.subscribe("t", [](const Message&) {});
    auto other = bus.subscribe("u", [](const Message&) {});
    auto answered = bus.request_async("t", "x");
    CHECK_EQUAL(answered.get().text(), "x");
    bus.disconnect(128, "failed connection to database");
    bus.disconnect(); // once more does no harm
    CHECK(!bus.is_connected());
    CHECK_THROWS(Closed, "closed", (bus.publish("t", "x"), 0));
    CHECK_THROWS(Closed, "closed", bus.request("t", "x"));
    CHECK_THROWS(Closed, "closed", bus.request_async("t", "x"));
    CHECK_THROWS(Closed, "closed", bus.subscribe("t", [](const Message&) {}));
    CHECK_THROWS(Closed, "closed", (bus.unsubscribe("t"), 0));
    CHECK_THROWS(Closed, "closed", (bus.flush(), 0));
    CHECK_THROWS(Closed, "closed", (bus.cancel(1), 0));
    CHECK_THROWS(Closed, "closed", bus.resume(1, 1s));
    CHECK_THROWS(Closed, "closed", (subscription.unsubscribe(), 0));
    answered.cancel(); // it is done: nothing to cancel
}

TEST("what was published before disconnect arrives, and DISCONNECT behind it") {
    Recorded<std::string> seen;
    fake::Broker broker([&](fake::Peer& peer) {
        peer.welcome();
        for (;;) {
            const wire::Packet packet = peer.receive();
            if (const auto* publish = std::get_if<wire::Publish>(&packet)) seen.add(*publish->topic);
            if (const auto* goodbye = std::get_if<wire::Disconnect>(&packet))
                seen.add(std::to_string(static_cast<int>(goodbye->reason)) + goodbye->reason_string.value_or(""));
        }
    });
    {
        Client bus{options_for(broker)};
        for (int i = 0; i < 1'000; ++i) bus.publish("t", std::string(1'000, 'x'));
    }
    CHECK_EVENTUALLY(seen.size() == 1'001);
    CHECK_EQUAL(seen.all().back(), "0");
    {
        Client bus{options_for(broker)};
        bus.disconnect(128, "why");
    }
    CHECK_EVENTUALLY(seen.size() == 1'002);
    CHECK_EQUAL(seen.all().back(), "128why");
}

TEST("destruction with requests in flight: whoever waits is told") {
    fake::Broker broker(granting());
    std::atomic<int> closed{0};
    std::vector<PendingRequest> pending;
    std::jthread waiter;
    {
        Client bus{options_for(broker)};
        for (int i = 0; i < 100; ++i) {
            pending.push_back(bus.request_async("t", "x", {.timeout = 600s}));
            bus.request_async("t", "x", {.timeout = 600s, .inline_callback = i % 2 == 0}, [&](const Outcome& outcome) {
                if (outcome.end() == Outcome::End::closed) ++closed;
            });
        }
        waiter = std::jthread([&, mine = pending[0]]() mutable {
            try {
                static_cast<void>(mine.get());
            } catch (const Closed&) {
                ++closed;
            }
        });
    }
    waiter.join();
    CHECK_EQUAL(closed.load(), 101);
    for (PendingRequest& request : pending) CHECK(request.outcome().end() == Outcome::End::closed);
}

TEST("a client that is destroyed from its own handlers and callbacks") {
    enum class From { handler, inline_handler, callback, inline_callback, event };
    for (const From from : {From::handler, From::inline_handler, From::callback, From::inline_callback, From::event}) {
        fake::Broker broker([&](fake::Peer& peer) {
            peer.welcome();
            for (;;) {
                const wire::Packet packet = peer.receive();
                if (const auto* subscribe = std::get_if<wire::Subscribe>(&packet))
                    peer.send(wire::SubAck{subscribe->packet_id});
                echo(peer, packet);
                if (const auto* publish = std::get_if<wire::Publish>(&packet); publish && *publish->topic == "break")
                    return;
            }
        });
        Options options = options_for(broker);
        auto bus = std::make_shared<std::unique_ptr<Client>>();
        auto gone = std::make_shared<Gate>();
        const auto destroy = [bus, gone] {
            bus->reset();
            gone->open();
        };
        if (from == From::event)
            options.on_event = [destroy](const Event& event) {
                if (std::holds_alternative<event::Disconnected>(event)) destroy();
            };
        *bus = std::make_unique<Client>(options);
        Client& client = **bus;
        switch (from) {
        case From::handler:
        case From::inline_handler:
            client
                .subscribe("t", [destroy](const Message&) { destroy(); },
                           {.inline_handler = from == From::inline_handler})
                .release();
            client.publish("t", "x");
            break;
        case From::callback:
        case From::inline_callback:
            client.request_async("t", "x", {.inline_callback = from == From::inline_callback},
                                 [destroy](const Outcome&) { destroy(); });
            break;
        case From::event: client.publish("break", "x"); break;
        }
        CHECK_EVENTUALLY(gone->is_open());
    }
}

TEST("a client that is destroyed while it tries to reconnect") {
    fake::Broker broker([](fake::Peer& peer) {
        if (peer.index == 0)
            peer.welcome();
        else
            peer.hang();
    });
    Events events;
    {
        Client bus{options_for(broker, &events)};
        CHECK_EVENTUALLY(broker.connections() == 2);
    }
    CHECK_EQUAL(events.count<event::Closed>(), 0U); // it was asked for
}

TEST("a client can be moved, and used from many threads") {
    fake::Broker broker(granting(echo));
    Client first{options_for(broker)};
    Client bus = std::move(first);
    std::atomic<int> right{0};
    std::vector<std::jthread> threads;
    for (int t = 0; t < 8; ++t)
        threads.emplace_back([&, t] {
            for (int i = 0; i < 50; ++i) {
                const std::string text = std::to_string(t) + "/" + std::to_string(i);
                if (bus.request("t", text).text() == text) ++right;
            }
        });
    for (std::jthread& thread : threads) thread.join();
    CHECK_EQUAL(right.load(), 400);
}

TEST("payloads are what they are, whatever they come as") {
    fake::Broker broker(granting(echo));
    Client bus{options_for(broker)};
    const std::vector<unsigned char> bytes = {0, 255, 1};
    CHECK(bus.request("t", bytes).vector() == bytes);
    CHECK(bus.request("t", "").empty());
    const std::string text = bus.request("t", std::string("text"));
    CHECK_EQUAL(text, "text");
    const std::byte raw[] = {std::byte{7}};
    CHECK_EQUAL(bus.request("t", std::span<const std::byte>(raw))[0], 7);
    CHECK_EQUAL(bus.request("t", std::string_view("a\0b", 3)).size(), 3U);
}
