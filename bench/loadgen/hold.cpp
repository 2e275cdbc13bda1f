// Holds idle connections with subscriptions, after leaving retained messages if asked to; says {"ready": …}
// and stays until its standard input is closed.

#include <iostream>
#include <iterator>

#include "commands.hpp"
#include "net.hpp"

namespace {

constexpr std::size_t PER_REQUEST = 100;  // filters in a SUBSCRIBE, retained messages between two waits

// None matches what the benchmarks publish. One in ten has a wildcard.
std::string filter_of(std::size_t connection, std::size_t filter) {
    const std::string wildcard = filter % 10 == 9 ? "/+/" : "/";
    return "idle/s/" + std::to_string(connection) + wildcard + std::to_string(filter);
}

net::Connection hold(std::uint16_t port, std::size_t index, std::size_t filters) {
    auto connection = net::open_session(port, "idle-" + std::to_string(index));
    for (std::size_t from = 0; from < filters; from += PER_REQUEST) {
        std::vector<std::string> some;
        for (std::size_t i = from; i < std::min(from + PER_REQUEST, filters); ++i)
            some.push_back(filter_of(index, i));
        net::request(connection, wire::subscribe(static_cast<std::uint16_t>(from / PER_REQUEST + 1), some, 0),
                     wire::SUBACK, 1);
    }
    return connection;
}

void leave_retained(std::uint16_t port, std::size_t count) {
    auto connection = net::open_session(port, "idle-retainer");
    for (std::size_t from = 0; from < count; from += PER_REQUEST) {
        const std::size_t until = std::min(from + PER_REQUEST, count);
        wire::Bytes some;
        for (std::size_t i = from; i < until; ++i) {
            const auto topic = "idle/r/" + std::to_string(i / 1000) + "/" + std::to_string(i % 1000);
            wire::append(some, wire::publish(topic, wire::Bytes(64, 'r'), 1, true,
                                             static_cast<std::uint16_t>(i - from + 1)));
        }
        net::request(connection, some, wire::PUBACK, until - from);
    }
    connection.write(wire::disconnect());
}

void run_hold(const Options& options) {
    const std::size_t count = options.count("connections");
    leave_retained(options.port(), options.count("retained"));
    std::vector<net::Connection> connections;
    for (std::size_t i = 0; i < count; ++i)
        connections.push_back(hold(options.port(), i, options.count("filters")));
    std::cout << "{\"ready\": " << count << "}" << std::endl;
    std::string(std::istreambuf_iterator<char>(std::cin), {});
    for (auto& connection : connections) connection.write(wire::disconnect());
}

}  // namespace

Command hold_command() {
    return {"hold",
            "keep idle connections open until standard input is closed; prints {\"ready\": n} when they are",
            {PORT,
             {"connections", "5000", "idle connections"},
             {"filters", "1", "subscriptions per connection"},
             {"retained", "0", "retained messages to leave at the broker first"}},
            run_hold};
}
