// What waits for a session that is away: `queue` leaves it at the broker, `drain` comes for it. In between the
// broker may be stopped and started; the times of `drain` are CLOCK_MONOTONIC's, to be compared with others'.

#include <cstdio>

#include "commands.hpp"
#include "net.hpp"
#include "stamp.hpp"

namespace {

using wire::Packet;

constexpr const char* SESSION = "bench-backlog";
constexpr std::size_t PACKETS = 64;  // a write
constexpr std::uint16_t PACKET_IDS = 65535;

std::size_t topics_of(const Options& options) {
    const std::size_t topics = options.count("topics");
    if (topics == 0 || topics > PACKETS) throw std::invalid_argument("--topics must be 1 to 64");
    return topics;
}

void leave_subscription(std::uint16_t port, std::size_t topics) {
    net::forget_session(port, SESSION);
    const std::string filter = stamp::topic_of(0) + (topics > 1 ? "/+" : "");
    auto session = net::open_session(port, SESSION, {filter}, 1, false);
    session.write(wire::disconnect());
    for (pollfd ready{session.fd(), POLLIN, 0}; !session.is_closed(); poll(&ready, 1, 1000))
        session.receive([](const Packet&) {});
}

void run_queue(const Options& options) {
    const std::size_t count = options.count("count");
    const std::size_t window = options.count("window");
    const std::size_t payload_bytes = options.count("payload");
    if (payload_bytes < stamp::MIN_PAYLOAD_BYTES) throw std::invalid_argument("--payload must be at least 17");
    if (window == 0 || window > PACKET_IDS) throw std::invalid_argument("--window must be 1 to 65535");
    const std::size_t topics = topics_of(options);
    leave_subscription(options.port(), topics);

    auto publisher = net::open_session(options.port(), "bench-pub");
    stamp::Batch batch(0, {.packets = PACKETS,
                           .payload_bytes = payload_bytes,
                           .qos = 1,
                           .topics = topics,
                           .has_mixed_sizes = options.count("mixed-sizes") != 0});
    std::vector<std::uint64_t> sequences(topics);
    net::Epoll epoll;
    epoll.add(publisher.fd(), EPOLLIN | EPOLLOUT | EPOLLET, 0);
    std::size_t sent = 0;
    std::size_t acknowledged = 0;
    const double begun_s = net::monotonic_s();
    double heard_s = begun_s;
    while (acknowledged < count) {
        while (sent < count && sent - acknowledged < window && publisher.flush()) {
            const std::size_t from = sent % PACKETS;
            const std::size_t some = std::min({PACKETS - from, count - sent, window - (sent - acknowledged)});
            for (std::size_t i = from; i < from + some; ++i, ++sent) {
                batch.set_packet_id(i, static_cast<std::uint16_t>(sent % PACKET_IDS + 1));
                batch.set_number(i, sequences[batch.topic(i)]++);
            }
            publisher.write(batch.range(from, from + some));
        }
        epoll.wait(1000, [&](std::uint64_t, std::uint32_t) {
            publisher.flush();
            for (std::size_t before = acknowledged + 1; before != acknowledged;) {
                before = acknowledged;
                publisher.receive([&](const Packet& packet) {
                    if (packet.type != wire::PUBACK) throw std::runtime_error("a publisher got no PUBACK");
                    ++acknowledged;
                });
            }
            heard_s = net::monotonic_s();
        });
        if (publisher.is_closed()) throw std::runtime_error("the broker closed a connection");
        if (net::monotonic_s() > heard_s + 20) throw std::runtime_error("no PUBACK for 20 s");
    }
    const double seconds = net::monotonic_s() - begun_s;
    publisher.write(wire::disconnect());
    std::printf("{\"count\": %zu, \"seconds\": %.4f, \"rate\": %.1f}\n", count, seconds,
                static_cast<double>(count) / seconds);
}

void run_drain(const Options& options) {
    const std::size_t count = options.count("count");
    const double patience_s = options.number("patience");
    net::Connection session = net::open_connection(options.port());
    bool is_present = false;
    bool is_welcome = false;
    std::size_t received = 0;
    std::size_t repeated = 0;
    std::vector<std::uint64_t> expected(topics_of(options));
    std::size_t disordered = 0;
    double first_s = 0;
    double last_s = net::monotonic_s();

    const auto take = [&](const Packet& packet) {
        if (packet.type == wire::CONNACK) {
            if (packet.body[1] != 0) throw std::runtime_error("CONNECT refused");
            is_welcome = true;
            is_present = packet.body[0] != 0;
            return;
        }
        if (packet.type != wire::PUBLISH)
            throw std::runtime_error("a subscriber got packet type " + std::to_string(packet.type));
        const auto message = wire::view_publish(packet);
        const auto [stream, number] = stamp::read(message.payload);
        if (stream >= expected.size()) throw std::runtime_error("a message names no known topic");
        if (first_s == 0) first_s = net::monotonic_s();
        wire::append_ack(session.outbox(), wire::PUBACK, message.packet_id);
        if (number < expected[stream]) {
            ++repeated;  // allowed at QoS 1
            return;
        }
        if (number > expected[stream]) ++disordered;
        expected[stream] = number + 1;
        ++received;
    };
    session.write(wire::connect(SESSION, false));
    while (received < count && net::monotonic_s() < last_s + patience_s) {
        pollfd ready{session.fd(), static_cast<short>(session.is_blocked() ? POLLIN | POLLOUT : POLLIN), 0};
        if (poll(&ready, 1, 100) == 0) continue;
        const std::size_t before = received;
        if (ready.revents & ~POLLOUT) session.receive(take);
        session.flush();
        if (session.is_closed()) throw std::runtime_error("the broker closed a connection");
        if (is_welcome && !is_present) throw std::runtime_error("the broker has forgotten the session");
        if (received != before) last_s = net::monotonic_s();
    }
    const double seconds = last_s - first_s;
    net::forget_session(options.port(), SESSION);
    std::printf("{\"count\": %zu, \"missing\": %zu, \"repeated\": %zu, \"disordered\": %zu, \"first_at_s\": %.6f, "
                "\"last_at_s\": %.6f, \"rate\": %.1f}\n",
                received, count - received, repeated, disordered, first_s, last_s,
                seconds > 0 ? static_cast<double>(received) / seconds : 0.0);
}

const Option COUNT{"count", "1000000", "messages"};
const Option TOPICS{"topics", "1", "topics used in turn"};

}  // namespace

Command queue_command() {
    return {"queue",
            "leave QoS 1 messages for a kept session that is away; all are acknowledged when it ends",
            {PORT,
             COUNT,
             TOPICS,
             {"payload", "64", "bytes"},
             {"mixed-sizes", "0", "1: payloads from half to one and a half times --payload, none like the next"},
             {"window", "1000", "unacknowledged messages"}},
            run_queue};
}

Command drain_command() {
    return {"drain",
            "come back for what `queue` left, and forget the session",
            {PORT, COUNT, TOPICS, {"patience", "20", "seconds without a message after which the rest is missing"}},
            run_drain};
}
