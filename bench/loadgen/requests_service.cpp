#include "requests.hpp"

namespace requests {

void serve(const Plan& plan, const Control& control) {
    be_punctual();
    Links links(plan.bulking);
    for (std::size_t i = 0; i < plan.pairs; ++i) {
        tbus::Wish wish = plan.wish("s", i);
        wish.filter = topic_of(i);
        wish.concurrency = plan.concurrency;
        links.add(tbus::open_session(plan.service_port, wish));
    }
    links.add_other(control.fd(), 0);
    control.answer(links.totals());

    wire::Bytes answer;
    bool is_wanted = true;
    const auto take = [&](std::size_t index, const wire::Packet& packet) {
        if (tbus::type_of(packet) == tbus::REQACK) return;  // canceled, or too late: the requester counts it
        if (tbus::type_of(packet) != tbus::PUBLISH || !(packet.flags & tbus::REQUEST))
            throw std::runtime_error("a service got something else than a request");
        tbus::store_answer(answer, packet, tbus::view_message(packet));
        links.put(index, answer, net::monotonic_ns());
    };
    const auto obey = [&](std::uint64_t) {
        is_wanted = control.next_order() == TELL_TOTALS;
        if (is_wanted) control.answer(links.totals());
    };
    while (is_wanted) links.turn(net::monotonic_ns() + 1000 * MILLISECOND_NS, take, obey);
    links.leave();
}

}  // namespace requests
