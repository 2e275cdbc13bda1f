#pragma once

/// The requester's book of its unfinished requests (TB-07, TB-08): by PacketId, with deadlines of our own in case
/// the broker never says how one ended.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <polybus/client.hpp>

#include "../wire/packets.hpp"
#include "clock.hpp"
#include "outbox.hpp"

namespace polybus::core {

/// One request. `end` is called once; `forgotten` with it or later, when the PacketId may be used again.
class Request : public std::enable_shared_from_this<Request> {
public:
    virtual ~Request() = default;
    virtual void end(Outcome outcome) = 0;
    virtual void forgotten() = 0;

    std::uint16_t id = 0;
    Bytes bytes; ///< none: a request of an earlier run, which cannot be sent again
    bool is_priority = false;
    Time deadline{};

    // Kept by the book and the core:
    std::uint64_t number = 0;     ///< the order in which they were made
    bool is_canceled = false;     ///< by the user
    bool is_ended = false;        ///< the user knows; the broker may still say something about this id
    std::uint64_t connection = 0; ///< the last one on which it was sent; 0: none
    Time sent_at{};
    int breaks = 0; ///< connections that the broker broke off right after it was sent
};

class RequestBook {
public:
    /// How long a PacketId stays out of use when the broker has not said how its request ended.
    static constexpr Duration quarantine = std::chrono::seconds(30);

    void add(std::shared_ptr<Request> request);
    [[nodiscard]] Request* find(std::uint16_t id) const;
    [[nodiscard]] std::size_t size() const { return requests_.size(); }

    /// The broker says how it ended. False: there is no such request.
    bool answered(std::uint16_t id, std::string_view payload);
    bool acknowledged(std::uint16_t id, wire::RequestState state, std::string_view reason);
    /// We say how it ended; the broker need not be waited for.
    void finish(std::uint16_t id, Outcome::End end, std::string reason);
    void finish_all(Outcome::End end, const std::string& reason);

    /// Those that are not ended, in the order in which they were made.
    [[nodiscard]] std::vector<Request*> unfinished() const;

    [[nodiscard]] std::optional<Time> deadline() const;
    /// Ends what is overdue, and returns it: the broker should be told.
    std::vector<Request*> expire(Time now);

private:
    using Ticks = std::int64_t;

    static Ticks ticks_of(Time time);
    void watch(const Request& request, Time deadline);
    void erase(std::uint16_t id);

    std::unordered_map<std::uint16_t, std::shared_ptr<Request>> requests_;
    // Deadlines by the tick in which they pass. Requests that ended in time are left there: it costs less to skip
    // them than to find them.
    std::map<Ticks, std::vector<std::pair<std::uint16_t, std::uint64_t>>> deadlines_;
    std::uint64_t last_number_ = 0;
};

} // namespace polybus::core
