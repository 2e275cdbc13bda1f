// Connects per second: a number of slots, each of which connects, waits for its CONNACK, sends DISCONNECT,
// closes, and starts again under a new client id.

#include "commands.hpp"
#include "net.hpp"

namespace {

// A closed connection keeps its port for a minute, and there are 28,000 ports an address. 127/8 has plenty.
constexpr std::uint32_t SOURCE_ADDRESSES = 200;

class Slot {
public:
    Slot(net::Epoll& epoll, std::uint16_t port, std::size_t index)
        : epoll_(epoll), index_(index), broker_(net::loopback(port)) {}

    void start() {
        net::Fd fd = net::tcp_socket(false);
        net::set_option(fd.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
        const std::uint32_t host = INADDR_LOOPBACK + 1 + static_cast<std::uint32_t>(index_ + round_) % SOURCE_ADDRESSES;
        const sockaddr_in source = net::loopback(0, host);
        if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&source), sizeof source) < 0) net::fail("bind");
        if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&broker_), sizeof broker_) < 0 &&
            errno != EINPROGRESS)
            net::fail("connect");
        epoll_.add(fd.get(), EPOLLOUT, index_);
        connection_ = net::Connection(std::move(fd));
    }

    // True when a CONNACK came and the slot has started again.
    bool handle(std::uint32_t events) {
        if (events & EPOLLOUT) {
            connection_.write(wire::connect("bench-" + std::to_string(index_) + "-" + std::to_string(round_)));
            epoll_.change(connection_.fd(), EPOLLIN, index_);
            return false;
        }
        bool is_accepted = false;
        connection_.receive([&](const wire::Packet& packet) {
            if (packet.type != wire::CONNACK || packet.body[1] != 0) throw std::runtime_error("CONNECT refused");
            is_accepted = true;
        });
        if (connection_.is_closed()) throw std::runtime_error("the broker closed a connection before CONNACK");
        if (!is_accepted) return false;
        connection_.write(wire::disconnect());
        ++round_;
        start();
        return true;
    }

private:
    net::Epoll& epoll_;
    std::size_t index_;
    std::size_t round_ = 0;
    sockaddr_in broker_;
    net::Connection connection_;
};

void run_connects(const Options& options) {
    net::Epoll epoll;
    std::vector<Slot> slots;
    for (std::size_t i = 0; i < options.count("concurrent"); ++i) slots.emplace_back(epoll, options.port(), i);
    for (auto& slot : slots) slot.start();

    const auto watched = options.list("watch");
    std::size_t accepted = 0;
    const auto turn_until = [&](double deadline_s) {
        while (net::monotonic_s() < deadline_s)
            epoll.wait(10, [&](std::uint64_t tag, std::uint32_t events) { accepted += slots[tag].handle(events); });
    };
    turn_until(net::monotonic_s() + options.number("warmup"));
    accepted = 0;
    const double start_s = net::monotonic_s();
    const net::Usage watched_before = net::usage(watched);
    const net::Usage own_before = net::usage(0);
    turn_until(start_s + options.number("seconds"));
    const double seconds = net::monotonic_s() - start_s;
    std::printf("{\"rate\": %.1f, \"count\": %zu, \"seconds\": %.4f, %s}\n",
                static_cast<double>(accepted) / seconds, accepted, seconds,
                net::usage_json(net::usage(watched) - watched_before, net::usage(0) - own_before).c_str());
}

}  // namespace

Command connects_command() {
    return {"connects",
            "connections per second: TCP, CONNECT, CONNACK, DISCONNECT, close",
            {PORT,
             {"concurrent", "100", "connections being made at any time"},
             {"warmup", "0.5", "seconds before counting"},
             {"seconds", "2", "seconds of counting"},
             WATCH},
            run_connects};
}
