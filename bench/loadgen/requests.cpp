// Requests and answers over TBus: pairs of a requester and a service that sends back what it got.
//
// Open loop: every request has its time in a schedule that does not wait for answers, and its latency counts
// from that time, whether or not the generator or the broker was ready then. Requesters are in this process,
// services in a second one, the storm in a third.

#include <cmath>
#include <iostream>
#include <random>

#include "commands.hpp"
#include "requests.hpp"
#include "summary.hpp"

namespace requests {

tbus::Wish Plan::wish(const char* side, std::size_t index) const {
    char id[32];
    const int run = side == std::string_view("r") ? getpid() : getppid();  // a broker may still know the last run
    std::snprintf(id, sizeof id, "%s%04zu-%07d", side, index, run);
    return {.client_id = id,
            .bulk_limit_bytes = bulking == Bulking::OFF ? 0 : static_cast<std::uint32_t>(BULK_BYTES),
            .filter = "",
            .segment_bytes = segment_bytes};
}

namespace {

constexpr std::int64_t SECOND_NS = 1'000'000'000;
// Totals are read so long before and after the counted time that reading them delays no counted request.
constexpr std::int64_t MARGIN_NS = 100 * MILLISECOND_NS;
constexpr std::int64_t DRAIN_NS = 2 * SECOND_NS;  // beyond the timeout
constexpr std::int64_t STORM_WINDOW_NS = SECOND_NS;
constexpr std::size_t MAX_PACKET_ID = 65535;
constexpr std::size_t STATES = 16;

// The packet ids of one requester: which are free, and when the requests that have the others were due.
class PacketIds {
public:
    explicit PacketIds(std::size_t count) : due_ns_(count + 1) {
        for (std::size_t id = 1; id <= count; ++id) free_.push_back(static_cast<std::uint16_t>(id));
    }

    bool is_any_free() const { return !free_.empty(); }

    std::uint16_t take(std::int64_t due_ns) {
        const std::uint16_t id = free_.front();
        free_.pop_front();
        due_ns_[id] = due_ns;
        return id;
    }

    // When the request was due; 0 if there is none of that id.
    std::int64_t give_back(std::uint16_t id) {
        if (id >= due_ns_.size() || due_ns_[id] == 0) return 0;
        free_.push_back(id);
        return std::exchange(due_ns_[id], 0);
    }

private:
    std::vector<std::int64_t> due_ns_;
    std::deque<std::uint16_t> free_;  // the longest unused first
};

// When whose next request is due. Pairs begin at chance phases, as independent programs would.
class Schedule {
public:
    Schedule(const Plan& plan, std::int64_t start_ns)
        : period_ns_(plan.rate > 0 ? 1e9 / plan.rate : 0), start_ns_(start_ns), phases_(plan.pairs) {
        std::mt19937 random(1);
        std::uniform_real_distribution<double> phase(0, period_ns_);
        for (std::size_t i = 0; i < plan.pairs; ++i) phases_[i] = {plan.pairs == 1 ? 0 : phase(random), i};
        std::sort(phases_.begin(), phases_.end());
    }

    std::int64_t due_ns() const {
        return start_ns_ + static_cast<std::int64_t>(static_cast<double>(round_) * period_ns_ + phases_[next_].first);
    }
    std::size_t pair() const { return phases_[next_].second; }
    void advance() {
        if (++next_ < phases_.size()) return;
        next_ = 0;
        ++round_;
    }

private:
    double period_ns_;
    std::int64_t start_ns_;
    std::vector<std::pair<double, std::size_t>> phases_;
    std::size_t next_ = 0;
    std::uint64_t round_ = 0;
};

struct Requester {
    Requester(std::size_t pair, const Plan& plan, const wire::Bytes& payload, std::size_t ids)
        : packet_ids(ids), request(tbus::request(topic_of(pair), plan.timeout_s, payload)) {}

    PacketIds packet_ids;
    wire::Bytes request;
    std::deque<std::int64_t> held_ns;  // due, but no packet id is free
};

struct Sample {
    std::int64_t due_ns;
    std::int64_t done_ns;

