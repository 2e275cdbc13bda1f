// Closed-loop throughput: publishers keep a bounded number of messages on their way, subscribers check
// and count every one.
//
// Every payload carries its stream (a topic of a publisher) and a sequence number, so that loss, duplicates
// and disorder are seen. "On its way" is what a publisher has sent less what arrived, averaged over its subscribers: no
// broker has reason to drop a QoS 0 message. At QoS 1 and 2 a publisher has in addition at most `window`
// messages without final acknowledgement.
//
// One thread does it all. A broker of one thread thus has the other core of a two-core machine to itself.

#include <algorithm>
#include <chrono>
#include <iostream>
#include <thread>

#include "commands.hpp"
#include "net.hpp"
#include "stamp.hpp"

namespace {

using wire::Packet;

constexpr std::uint16_t PACKET_IDS = 4096;  // a publisher uses the ids 1 to this, around and around
constexpr std::size_t BURST = 64;           // packets that a publisher writes before reads get their turn
constexpr double DRAIN_S = 2;              // without a delivery, and what is missing is lost

enum class Pattern {
    FAN,      // every message to every subscriber
    PAIRS,    // publisher i to subscriber i
    SCATTER,  // topic i of the one publisher to subscriber i: neighbours never have the same audience
};

struct Plan {
    std::uint16_t port;
    std::uint16_t sub_port;  // of the broker where the subscribers are
    std::size_t publishers;
    std::size_t subscribers;
    Pattern pattern;
    std::uint8_t qos;
    std::size_t payload_bytes;
    std::size_t topics;  // per publisher, used in turn
    bool has_mixed_sizes;
    std::size_t batch;  // packets a write
    std::size_t window;
    std::size_t outstanding;
    bool has_kept_sessions;  // of the subscribers
    double warmup_s;
    double seconds;
    std::vector<int> watch;

    std::size_t copies() const { return pattern == Pattern::FAN ? subscribers : 1; }
};

// Which filter a subscriber takes: exact when it wants one publisher of one topic, else with wildcards.
std::string filter_of(const Plan& plan, std::size_t subscriber) {
    if (plan.pattern == Pattern::SCATTER) return stamp::topic_of(0, subscriber, plan.topics);
    const std::size_t publisher = plan.pattern == Pattern::PAIRS ? subscriber : 0;
    const bool wants_all = plan.pattern == Pattern::FAN && plan.publishers > 1;
    const std::string base = wants_all ? "bench/t/+" : stamp::topic_of(publisher);
    return plan.topics > 1 ? base + "/+" : base;
}

std::string subscriber_id(std::size_t index) { return "bench-sub-" + std::to_string(index); }

class Publisher {
public:
    Publisher(const Plan& plan, std::size_t index)
        : connection(net::open_session(plan.port, "bench-pub-" + std::to_string(index))),
          qos_(plan.qos),
          batch_(index, {.packets = std::max(plan.batch, BURST),
                         .payload_bytes = plan.payload_bytes,
                         .qos = plan.qos,
                         .topics = plan.topics,
                         .has_mixed_sizes = plan.has_mixed_sizes}),
          sequences_(plan.topics),
          in_use_(plan.qos > 0 ? PACKET_IDS + 1 : 0) {}

    // How many messages it may send before reads get their turn.
    std::size_t room(const Plan& plan) const {
        if (connection.is_blocked()) return 0;
        std::size_t free = std::max(plan.batch, BURST);
        if (plan.subscribers > 0) {
            const std::size_t on_the_way = sent - std::min(sent, delivered / plan.copies());
            free = std::min(free, plan.outstanding - std::min(plan.outstanding, on_the_way));
        }
        if (qos_ == 0) return free - free % plan.batch;  // only whole batches
        return std::min(free, plan.window - (sent - acknowledged));
    }

    void publish(const Plan& plan, std::size_t count) {
        for (; count > 0 && !connection.is_blocked(); count -= std::min(count, plan.batch))
            write(std::min(count, plan.batch));
    }

    void receive() {
        connection.receive([this](const Packet& packet) {
            const std::uint16_t id = wire::load_u16(packet.body.data());
            if (id == 0 || id > PACKET_IDS || !in_use_[id]) throw std::runtime_error("unexpected packet id");
            if (packet.type == wire::PUBREC && qos_ == 2) {
                wire::append_ack(connection.outbox(), wire::PUBREL, id);
            } else if (packet.type == (qos_ == 1 ? wire::PUBACK : wire::PUBCOMP)) {
                in_use_[id] = false;
                ++acknowledged;
            } else {
                throw std::runtime_error("a publisher got packet type " + std::to_string(packet.type));
            }
        });
        connection.flush();
    }

