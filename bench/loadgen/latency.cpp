// Open-loop latency: one publisher sends at a fixed rate whatever comes back; the time of sending travels
// in the payload, and one subscriber takes the difference. At QoS 1 so does the publisher, with each PUBACK.

#include <algorithm>

#include "commands.hpp"
#include "net.hpp"
#include "stamp.hpp"
#include "summary.hpp"

namespace {

using summary::percentile;

constexpr const char* SUBSCRIBER_ID = "bench-sub";

net::Fd ticking(double rate) {
    net::Fd timer{timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)};
    if (timer.get() < 0) net::fail("timerfd_create");
    const auto period_ns = static_cast<long>(1e9 / rate);
    const timespec period{period_ns / 1'000'000'000, period_ns % 1'000'000'000};
    const itimerspec schedule{period, period};
    if (timerfd_settime(timer.get(), 0, &schedule, nullptr) < 0) net::fail("timerfd_settime");
    return timer;
}

void run_latency(const Options& options) {
    enum Tag : std::uint64_t { TIMER, PUBLISHER, SUBSCRIBER };
    const std::size_t payload_bytes = options.count("payload");
    const double rate = options.number("rate");
    if (payload_bytes < stamp::MIN_PAYLOAD_BYTES) throw std::invalid_argument("--payload must be at least 17");
    if (rate < 1) throw std::invalid_argument("--rate must be at least 1");
    const auto qos = static_cast<std::uint8_t>(options.count("qos"));
    if (qos > 1) throw std::invalid_argument("--qos must be 0 or 1");
    const bool is_kept = options.count("kept") != 0;
    if (is_kept) net::forget_session(options.port(), SUBSCRIBER_ID);  // of a run that did not come to its end

    auto subscriber = net::open_session(options.port(), SUBSCRIBER_ID, {stamp::topic_of(0)}, qos, !is_kept);
    auto publisher = net::open_session(options.port(), "bench-pub");
    stamp::Batch message(0, {.payload_bytes = payload_bytes, .qos = qos});
    const net::Fd timer = ticking(rate);
    net::Epoll epoll;
    epoll.add(timer.get(), EPOLLIN, TIMER);
    epoll.add(publisher.fd(), EPOLLIN, PUBLISHER);
    epoll.add(subscriber.fd(), EPOLLIN, SUBSCRIBER);

    const auto watched = options.list("watch");
    const double count_from_s = net::monotonic_s() + options.number("warmup");
    const double end_s = count_from_s + options.number("seconds");
    const auto count_from_ns = static_cast<std::uint64_t>(count_from_s * 1e9);
    std::vector<double> microseconds;
    std::vector<double> acknowledged_after_us;
    std::vector<std::uint64_t> sent_at_ns(65536);  // by packet id; 0: not in use
    std::size_t sent = 0;
    std::size_t received = 0;
    std::size_t acknowledged = 0;
    std::size_t late = 0;  // ticks that this program, not the broker, slept through
    bool is_counting = false;
    net::Usage watched_before;
    net::Usage own_before;

    const auto tick = [&] {
        std::uint64_t due = 0;
        if (read(timer.get(), &due, sizeof due) != sizeof due) return;
        late += due - 1;
        for (; due > 0; --due, ++sent) {
            const auto now_ns = static_cast<std::uint64_t>(net::monotonic_ns());
            message.set_number(0, now_ns);
            if (qos > 0) {
                const auto id = static_cast<std::uint16_t>(sent % 65535 + 1);
                if (sent_at_ns[id] != 0) throw std::runtime_error("65,535 messages are not acknowledged");
                sent_at_ns[id] = now_ns;
                message.set_packet_id(0, id);
            }
            publisher.write(message.range(0, 1));
        }
    };
    const auto take = [&](const wire::Packet& packet) {
        const auto now_ns = static_cast<std::uint64_t>(net::monotonic_ns());
        if (packet.type != wire::PUBLISH)
            throw std::runtime_error("a subscriber got packet type " + std::to_string(packet.type));
        const auto published = wire::view_publish(packet);
        const auto [_, sent_ns] = stamp::read(published.payload);
        ++received;
        if (sent_ns >= count_from_ns) microseconds.push_back(static_cast<double>(now_ns - sent_ns) / 1000);
        if (packet.qos() > 0) wire::append_ack(subscriber.outbox(), wire::PUBACK, published.packet_id);
    };
    const auto take_acknowledgement = [&](const wire::Packet& packet) {
        const auto now_ns = static_cast<std::uint64_t>(net::monotonic_ns());
        const std::uint64_t sent_ns = packet.type == wire::PUBACK
                                          ? std::exchange(sent_at_ns[wire::load_u16(packet.body.data())], 0)
                                          : 0;
        if (sent_ns == 0) throw std::runtime_error("a publisher got something that is not due");
        ++acknowledged;
        if (sent_ns >= count_from_ns) acknowledged_after_us.push_back(static_cast<double>(now_ns - sent_ns) / 1000);
    };
    const auto is_waiting = [&] { return received < sent || (qos > 0 && acknowledged < sent); };
    for (double now = net::monotonic_s(); now < end_s || is_waiting(); now = net::monotonic_s()) {
        if (now > end_s + 5) break;
        if (now >= count_from_s && !is_counting) {
            is_counting = true;
            watched_before = net::usage(watched);
            own_before = net::usage(0);
        }
        epoll.wait(10, [&](std::uint64_t tag, std::uint32_t) {
            if (tag == TIMER && now < end_s) tick();
            if (tag == SUBSCRIBER) {
                subscriber.receive(take);
                subscriber.flush();
            }
            if (tag == PUBLISHER) publisher.receive(take_acknowledgement);
            if (subscriber.is_closed() || publisher.is_closed())
                throw std::runtime_error("the broker closed a connection");
        });
    }
    if (microseconds.empty()) throw std::runtime_error("nothing was delivered");
    if (is_kept) net::forget_session(options.port(), SUBSCRIBER_ID);

    std::sort(microseconds.begin(), microseconds.end());
    std::printf(
        "{\"p50_us\": %.1f, \"p90_us\": %.1f, \"p99_us\": %.1f, \"p999_us\": %.1f, \"max_us\": %.1f, "
        "\"count\": %zu, \"missing\": %zu, \"late\": %zu, \"seconds\": %.4f, "
        "\"unacknowledged\": %zu, %s, %s}\n",
        percentile(microseconds, 0.5), percentile(microseconds, 0.9), percentile(microseconds, 0.99),
        percentile(microseconds, 0.999), microseconds.back(), microseconds.size(), sent - received, late,
        options.number("seconds"), qos > 0 ? sent - acknowledged : 0,
        summary::json(acknowledged_after_us, "puback_").c_str(),
        net::usage_json(net::usage(watched) - watched_before, net::usage(0) - own_before).c_str());
}

}  // namespace

Command latency_command() {
    return {"latency",
            "microseconds from write to read, one publisher to one subscriber, at a fixed rate",
            {PORT,
             {"qos", "0", "0, or 1: then the time until each PUBACK is reported as well"},
             KEPT,
             {"payload", "64", "bytes"},
             {"rate", "1000", "messages per second"},
             {"warmup", "1", "seconds before counting"},
             {"seconds", "4", "seconds of counting"},
             WATCH},
            run_latency};
}
