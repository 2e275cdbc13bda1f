// Load for a broker, through the client library:
//
//     polybus-client-bench service  --port P --topic T [--pairs N] [--concurrency N] [--bulk M]
//     polybus-client-bench requests --port P --topic T --window W --seconds S [--pairs N] [--rate R] [--size N] [--bulk M]
//     polybus-client-bench publish  --port P --topic T --seconds S --size N [--bulk M]
//
// `service` answers with what it was asked until its input ends. The other two print one line of JSON. There is a
// client for each of --pairs, with a topic of its own: T/0, T/1, … A rate is that of each pair, by a schedule that
// waits for nothing, and latency counts from the time in the schedule.

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <functional>
#include <iostream>
#include <map>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <polybus/polybus.hpp>

namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

class Arguments {
public:
    Arguments(int argc, char** argv, std::vector<std::string> allowed) {
        for (int i = 2; i < argc; i += 2) {
            const std::string name = argv[i];
            if (name.rfind("--", 0) != 0 || std::find(allowed.begin(), allowed.end(), name.substr(2)) == allowed.end())
                throw polybus::UsageError("unknown option " + name);
            if (i + 1 >= argc) throw polybus::UsageError(name + " needs a value");
            values_[name.substr(2)] = argv[i + 1];
        }
    }

    [[nodiscard]] std::string text(const std::string& name, const std::string& otherwise = "") const {
        const auto found = values_.find(name);
        if (found != values_.end()) return found->second;
        if (otherwise.empty()) throw polybus::UsageError("--" + name + " is missing");
        return otherwise;
    }

    [[nodiscard]] double number(const std::string& name, const std::string& otherwise = "") const {
        const std::string value = text(name, otherwise);
        std::size_t used = 0;
        const double result = std::stod(value, &used);
        if (used != value.size() || result < 0) throw polybus::UsageError("--" + name + " is no number: " + value);
        return result;
    }

private:
    std::map<std::string, std::string> values_;
};

polybus::Options options_of(const Arguments& arguments, const char* role, std::size_t number = 0) {
    polybus::Options options;
    options.client_id =
        std::string("bench-") + role + "-" + std::to_string(::getpid()) + "-" + std::to_string(number);
    options.port = static_cast<std::uint16_t>(arguments.number("port"));
    const std::string bulk = arguments.text("bulk", "adaptive");
    if (bulk != "adaptive" && bulk != "fixed" && bulk != "off")
        throw polybus::UsageError("--bulk is adaptive, fixed or off, not " + bulk);
    options.bulking = bulk == "fixed" ? polybus::Bulking::fixed
                      : bulk == "off" ? polybus::Bulking::off
                                      : polybus::Bulking::adaptive;
    return options;
}

std::size_t pairs_of(const Arguments& arguments) {
    return std::max<std::size_t>(1, static_cast<std::size_t>(arguments.number("pairs", "1")));
}

std::vector<polybus::Client> clients(const Arguments& arguments, const char* role) {
    std::vector<polybus::Client> made;
    for (std::size_t i = 0; i < pairs_of(arguments); ++i) made.emplace_back(options_of(arguments, role, i));
    return made;
}

std::string topic_of(const Arguments& arguments, std::size_t pair) {
    return arguments.text("topic") + "/" + std::to_string(pair);
}

int serve(const Arguments& arguments) {
    std::vector<polybus::Client> buses = clients(arguments, "service");
    const auto concurrency = static_cast<std::uint16_t>(arguments.number("concurrency", "64"));
    std::vector<polybus::Subscription> services;
    for (std::size_t i = 0; i < buses.size(); ++i)
        services.push_back(buses[i].serve(topic_of(arguments, i),
                                          [](const polybus::Message& message) { return message.payload; },
                                          {.concurrency = concurrency, .inline_handler = true}));
    std::cout << "ready" << std::endl;
    while (std::cin.get() != std::char_traits<char>::eof()) {
    }
    return 0;
}

/// Requests under way, up to a window, and how long each took.
class Window {
public:
    explicit Window(std::size_t size) : size_(size) {}

    void enter() {
        std::unique_lock lock(mutex_);
        freed_.wait(lock, [&] { return under_way_ < size_; });
        ++under_way_;
    }

    /// Whether there is room or not.
    void enter_late() {
        const std::lock_guard lock(mutex_);
        ++under_way_;
    }

    void leave(Clock::duration took, bool is_ok) {
        const std::lock_guard lock(mutex_);
        is_ok ? times_.push_back(std::chrono::duration<float, std::micro>(took).count()) : void(++failures_);
        --under_way_;
        // Half a window at a time: the requester is not woken for each answer.
        if (under_way_ <= size_ / 2) freed_.notify_one();
    }

