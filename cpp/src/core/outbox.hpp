#pragma once

/// What waits to be sent, in the order in which it goes: control, priority, regular (TB-11), put together as the
/// bulking mode says (TB-12).
///
/// The owner writes `pending()` and reports how far it came with `written()`. A chunk is made only when the one
/// before is gone, so that more gathers while the socket takes nothing, and a priority message overtakes
/// everything but one chunk.

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <polybus/options.hpp>

#include "clock.hpp"

namespace polybus::core {

/// The bytes of a message. Shared, since an unfinished request may have to be sent again.
using Bytes = std::shared_ptr<const std::string>;

enum class Lane { control, priority, regular };

struct Outgoing {
    enum class Kind : std::uint8_t {
        control, ///< belongs to this connection
        answer,  ///< belongs to this connection: the broker asks another one when it is lost
        request, ///< kept by its own book, and sent again from there
        message, ///< waits for the next connection
    };
    Bytes bytes;
    Kind kind = Kind::message;
    std::uint16_t packet_id = 0; ///< of a request
    std::uint32_t ping = 0;      ///< which PINGREQ this is
    int breaks = 0;              ///< connections that were lost while it was being written, weighed
};

/// The document's fixed rule: when the last ten messages came at less than 10 ms on average, gather for 50 ms.
class BulkWindow {
public:
    void arrived(Time now);
    /// Messages have to wait for more of them.
    bool is_open(Time now, std::size_t waiting_bytes);
    [[nodiscard]] std::optional<Time> deadline() const { return deadline_; }
    void reset() { deadline_.reset(); }

private:
    static constexpr std::size_t fast_messages = 10;

    std::array<Time, fast_messages> times_{};
    std::size_t count_ = 0;
    std::optional<Time> deadline_;
};

class Outbox {
public:
    /// A BULK has at most this many bytes: the broker may have to wait for its end.
    static constexpr std::size_t chunk_bytes = 64 * 1024;

    explicit Outbox(Bulking bulking) : bulking_(bulking) {}

    void push(Lane lane, Outgoing outgoing, Time now);
    /// True if there is something to write now.
    bool fill(Time now);
    [[nodiscard]] std::string_view pending() const;
    void written(std::size_t size);

    /// Until when the window of fixed bulking is open.
    [[nodiscard]] std::optional<Time> deadline() const { return window_.deadline(); }
    /// Nothing waits, nothing is half written.
    [[nodiscard]] bool is_empty() const;
    /// From now on nothing waits in a window.
    void hurry() { hurries_ = true; }

    /// The message of which some bytes, but not all, were written.
    [[nodiscard]] Outgoing* half_written();
    /// It will not be sent again.
    void drop_half_written();
    /// The connection is gone, and with it what belonged to it. Messages that were not written wholly come first on
    /// the next one, once it is open.
    void connection_lost();
    /// There is a connection that takes messages.
    void open() { is_open_ = true; }

    /// How many bytes of messages left since this was last asked.
    std::size_t take_released();
    /// Which PINGREQs left since this was last asked.
    std::vector<std::uint32_t> take_pings();

private:
    using Queue = std::deque<Outgoing>;

    Queue& lane(Lane which) { return lanes_[static_cast<std::size_t>(which)]; }
    [[nodiscard]] const Queue& lane(Lane which) const { return lanes_[static_cast<std::size_t>(which)]; }
    void gather(Queue& queue, std::size_t& size);
    void make_chunk(std::size_t size);
    void release(const Outgoing& outgoing);

    Bulking bulking_;
    BulkWindow window_;
    bool hurries_ = false;
    bool is_open_ = false;
    std::array<Queue, 3> lanes_;
    std::size_t regular_bytes_ = 0;
    std::size_t released_ = 0;
    std::vector<std::uint32_t> pings_;

    // The chunk: what it consists of, and where in it each message ends. One large message is written in place.
    std::vector<Outgoing> parts_;
    std::vector<Lane> part_lanes_;
    std::vector<std::size_t> ends_;
    std::string chunk_;
    bool in_place_ = false;
    std::size_t position_ = 0;
    std::size_t finished_ = 0; // parts that are written
};

} // namespace polybus::core