    net::Connection connection;
    std::size_t sent = 0;
    std::size_t acknowledged = 0;
    std::size_t delivered = 0;  // all subscribers together

private:
    // Sends up to `count` messages in one write: fewer at the end of the batch, or if a packet id has not
    // been given back yet.
    void write(std::size_t count) {
        const std::size_t from = next_packet_;
        const std::size_t until = std::min(from + count, batch_.packets());
        for (; next_packet_ < until; ++next_packet_) {
            if (qos_ > 0) {
                if (in_use_[next_id_]) break;
                in_use_[next_id_] = true;
                batch_.set_packet_id(next_packet_, next_id_);
                next_id_ = next_id_ == PACKET_IDS ? std::uint16_t{1} : static_cast<std::uint16_t>(next_id_ + 1);
            }
            batch_.set_number(next_packet_, sequences_[batch_.topic(next_packet_)]++);
            ++sent;
        }
        connection.write(batch_.range(from, next_packet_));
        if (next_packet_ == batch_.packets()) next_packet_ = 0;
    }

    std::uint8_t qos_;
    stamp::Batch batch_;
    std::size_t next_packet_ = 0;  // in the batch
    std::vector<std::uint64_t> sequences_;
    std::uint16_t next_id_ = 1;
    std::vector<bool> in_use_;
};

class Subscriber {
public:
    Subscriber(const Plan& plan, std::size_t index)
        : connection(net::open_session(plan.sub_port, subscriber_id(index), {filter_of(plan, index)}, plan.qos,
                                       !plan.has_kept_sessions)),
          qos_(plan.qos),
          topics_(plan.topics),
          expected_(std::max<std::size_t>(plan.publishers, 1) * plan.topics) {
        if (plan.publishers == 0) connection.write(wire::pingreq());  // what `peer --mode blast` waits for
    }

    void receive(std::vector<Publisher>& publishers) {
        connection.receive([&](const Packet& packet) {
            if (packet.type == wire::PUBLISH) {
                take(packet, publishers);
            } else if (packet.type == wire::PUBREL && qos_ == 2) {
                wire::append_ack(connection.outbox(), wire::PUBCOMP, wire::load_u16(packet.body.data()));
            } else {
                throw std::runtime_error("a subscriber got packet type " + std::to_string(packet.type));
            }
        });
        connection.flush();
    }

    net::Connection connection;
    std::size_t received = 0;
    std::size_t disordered = 0;

private:
    void take(const Packet& packet, std::vector<Publisher>& publishers) {
        const wire::PublishView message = wire::view_publish(packet);
        if (packet.qos() != qos_) throw std::runtime_error("a message was not delivered at its QoS");
        const auto [stream, sequence] = stamp::read(message.payload);
        if (stream >= expected_.size()) throw std::runtime_error("a message names no known publisher");
        if (sequence != expected_[stream]) ++disordered;
        expected_[stream] = sequence + 1;
        ++received;
        const std::size_t publisher = topics_ == 1 ? stream : stream / topics_;
        if (publisher < publishers.size()) ++publishers[publisher].delivered;
        if (qos_ > 0)
            wire::append_ack(connection.outbox(), qos_ == 1 ? wire::PUBACK : wire::PUBREC, message.packet_id);
    }

    std::uint8_t qos_;
    std::size_t topics_;
    std::vector<std::uint64_t> expected_;
};

struct Snapshot {
    double at_s;
    std::size_t published;
    std::size_t delivered;
    net::Usage watched;
    net::Usage generator;
};

class Run {
public:
    explicit Run(const Plan& plan) : plan_(plan) {
        if (plan.has_kept_sessions) forget_sessions();  // of a run that did not come to its end
        // Subscribers first: nothing may be published that nobody wants.
        for (std::size_t i = 0; i < plan.subscribers; ++i) subscribers_.emplace_back(plan, i);
        // Another broker has to hear of them, and says nothing when it has.
        if (plan.sub_port != plan.port) std::this_thread::sleep_for(std::chrono::milliseconds(500));
        for (std::size_t i = 0; i < plan.publishers; ++i) publishers_.emplace_back(plan, i);
        for (std::size_t i = 0; i < plan.subscribers; ++i) watch(subscribers_[i].connection, i);
        for (std::size_t i = 0; i < plan.publishers; ++i) watch(publishers_[i].connection, PUBLISHER + i);
    }