    void wait_until_empty() {
        std::unique_lock lock(mutex_);
        freed_.wait(lock, [&] { return under_way_ == 0; });
    }

    std::vector<float>& times() { return times_; }
    [[nodiscard]] std::size_t failures() const { return failures_; }

private:
    const std::size_t size_;
    std::mutex mutex_;
    std::condition_variable freed_;
    std::size_t under_way_ = 0;
    std::size_t failures_ = 0;
    std::vector<float> times_;
};

int ask(const Arguments& arguments) {
    std::vector<polybus::Client> buses = clients(arguments, "requests");
    std::vector<std::string> topics;
    for (std::size_t i = 0; i < buses.size(); ++i) topics.push_back(topic_of(arguments, i));
    const std::string payload(static_cast<std::size_t>(arguments.number("size", "5")), 'x');
    const double rate = arguments.number("rate", "0") * static_cast<double>(buses.size());
    Window window(std::max<std::size_t>(1, static_cast<std::size_t>(arguments.number("window", "1"))));
    const auto begin = Clock::now();
    const auto end = begin + std::chrono::duration_cast<Clock::duration>(Seconds(arguments.number("seconds")));
    auto due = begin;
    for (std::size_t count = 0; due < end; ++count) {
        if (rate > 0)
            std::this_thread::sleep_until(due);
        else
            window.enter();
        const std::size_t pair = count % buses.size();
        if (rate > 0) window.enter_late();
        const auto since = rate > 0 ? due : Clock::now();
        buses[pair].request_async(topics[pair], payload, {.timeout = std::chrono::seconds(5), .inline_callback = true},
                                  [&window, since](const polybus::Outcome& outcome) {
                                      window.leave(Clock::now() - since, outcome.ok());
                                  });
        due = rate > 0 ? begin + std::chrono::duration_cast<Clock::duration>(
                                     Seconds(static_cast<double>(count + 1) / rate))
                       : Clock::now();
    }
    window.wait_until_empty();
    const double seconds = Seconds(Clock::now() - begin).count();
    std::vector<float>& times = window.times();
    std::sort(times.begin(), times.end());
    const auto at = [&](double part) {
        return times.empty() ? 0.0F
                             : times[std::min(times.size() - 1,
                                              static_cast<std::size_t>(part * static_cast<double>(times.size())))];
    };
    const double mean =
        times.empty() ? 0 : std::accumulate(times.begin(), times.end(), 0.0) / static_cast<double>(times.size());
    std::printf("{\"requests\": %zu, \"seconds\": %.3f, \"rate\": %.1f, \"p50_us\": %.1f, \"p99_us\": %.1f, "
                "\"mean_us\": %.1f, \"failures\": %zu}\n",
                times.size(), seconds, static_cast<double>(times.size()) / seconds, static_cast<double>(at(0.5)),
                static_cast<double>(at(0.99)), mean, window.failures());
    return window.failures() ? 1 : 0;
}

int publish(const Arguments& arguments) {
    polybus::Client bus{options_of(arguments, "publish")};
    const std::string topic = arguments.text("topic");
    const std::string payload(static_cast<std::size_t>(arguments.number("size")), 'x');
    const auto begin = Clock::now();
    const auto end = begin + std::chrono::duration_cast<Clock::duration>(Seconds(arguments.number("seconds")));
    std::size_t count = 0;
    for (auto now = begin; now < end; now = Clock::now()) {
        for (int i = 0; i < 64; ++i, ++count) bus.publish(topic, payload);
    }
    const double handed_over = Seconds(Clock::now() - begin).count();
    bus.flush(std::chrono::minutes(2)); // a round trip behind them all: the broker has read them
    const double confirmed = Seconds(Clock::now() - begin).count();
    std::printf("{\"messages\": %zu, \"seconds\": %.3f, \"handed_over_rate\": %.1f, \"rate\": %.1f}\n", count,
                confirmed, static_cast<double>(count) / handed_over, static_cast<double>(count) / confirmed);
    return 0;
}

struct Verb {
    const char* name;
    int (*run)(const Arguments&);
    std::vector<std::string> options;
};

} // namespace

int main(int argc, char** argv) {
    const std::vector<Verb> verbs = {
        {"service", serve, {"port", "topic", "pairs", "concurrency", "bulk"}},
        {"requests", ask, {"port", "topic", "pairs", "window", "seconds", "rate", "size", "bulk"}},
        {"publish", publish, {"port", "topic", "seconds", "size", "bulk"}},
    };
    try {
        for (const Verb& verb : verbs)
            if (argc > 1 && std::string(argv[1]) == verb.name) return verb.run(Arguments(argc, argv, verb.options));
        throw polybus::UsageError("say service, requests or publish");
    } catch (const std::exception& error) {
        std::cerr << "polybus-client-bench: " << error.what() << '\n';
        return 2;
    }
}
