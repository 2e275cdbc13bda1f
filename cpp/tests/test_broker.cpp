// The client beside the real broker: every operation, every end, and what happens when one of them dies.

#define TEST_GROUP "broker"

#include <condition_variable>
#include <set>

#include <polybus/polybus.hpp>

#include "check.hpp"
#include "real_broker.hpp"
#include "recorder.hpp"

using namespace std::chrono_literals;
using namespace polybus;

namespace {

std::string unique(const char* prefix) {
    static std::atomic<int> number{0};
    return prefix + std::to_string(++number);
}

Options options_for(const real::Broker& broker, const char* id = "client", Events* events = nullptr) {
    Options options;
    options.client_id = unique(id);
    options.port = broker.port();
    options.reconnect.initial = 10ms;
    options.reconnect.max = 100ms;
    options.operation_timeout = 30s;
    if (events) options.on_event = events->recorder();
    return options;
}

Bytes triple(const Message& request) { return std::to_string(3 * std::stoi(request.payload)); }

/// Waits in a handler until its answer is not wanted any more.
void wait_for_stop(const Message& message) {
    std::mutex mutex;
    std::condition_variable_any stopped;
    std::unique_lock lock(mutex);
    stopped.wait(lock, message.stop, [] { return false; });
}

/// One broker for the tests that leave it as they found it.
real::Broker& shared() {
    static real::Broker broker;
    return broker;
}

} // namespace

TEST("publish and subscribe, with wildcards, to several clients") {
    Client one{options_for(shared())}, two{options_for(shared())};
    Recorded<std::string> first, second;
    const auto record = [](Recorded<std::string>& where) {
        return [&where](const Message& message) { where.add(message.topic + "=" + message.payload.str()); };
    };
    auto a = one.subscribe("sensors/#", record(first));
    auto b = two.subscribe("sensors/+/temperature", record(second));
    one.publish("sensors/kitchen/temperature", "21.5");
    one.publish("sensors/kitchen/humidity", "40");
    CHECK_EVENTUALLY(first.size() == 2 && second.size() == 1);
    CHECK_EQUAL(second.all()[0], "sensors/kitchen/temperature=21.5");
    b.unsubscribe();
    one.publish("sensors/kitchen/temperature", "22");
    CHECK_EVENTUALLY(first.size() == 3);
    two.flush();
    CHECK_EQUAL(second.size(), 1U);
}

TEST("a service, with every way of bulking") {
    for (const Bulking bulking : {Bulking::adaptive, Bulking::fixed, Bulking::off}) {
        Options serving = options_for(shared(), "service");
        serving.bulking = bulking;
        Options asking = options_for(shared(), "asker");
        asking.bulking = bulking;
        Client server{serving}, bus{asking};
        auto service = server.serve("triple", triple, {.concurrency = 2});
        CHECK_EQUAL(bus.request("triple", "14").text(), "42");
        std::vector<PendingRequest> pending;
        for (int i = 0; i < 200; ++i)
            pending.push_back(bus.request_async("triple", std::to_string(i), {.timeout = 60s}));
        for (int i = 0; i < 200; ++i)
            CHECK_EQUAL(pending[static_cast<std::size_t>(i)].get().str(), std::to_string(3 * i));
    }
}