    double microseconds() const { return static_cast<double>(done_ns - due_ns) / 1000; }
};

class Run {
public:
    explicit Run(const Plan& plan)
        : plan_(plan), service_([&](const Control& control) { serve(plan, control); }), links_(plan.bulking) {
        be_punctual();
        tbus::append_string(payload_, "test");
        service_.control().await<Totals>();
        if (plan_.storm > 0) {
            storm_ = std::make_unique<Child>([&](const Control& control) { storm(plan, control); });
            storm_->control().await<StormReport>();
        }
        const double ids = plan.rate > 0 ? plan.rate * (plan.timeout_s + 3.0) : static_cast<double>(plan.window);
        const auto id_count = static_cast<std::size_t>(std::clamp(std::ceil(ids), 64.0, double{MAX_PACKET_ID}));
        for (std::size_t i = 0; i < plan.pairs; ++i) {
            links_.add(tbus::open_session(plan.port, plan.wish("r", i)));
            requesters_.emplace_back(i, plan, payload_, id_count);
        }
        links_.add_other(service_.control().fd(), SERVICE);
        if (storm_) links_.add_other(storm_->control().fd(), STORM);
    }

    void report() {
        const std::int64_t start_ns = net::monotonic_ns() + 20 * MILLISECOND_NS;
        from_ns_ = start_ns + static_cast<std::int64_t>(plan_.warmup_s * 1e9) + MARGIN_NS;
        until_ns_ = from_ns_ + static_cast<std::int64_t>(plan_.seconds * 1e9);
        storm_ns_ = from_ns_ + (until_ns_ - from_ns_) / 2;
        Schedule schedule(plan_, start_ns);
        if (plan_.rate == 0) fill_windows();

        send_until(from_ns_ - MARGIN_NS, schedule);
        const Snapshot before = snapshot();
        send_until(until_ns_ + MARGIN_NS, schedule);
        const Snapshot after = snapshot();
        drain();
        print(before, after);
        links_.leave();
    }

private:
    enum Other : std::uint64_t { SERVICE, STORM };

    struct Snapshot {
        std::int64_t at_ns;
        std::uint64_t sent;
        Totals requesters;
        Totals services;
        net::Usage watched;
        net::Usage generator;
    };

    Snapshot snapshot() const {
        std::vector<pid_t> own{getpid(), service_.pid()};
        if (storm_) own.push_back(storm_->pid());
        return {net::monotonic_ns(),      sent_,
                links_.totals(),          service_.ask<Totals>(TELL_TOTALS),
                net::usage(plan_.watch),  net::usage(own)};
    }

    void fill_windows() {
        for (std::size_t i = 0; i < requesters_.size(); ++i) {
            for (std::size_t sent = 0; sent < plan_.window; ++sent) send(i, net::monotonic_ns());
            links_.settle(i);
        }
    }

    void send_until(std::int64_t end_ns, Schedule& schedule) {
        std::vector<std::size_t> touched;
        for (std::int64_t now_ns = net::monotonic_ns(); now_ns < end_ns; now_ns = net::monotonic_ns()) {
            for (; plan_.rate > 0 && schedule.due_ns() <= now_ns; schedule.advance()) {
                send(schedule.pair(), schedule.due_ns());
                if (touched.empty() || touched.back() != schedule.pair()) touched.push_back(schedule.pair());
            }
            for (const std::size_t pair : touched) links_.settle(pair);
            touched.clear();
            if (storm_ && !is_stormy_ && now_ns >= storm_ns_) {
                storm_->control().order(BEGIN_STORM);
                is_stormy_ = true;
            }
            std::int64_t wake_ns = plan_.rate > 0 ? std::min(end_ns, schedule.due_ns()) : end_ns;
            if (storm_ && !is_stormy_) wake_ns = std::min(wake_ns, storm_ns_);
            turn(wake_ns);
        }
    }

    void send(std::size_t pair, std::int64_t due_ns) {
        Requester& requester = requesters_[pair];
        if (!requester.packet_ids.is_any_free()) {
            requester.held_ns.push_back(due_ns);
            return;
        }
        const std::int64_t now_ns = net::monotonic_ns();
        tbus::set_packet_id(requester.request, payload_.size(), requester.packet_ids.take(due_ns));
        links_.put(pair, requester.request, now_ns);
        ++sent_;
        if (due_ns >= from_ns_ && due_ns < until_ns_) lags_us_.push_back(static_cast<double>(now_ns - due_ns) / 1000);
    }