    void report() {
        turn_until(net::monotonic_s() + plan_.warmup_s);
        const Snapshot start = snapshot();
        turn_until(start.at_s + plan_.seconds);
        const Snapshot end = snapshot();
        drain();
        if (plan_.has_kept_sessions) forget_sessions();

        const double seconds = end.at_s - start.at_s;
        const std::size_t counted =
            plan_.subscribers > 0 ? end.delivered - start.delivered : end.published - start.published;
        std::size_t sent = 0;
        std::size_t disordered = 0;
        for (const auto& publisher : publishers_) sent += publisher.sent;
        for (const auto& subscriber : subscribers_) disordered += subscriber.disordered;
        const auto missing = plan_.publishers > 0 && plan_.subscribers > 0
                                 ? static_cast<long long>(sent * plan_.copies()) -
                                       static_cast<long long>(received())
                                 : 0LL;
        std::printf(
            "{\"rate\": %.1f, \"count\": %zu, \"seconds\": %.4f, \"missing\": %lld, \"disordered\": %zu, %s}\n",
            static_cast<double>(counted) / seconds, counted, seconds, missing, disordered,
            net::usage_json(end.watched - start.watched, end.generator - start.generator).c_str());
    }

private:
    static constexpr std::uint64_t PUBLISHER = 1ULL << 32;

    void forget_sessions() const {
        for (std::size_t i = 0; i < plan_.subscribers; ++i) net::forget_session(plan_.sub_port, subscriber_id(i));
    }

    void watch(net::Connection& connection, std::uint64_t tag) {
        epoll_.add(connection.fd(), EPOLLIN, tag);
    }

    net::Connection& connection_of(std::uint64_t tag) {
        return tag >= PUBLISHER ? publishers_[tag - PUBLISHER].connection : subscribers_[tag].connection;
    }

    void turn_until(double deadline_s) {
        for (double now = net::monotonic_s(); now < deadline_s; now = net::monotonic_s()) {
            const bool may_go_on = publish();
            const int patience_ms = std::min(100, static_cast<int>((deadline_s - now) * 1000) + 1);
            turn(may_go_on ? 0 : patience_ms);
        }
    }

    // Lets each publisher write; true if one of them could go on at once.
    bool publish() {
        bool may_go_on = false;
        for (std::size_t i = 0; i < publishers_.size(); ++i) {
            Publisher& publisher = publishers_[i];
            const std::size_t count = publisher.room(plan_);
            if (count == 0) continue;
            publisher.publish(plan_, count);
            if (publisher.connection.is_blocked()) await_writable(PUBLISHER + i);
            may_go_on = may_go_on || publisher.room(plan_) > 0;
        }
        return may_go_on;
    }

    void turn(int timeout_ms) {
        epoll_.wait(timeout_ms, [this](std::uint64_t tag, std::uint32_t events) {
            net::Connection& connection = connection_of(tag);
            if ((events & EPOLLOUT) && connection.flush()) epoll_.change(connection.fd(), EPOLLIN, tag);
            if (events & ~static_cast<std::uint32_t>(EPOLLOUT)) {
                const bool was_blocked = connection.is_blocked();
                if (tag >= PUBLISHER)
                    publishers_[tag - PUBLISHER].receive();
                else
                    subscribers_[tag].receive(publishers_);
                if (connection.is_blocked() && !was_blocked) await_writable(tag);
            }
            if (connection.is_closed()) throw std::runtime_error("the broker closed a connection");
        });
    }

    void await_writable(std::uint64_t tag) {
        epoll_.change(connection_of(tag).fd(), EPOLLIN | EPOLLOUT, tag);
    }

    Snapshot snapshot() const {
        Snapshot now{net::monotonic_s(), 0, received(), net::usage(plan_.watch), net::usage(0)};
        for (const auto& publisher : publishers_)
            now.published += plan_.qos > 0 ? publisher.acknowledged : publisher.sent;
        return now;
    }