TEST("inline service, callbacks, many threads: every request gets its own answer") {
    Client server{options_for(shared(), "service")}, bus{options_for(shared(), "asker")};
    auto service =
        server.serve("echo", [](const Message& m) { return m.payload; }, {.concurrency = 64, .inline_handler = true});
    std::atomic<int> right{0};
    std::atomic<int> ended{0};
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t)
        threads.emplace_back([&, t] {
            for (int i = 0; i < 500; ++i) {
                const std::string text = std::to_string(t * 1'000 + i);
                bus.request_async("echo", text, {.timeout = 60s, .inline_callback = i % 2 == 0},
                                  [&, text](const Outcome& outcome) {
                                      if (outcome.ok() && outcome.value() == text) ++right;
                                      ++ended;
                                  });
            }
        });
    for (std::jthread& thread : threads) thread.join();
    CHECK_EVENTUALLY(ended == 2'000);
    CHECK_EQUAL(right.load(), 2'000);
}

TEST("how requests end: error, timeout, not delivered, canceled") {
    Client server{options_for(shared(), "service")}, bus{options_for(shared(), "asker")};
    Gate entered, stopped;
    auto fails = server.serve("fails", [](const Message&) -> Bytes { throw std::runtime_error("cannot do it"); });
    auto hangs = server.serve("hangs", [&](const Message& message) -> Bytes {
        entered.open();
        wait_for_stop(message);
        stopped.open();
        return {};
    });
    CHECK_THROWS(ServiceError, "cannot do it", bus.request("fails", "x"));
    CHECK_THROWS(NotDelivered, "", bus.request("nobody", "x", {.timeout = 60s, .wait_for_service = false}));
    CHECK_THROWS(RequestTimeout, "", bus.request("nobody/at/all", "x", {.timeout = 1s}));
    auto pending = bus.request_async("hangs", "x", {.timeout = 60s});
    entered.wait();
    pending.cancel();
    CHECK_THROWS(RequestCanceled, "", pending.get());
    CHECK_EVENTUALLY(stopped.is_open()); // TB-10: it reaches the service
    CHECK_THROWS(RequestTimeout, "", bus.request("hangs", "x", {.timeout = 100ms}));
}

TEST("refused filters, and one that was never subscribed") {
    Client bus{options_for(shared())};
    const auto code_of = [](auto call) {
        try {
            call();
        } catch (const SubscriptionRefused& error) {
            return error.code();
        }
        return 0;
    };
    CHECK_EQUAL(code_of([&] { static_cast<void>(bus.subscribe("a/#/b", [](const Message&) {})); }), 143);
    CHECK_EQUAL(code_of([&] { static_cast<void>(bus.serve("", [](const Message&) { return Bytes(); })); }), 143);
    CHECK_EQUAL(code_of([&] { bus.unsubscribe("never"); }), 17);
    CHECK_EQUAL(code_of([&] { bus.unsubscribe("a/#/b"); }), 143);
    auto subscription = bus.subscribe("a", [](const Message&) {});
    CHECK_EQUAL(code_of([&] { bus.unsubscribe("a"); }), 0);
}

TEST("messages and requests that wait for somebody to come") {
    Client bus{options_for(shared())}, late{options_for(shared())};
    Recorded<std::string> got;
    bus.publish("waits", "kept", {.timeout = 60s});
    bus.publish("waits", "not kept");
    auto pending = bus.request_async("late/triple", "14", {.priority = true, .timeout = 60s});
    bus.flush();
    auto a = late.subscribe("waits", [&](const Message& message) { got.add(message.payload.str()); });
    auto b = late.serve("late/#", triple);
    CHECK_EQUAL(pending.get().text(), "42");
    CHECK_EVENTUALLY(got.size() == 1);
    CHECK_EQUAL(got.all()[0], "kept");
}

TEST("an answer that waits for its requester to come back, in another run") {
    Client server{options_for(shared(), "service")};
    Gate asked, may_answer;
    auto service = server.serve("slow/triple", [&](const Message& message) {
        asked.open();
        may_answer.wait();
        return triple(message);
    });
    Options options = options_for(shared(), "asker");
    std::uint16_t id = 0;
    {
        Client bus{options};
        id = bus.request_async("slow/triple", "14", {.timeout = 60s}).id();
        asked.wait();
    }
    may_answer.open();
    options.clean_start = false;
    Client again{options};
    CHECK_EQUAL(again.resume(id, 60s).get().text(), "42");
}

TEST("the id that is in use is refused, and the older connection notices nothing") {
    Options options = options_for(shared());
    Client bus{options};
    try {
        Client twin{options};
        CHECK(false);
    } catch (const ConnectRefused& error) {
        CHECK_EQUAL(error.code(), 132);
    }
    bus.flush();
    CHECK(bus.is_connected());
}

TEST("a service that asks another service, and one that ends while it works") {
    Client server{options_for(shared(), "service")}, bus{options_for(shared(), "asker")};
    auto inner = server.serve("inner", triple);
    auto outer =
        server.serve("outer", [&](const Message& message) { return server.request("inner", message.payload); });
    CHECK_EQUAL(bus.request("outer", "14").text(), "42");
    // Two instances: when one disconnects with the request in hand, the other one gets it.
    Gate entered;
    auto dying = std::make_unique<Client>(options_for(shared(), "dying"));
    dying
        ->serve("work",
                [&](const Message& message) -> Bytes {
                    entered.open();
                    wait_for_stop(message);
                    return "from the dead";
                })
        .release();
    auto pending = bus.request_async("work", "x", {.timeout = 60s});
    entered.wait();
    auto heir = server.serve("work", [](const Message&) -> Bytes { return "from the heir"; });
    dying.reset();
    CHECK_EQUAL(pending.get().text(), "from the heir");
}

TEST("payloads of 0 bytes and of 64 MB") {
    real::Broker broker("[limits]\npacket_size_bytes = 80000000\nqueued_bytes_per_session = 400000000\n"
                        "stored_bytes = 400000000\n");
    Client server{options_for(broker, "service")}, bus{options_for(broker, "asker")};
    auto service = server.serve("echo", [](const Message& message) { return message.payload; });
    CHECK(bus.request("echo", "").empty());
    std::string large(64 * 1024 * 1024, '\0');
    for (std::size_t i = 0; i < large.size(); i += 4'096) large[i] = static_cast<char>(i / 4'096);
    const Bytes answer = bus.request("echo", large, {.timeout = 60s});
    CHECK(answer.text() == large);
    Gate arrived;
    auto watch = server.subscribe("large", [&](const Message& message) {
        if (message.text() == large) arrived.open();
    });
    bus.publish("large", large);
    CHECK_EVENTUALLY(arrived.is_open());
}

TEST("what is too large for the broker is given up, and the rest goes on") {
    real::Broker broker("[limits]\npacket_size_bytes = 200000\n");
    Events events;
    Client bus{options_for(broker, "asker", &events)};
    auto service = bus.serve("echo", [](const Message& message) { return message.payload; });
    CHECK_THROWS(RequestRefused, "larger than 200000",
                 bus.request("echo", std::string(40'000'000, 'x'), {.timeout = 60s}));
    CHECK_THROWS(RequestRefused, "larger than 200000",
                 bus.request("echo", std::string(201'000, 'x'), {.timeout = 60s}));
    bus.publish("large", std::string(40'000'000, 'x'));
    CHECK_EVENTUALLY(events.count<event::MessageRefused>() == 1);
    CHECK_EQUAL(events.of<event::MessageRefused>()[0].size_bytes, 40'000'000U);
    CHECK_EQUAL(bus.request("echo", "still here", {.timeout = 60s}).text(), "still here");
}

TEST("the broker is killed and started again under traffic: every request is answered or reported") {
    real::Broker broker;
    Events events;
    Client server{options_for(broker, "service")}, bus{options_for(broker, "asker", &events)};
    auto service = server.serve("echo", [](const Message& m) { return m.payload; }, {.concurrency = 8});
    std::atomic<int> answered{0}, reported{0}, wrong{0};
    std::atomic<int> asked{0};
    std::jthread traffic([&](const std::stop_token& over) {
        for (; !over.stop_requested(); ++asked) {
            const std::string text = std::to_string(asked.load());
            bus.request_async("echo", text, {.timeout = 10s}, [&, text](const Outcome& outcome) {
                if (!outcome.ok())
                    ++reported;
                else if (outcome.value() == text)
                    ++answered;
                else
                    ++wrong;
            });
            // A load, not a flood: so many are under way at once, however long the broker is away.
            while (asked - answered - reported - wrong > 500 && !over.stop_requested()) std::this_thread::yield();
        }
    });
    for (int round = 0; round < 3; ++round) {
        const int before = answered;
        CHECK_EVENTUALLY(answered > before + 100);
        broker.kill();
        const std::size_t connections = events.count<event::Connected>();
        broker.start();
        CHECK_EVENTUALLY(events.count<event::Connected>() > connections);
    }
    const int before = answered;
    CHECK_EVENTUALLY(answered > before + 100);
    traffic.request_stop();
    traffic.join();
    CHECK_EVENTUALLY(answered + reported + wrong == asked);
    CHECK_EQUAL(wrong.load(), 0);
    CHECK_EQUAL(bus.request("echo", "and now", {.timeout = 60s}).text(), "and now");
}

TEST("a token and a user name") {
    real::Broker broker(
        "[auth]\nallow_anonymous = false\npassword_file = \"users.txt\"\n", "",
        [](const std::filesystem::path& folder) {
            std::ofstream(folder / "password") << "secret\n";
            real::Broker::command({"passwd", (folder / "users.txt").string(), "alice", "--stdin"}, folder / "password");
        });
    Options options = options_for(broker);
    CHECK_THROWS(ConnectRefused, "135", Client(options));
    options.user_name = "alice";
    options.token = "wrong";
    CHECK_THROWS(ConnectRefused, "135", Client(options));
    options.token = "secret";
    Client bus{options};
    auto service = bus.serve("triple", triple);
    CHECK_EQUAL(bus.request("triple", "14").text(), "42");
}