    void turn(std::int64_t deadline_ns) {
        links_.turn(
            deadline_ns, [this](std::size_t pair, const wire::Packet& packet) { take(pair, packet); },
            [this](std::uint64_t other) { hear(other); });
    }

    void hear(std::uint64_t other) {
        if (other == STORM)
            storm_report_ = storm_->control().await<StormReport>();
        else
            service_.control().await<Totals>();  // unasked: a complaint
    }

    void take(std::size_t pair, const wire::Packet& packet) {
        const tbus::Type type = tbus::type_of(packet);
        const bool is_answer = type == tbus::PUBLISH && (packet.flags & tbus::RESPONSE);
        if (!is_answer && type != tbus::REQACK)
            throw std::runtime_error("a requester got a message of type " + std::to_string(type));
        const tbus::Message message = tbus::view_message(packet);
        Requester& requester = requesters_[pair];
        const std::int64_t due_ns = requester.packet_ids.give_back(message.properties.packet_id);
        if (due_ns == 0) {
            ++unexpected_;
            return;
        }
        ++finished_;
        if (is_answer) {
            samples_.push_back({due_ns, net::monotonic_ns()});
            wrong_ += !std::equal(message.payload.begin(), message.payload.end(), payload_.begin(), payload_.end());
        } else {
            ++states_[message.properties.state % STATES];
        }
        if (is_draining_) return;
        if (plan_.rate == 0) {
            send(pair, net::monotonic_ns());
        } else if (!requester.held_ns.empty()) {
            send(pair, requester.held_ns.front());
            requester.held_ns.pop_front();
        }
    }

    void drain() {
        is_draining_ = true;
        const std::int64_t give_up_ns = net::monotonic_ns() + plan_.timeout_s * SECOND_NS + DRAIN_NS;
        while ((finished_ < sent_ || (is_stormy_ && storm_report_.end_ns == 0)) && net::monotonic_ns() < give_up_ns)
            turn(net::monotonic_ns() + 100 * MILLISECOND_NS);
    }

    std::vector<double> latencies_us(std::int64_t from_ns, std::int64_t until_ns) const {
        std::vector<double> found;
        for (const Sample& sample : samples_)
            if (sample.due_ns >= from_ns && sample.due_ns < until_ns) found.push_back(sample.microseconds());
        return found;
    }

    void print(const Snapshot& before, const Snapshot& after) const {
        const auto in_time = std::count_if(samples_.begin(), samples_.end(), [this](const Sample& sample) {
            return sample.done_ns >= from_ns_ && sample.done_ns < until_ns_;
        });
        std::size_t unsent = 0;
        for (const auto& requester : requesters_) unsent += requester.held_ns.size();
        std::cout << "{\"rate\": " << static_cast<double>(in_time) / plan_.seconds
                  << ", \"seconds\": " << plan_.seconds << ", \"sent\": " << sent_
                  << ", \"answered\": " << samples_.size() << ", \"timed_out\": " << states_[tbus::TIMED_OUT]
                  << ", \"lost\": " << sent_ - finished_ << ", \"unsent\": " << unsent
                  << ", \"unexpected\": " << unexpected_ << ", \"wrong\": " << wrong_;
        std::size_t errors = 0;
        for (std::size_t state = 0; state < STATES; ++state) {
            if (states_[state] == 0 || state == tbus::TIMED_OUT) continue;
            errors += states_[state];
            std::cout << ", \"state_" << state << "\": " << states_[state];
        }
        std::cout << ", \"errors\": " << errors << ", " << summary::json(latencies_us(from_ns_, until_ns_)) << ", "
                  << summary::json(lags_us_, "lag_");
        std::cout << ", \"traffic_s\": " << static_cast<double>(after.at_ns - before.at_ns) * 1e-9
                  << ", \"traffic_requests\": " << after.sent - before.sent << ", "
                  << json(after.requesters - before.requesters, "requester") << ", "
                  << json(after.services - before.services, "service") << ", "
                  << net::usage_json(after.watched - before.watched, after.generator - before.generator);
        if (storm_) print_storm();
        std::cout << "}" << std::endl;
    }