    std::size_t received() const {
        std::size_t sum = 0;
        for (const auto& subscriber : subscribers_) sum += subscriber.received;
        return sum;
    }

    bool is_drained() const {
        return std::all_of(publishers_.begin(), publishers_.end(), [this](const Publisher& publisher) {
            return publisher.delivered >= publisher.sent * plan_.copies() &&
                   (plan_.qos == 0 || publisher.acknowledged == publisher.sent);
        });
    }

    void drain() {
        std::size_t delivered = 0;
        double since_s = net::monotonic_s();
        while (plan_.subscribers > 0 && !is_drained() && net::monotonic_s() < since_s + DRAIN_S) {
            turn(100);
            if (const std::size_t now = received(); now != delivered) {
                delivered = now;
                since_s = net::monotonic_s();
            }
        }
    }

    const Plan plan_;
    net::Epoll epoll_;
    std::vector<Publisher> publishers_;
    std::vector<Subscriber> subscribers_;
};

Pattern pattern_of(const std::string& name) {
    if (name == "fan") return Pattern::FAN;
    if (name == "pairs") return Pattern::PAIRS;
    if (name == "scatter") return Pattern::SCATTER;
    throw std::invalid_argument("--pattern must be fan, pairs or scatter");
}

void run_throughput(const Options& options) {
    Plan plan{.port = options.port(),
              .sub_port = options.count("sub-port") ? options.port("sub-port") : options.port(),
              .publishers = options.count("publishers"),
              .subscribers = options.count("subscribers"),
              .pattern = pattern_of(options.text("pattern")),
              .qos = static_cast<std::uint8_t>(options.count("qos")),
              .payload_bytes = options.count("payload"),
              .topics = options.count("topics"),
              .has_mixed_sizes = options.count("mixed-sizes") != 0,
              .batch = options.count("batch"),
              .window = options.count("window"),
              .outstanding = options.count("outstanding"),
              .has_kept_sessions = options.count("kept") != 0,
              .warmup_s = options.number("warmup"),
              .seconds = options.number("seconds"),
              .watch = options.list("watch")};
    if (plan.qos > 2) throw std::invalid_argument("--qos must be 0, 1 or 2");
    if (plan.payload_bytes < stamp::MIN_PAYLOAD_BYTES) throw std::invalid_argument("--payload must be at least 17");
    if (plan.topics == 0 || plan.topics > BURST) throw std::invalid_argument("--topics must be 1 to 64");
    if (plan.batch == 0 || plan.outstanding < plan.batch)
        throw std::invalid_argument("--outstanding must be at least --batch, and that at least 1");
    if (plan.window == 0 || plan.window >= PACKET_IDS) throw std::invalid_argument("--window must be 1 to 4095");
    if (plan.pattern == Pattern::PAIRS && plan.publishers != plan.subscribers)
        throw std::invalid_argument("pairs need as many publishers as subscribers");
    if (plan.pattern == Pattern::SCATTER && (plan.publishers != 1 || plan.subscribers != plan.topics))
        throw std::invalid_argument("scatter needs one publisher and as many subscribers as topics");
    Run(plan).report();
}

}  // namespace

Command throughput_command() {
    return {"throughput",
            "deliveries per second with a bounded number of messages on their way",
            {PORT,
             {"sub-port", "0", "where the subscribers are; 0: the same broker"},
             {"publishers", "1", "publishing connections; 0 only receives (from `peer --mode blast`)"},
             {"subscribers", "1", "subscribing connections; 0 only publishes (to `peer --mode discard`)"},
             {"pattern", "fan", "fan: every message to every subscriber; pairs: publisher i to subscriber i; "
                                "scatter: topic i to subscriber i"},
             {"qos", "0", "of the publishes and of the subscriptions"},
             {"payload", "64", "bytes"},
             {"mixed-sizes", "0", "1: payloads from half to one and a half times --payload, none like the next"},
             {"topics", "1", "topics of each publisher, used in turn"},
             {"batch", "64", "packets a write; at QoS 1 and 2 at most this many"},
             {"window", "100", "QoS 1 and 2: unacknowledged messages per publisher"},
             {"outstanding", "4096", "messages per publisher sent and not yet delivered"},
             KEPT,
             {"warmup", "0.5", "seconds before counting"},
             {"seconds", "3", "seconds of counting"},
             WATCH},
            run_throughput};
}
