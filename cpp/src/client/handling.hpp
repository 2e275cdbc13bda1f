#pragma once

/// The subscriptions of an application: who gets what arrives, in which thread.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <polybus/client.hpp>

#include "worker.hpp"

namespace polybus::detail {

/// A request that a service has in hand, from its arrival to its answer.
struct Hand {
    const void* handling = nullptr; ///< whose it is
    std::string requester;
    std::uint16_t packet_id = 0;
    std::uint64_t connection = 0; ///< the one it came on; an answer on another one is of no use
    std::stop_source stop{};
};

struct Delivery {
    Message message;
    std::shared_ptr<Hand> hand; ///< none: a message
};

/// One subscription or service.
class Handling {
public:
    Handling(std::string topic_filter, ServiceHandler called, std::optional<std::uint16_t> at_once, std::size_t queued,
             bool runs_inline)
        : filter(std::move(topic_filter)), handler(std::move(called)), concurrency(at_once), queue_size(queued),
          is_inline(runs_inline) {}

    const std::string filter;
    const ServiceHandler handler;
    const std::optional<std::uint16_t> concurrency; ///< none: takes messages only
    const std::size_t queue_size;
    const bool is_inline;
    std::shared_ptr<Worker<Delivery>> worker; ///< none if inline
    std::atomic<std::size_t> load{0};         ///< requests in hand
    std::atomic<std::size_t> dropped{0};
    std::atomic<bool> is_over{false};

    // While an inline handler runs: whoever ends this from another thread waits.
    std::recursive_mutex inline_guard;
};

/// Which handlings a topic belongs to. Used by the I/O thread only.
class Directory {
public:
    using List = std::vector<std::shared_ptr<Handling>>;

    void add(std::shared_ptr<Handling> handling);
    void remove(const Handling& handling);
    /// All with exactly this filter.
    [[nodiscard]] List with_filter(std::string_view filter) const;
    /// All that match a topic. Copy what you need: handlers may change it.
    const List& find(std::string_view topic);
    [[nodiscard]] const List& all() const { return handlings_; }
    /// How many requests all services of a filter take together; 0: it is watched only.
    [[nodiscard]] std::uint16_t concurrency(std::string_view filter) const;

private:
    struct Hash {
        using is_transparent = void;
        std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
    };
    static constexpr std::size_t max_cached = 1'000;

    List handlings_;
    std::unordered_map<std::string, List, Hash, std::equal_to<>> cache_;
};

} // namespace polybus::detail