    void print_storm() const {
        const StormReport& found = storm_report_;
        std::cout << ", \"storm_ms\": " << static_cast<double>(found.end_ns - found.begin_ns) * 1e-6
                  << ", \"storm_accepted\": " << found.accepted << ", \"storm_refused\": " << found.refused << ", "
                  << summary::json(latencies_us(from_ns_, found.begin_ns), "before_") << ", "
                  << summary::json(latencies_us(found.begin_ns, found.begin_ns + STORM_WINDOW_NS), "with_") << ", "
                  << summary::json(latencies_us(found.begin_ns, found.end_ns), "during_");
    }

    const Plan plan_;
    wire::Bytes payload_;
    Child service_;
    std::unique_ptr<Child> storm_;
    Links links_;
    std::vector<Requester> requesters_;

    std::int64_t from_ns_ = 0;
    std::int64_t until_ns_ = 0;
    std::int64_t storm_ns_ = 0;
    bool is_stormy_ = false;
    bool is_draining_ = false;
    StormReport storm_report_;

    std::uint64_t sent_ = 0;
    std::uint64_t finished_ = 0;
    std::size_t unexpected_ = 0;
    std::size_t wrong_ = 0;
    std::size_t states_[STATES] = {};
    std::vector<Sample> samples_;
    std::vector<double> lags_us_;
};

void run_requests(const Options& options) {
    const Plan plan{.port = options.port(),
                    .service_port = options.count("service-port") ? options.port("service-port") : options.port(),
                    .pairs = options.count("pairs"),
                    .rate = options.number("rate"),
                    .window = options.count("window"),
                    .bulking = bulking_of(options.text("bulk")),
                    .concurrency = static_cast<std::uint16_t>(options.count("concurrency")),
                    .timeout_s = static_cast<std::uint32_t>(options.count("timeout")),
                    .segment_bytes = static_cast<int>(options.count("segment")),
                    .warmup_s = options.number("warmup"),
                    .seconds = options.number("seconds"),
                    .storm = options.count("storm"),
                    .storm_port = options.count("storm-port") ? options.port("storm-port") : options.port(),
                    .watch = options.list("watch")};
    if (plan.pairs == 0) throw std::invalid_argument("--pairs must be at least 1");
    if (plan.rate < 0) throw std::invalid_argument("--rate must not be negative");
    if (plan.window == 0 || plan.window > MAX_PACKET_ID) throw std::invalid_argument("--window must be 1 to 65535");
    if (const auto given = options.count("concurrency"); given == 0 || given > 65535)
        throw std::invalid_argument("--concurrency must be 1 to 65535");
    if (plan.seconds <= 0) throw std::invalid_argument("--seconds must be more than 0");
    Run(plan).report();
}

}  // namespace

}  // namespace requests

Command requests_command() {
    return {"requests",
            "TBus requests to services that send back what they got: latency, and bytes on the wire",
            {PORT,
             {"service-port", "0", "where the services are; 0: the same broker"},
             {"pairs", "1", "requesters, each with a topic and a service of its own"},
             {"rate", "1000", "requests per second and pair, by a schedule that waits for nothing; "
                              "0: as fast as answers come, --window at a time"},
             {"window", "256", "with --rate 0: requests per pair without an answer"},
             {"bulk", "adaptive", "off; fixed: the document's rule, 50 ms; adaptive: what is ready together"},
             {"concurrency", "256", "requests that a service takes at once"},
             {"timeout", "5", "seconds, of every request"},
             {"segment", "1448", "largest TCP segment in bytes, as Ethernet has it; 0: as the loopback has it"},
             {"storm", "0", "clients that connect all at once in the middle of the run"},
             {"storm-port", "0", "where to; 0: the same broker"},
             {"warmup", "0.3", "seconds before counting"},
             {"seconds", "3", "seconds of counting"},
             WATCH},
            requests::run_requests};
}
