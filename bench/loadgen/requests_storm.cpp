#include <sys/resource.h>

#include "requests.hpp"

namespace requests {

namespace {

constexpr double PATIENCE_S = 10;
// The storm's own work must not look like the broker's: whoever else wants the core has it first.
constexpr int NICENESS = 10;

enum class Outcome { OPEN, ACCEPTED, REFUSED };

Outcome outcome_of(net::Connection& connection) {
    Outcome outcome = Outcome::OPEN;
    try {
        connection.receive([&](const wire::Packet& packet) {
            const bool is_connack = tbus::type_of(packet) == tbus::CONNACK && !packet.body.empty();
            outcome = is_connack && packet.body[0] == 0 ? Outcome::ACCEPTED : Outcome::REFUSED;
        });
    } catch (const std::system_error&) {  // reset
        return Outcome::REFUSED;
    }
    return outcome == Outcome::OPEN && connection.is_closed() ? Outcome::REFUSED : outcome;
}

}  // namespace

void storm(const Plan& plan, const Control& control) {
    setpriority(PRIO_PROCESS, 0, NICENESS);
    net::Epoll epoll;
    std::vector<net::Connection> clients;
    for (std::size_t i = 0; i < plan.storm; ++i) clients.emplace_back(net::tcp_socket(false));
    std::vector<wire::Bytes> hellos;
    for (std::size_t i = 0; i < plan.storm; ++i)
        hellos.push_back(tbus::connect(plan.wish("x", i).client_id, 0));
    const wire::Bytes goodbye = tbus::disconnect();
    const sockaddr_in address = net::loopback(plan.storm_port);
    control.answer(StormReport{});
    if (control.next_order() != BEGIN_STORM) return;

    StormReport report{.begin_ns = net::monotonic_ns()};
    for (std::size_t i = 0; i < clients.size(); ++i) {
        if (connect(clients[i].fd(), reinterpret_cast<const sockaddr*>(&address), sizeof address) < 0 &&
            errno != EINPROGRESS)
            net::fail("connect");
        epoll.add(clients[i].fd(), EPOLLOUT, i);
    }
    const double give_up_s = net::monotonic_s() + PATIENCE_S;
    while (report.accepted + report.refused < clients.size() && net::monotonic_s() < give_up_s) {
        epoll.wait(100, [&](std::uint64_t i, std::uint32_t events) {
            net::Connection& client = clients[i];
            if (events & EPOLLOUT) {
                client.write(hellos[i]);
                epoll.change(client.fd(), EPOLLIN, i);
                return;
            }
            const Outcome outcome = outcome_of(client);
            if (outcome == Outcome::OPEN) return;
            if (outcome == Outcome::ACCEPTED) client.write(goodbye);
            client = net::Connection();
            ++(outcome == Outcome::ACCEPTED ? report.accepted : report.refused);
            report.end_ns = net::monotonic_ns();
        });
    }
    if (report.accepted + report.refused < clients.size()) report.end_ns = net::monotonic_ns();
    control.answer(report);
    control.next_order();  // the end
}

}  // namespace requests
