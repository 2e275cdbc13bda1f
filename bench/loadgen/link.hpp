// A TBus connection of the generator: it gathers what it sends by one of three rules, unpacks the BULKs it
// gets, and counts.
#pragma once

#include <deque>

#include "net.hpp"
#include "tbus.hpp"
#include "tcp_info.hpp"

enum class Bulking {
    OFF,       // every message by itself
    FIXED,     // the document's rule: dense traffic is gathered for 50 ms
    ADAPTIVE,  // what is ready together leaves together; more gathers only while the socket takes nothing
};

inline Bulking bulking_of(const std::string& name) {
    if (name == "off") return Bulking::OFF;
    if (name == "fixed") return Bulking::FIXED;
    if (name == "adaptive") return Bulking::ADAPTIVE;
    throw std::invalid_argument("--bulk must be off, fixed or adaptive");
}

constexpr std::size_t BULK_BYTES = 1 << 20;  // the largest BULK that the generator sends and takes
constexpr std::int64_t MILLISECOND_NS = 1'000'000;

// Of one side, requesters or services.
struct Totals {
    std::uint64_t written_bytes = 0;
    std::uint64_t read_bytes = 0;
    std::uint64_t messages_out = 0;
    std::uint64_t messages_in = 0;
    std::uint64_t bulks_out = 0;
    std::uint64_t bulks_in = 0;
    Traffic traffic;
    net::Usage usage;
};

Totals operator-(const Totals& later, const Totals& earlier);
std::string json(const Totals& totals, const std::string& side);

// Whether messages come so densely that the document gathers them: the mean distance of the last 10.
class Density {
public:
    bool is_high_with(std::int64_t now_ns) {
        if (last_ns_ != 0) {
            const std::int64_t distance_ns = now_ns - last_ns_;
            sum_ns_ += distance_ns - distances_ns_[next_];
            distances_ns_[next_] = distance_ns;
            next_ = (next_ + 1) % DISTANCES;
            known_ = std::min(known_ + 1, DISTANCES);
        }
        last_ns_ = now_ns;
        return known_ == DISTANCES && sum_ns_ < static_cast<std::int64_t>(DISTANCES) * THRESHOLD_NS;
    }

private:
    static constexpr std::size_t DISTANCES = 10;
    static constexpr std::int64_t THRESHOLD_NS = 10 * MILLISECOND_NS;

    std::int64_t distances_ns_[DISTANCES] = {};
    std::int64_t sum_ns_ = 0;
    std::int64_t last_ns_ = 0;
    std::size_t next_ = 0;
    std::size_t known_ = 0;
};

class Link {
public:
    static constexpr std::int64_t WINDOW_NS = 50 * MILLISECOND_NS;

    Link(net::Connection connection, Bulking bulking) : connection_(std::move(connection)), bulking_(bulking) {}

    int fd() const { return connection_.fd(); }
    bool is_blocked() const { return connection_.is_blocked(); }

    // A message to send. True when it opened a window, which the owner has to close after WINDOW_NS.
    bool put(std::span<const std::uint8_t> message, std::int64_t now_ns) {
        ++totals.messages_out;
        switch (bulking_) {
            case Bulking::OFF:
                write(message);
                return false;
            case Bulking::ADAPTIVE:
                gather(message);
                return false;
            case Bulking::FIXED:
                break;
        }
        const bool is_dense = density_.is_high_with(now_ns);
        if (!has_window_ && !is_dense) {
            write(message);
            return false;
        }
        gather(message);
        return !std::exchange(has_window_, true);
    }

    void close_window() {
        has_window_ = false;
        release();
    }

    // Nothing more is ready at the moment.
    void settle() {
        if (bulking_ == Bulking::ADAPTIVE && !is_blocked()) release();
    }

    // The socket takes bytes again.
    void flush() {
        if (connection_.flush()) settle();
    }

    // Reads what is there; `handle` gets the messages, also those in BULKs.
    template <typename Handler>
    void receive(Handler&& handle) {
        connection_.receive([&](const wire::Packet& packet) {
            totals.read_bytes += packet.whole.size();
            if (tbus::type_of(packet) != tbus::BULK) {
                take(packet, handle);
                return;
            }
            ++totals.bulks_in;
            const std::size_t used =
                wire::walk(packet.body, [&](const wire::Packet& inner) { take(inner, handle); });
            if (used == 0 || used != packet.body.size())
                throw std::runtime_error("a BULK of the broker is empty or ends inside a message");
        });
        if (connection_.is_closed()) throw std::runtime_error("the broker closed a connection");
    }

    void leave() { connection_.write(tbus::disconnect()); }

    Totals totals;  // without traffic and usage
    bool is_awaiting_write = false;

private:
    static constexpr std::size_t HEADROOM = 5;

    template <typename Handler>
    void take(const wire::Packet& packet, Handler&& handle) {
        ++totals.messages_in;
        if (tbus::type_of(packet) == tbus::DISCONNECT) throw std::runtime_error(tbus::view_disconnect(packet));
        handle(packet);
    }

    void write(std::span<const std::uint8_t> bytes) {
        totals.written_bytes += bytes.size();
        connection_.write(bytes);
    }

    void gather(std::span<const std::uint8_t> message) {
        if (gathered_.size() + message.size() > BULK_BYTES) release();
        if (gathered_.empty()) gathered_.resize(HEADROOM);
        wire::append(gathered_, message);
        ++count_;
    }

    void release() {
        if (count_ == 0) return;
        std::span<const std::uint8_t> bytes = std::span(gathered_).subspan(HEADROOM);
        if (count_ > 1) {
            std::uint8_t header[HEADROOM];
            const std::size_t size = tbus::store_header(tbus::BULK << 4, bytes.size(), header);
            std::copy(header, header + size, gathered_.data() + HEADROOM - size);
            bytes = std::span(gathered_).subspan(HEADROOM - size);
            ++totals.bulks_out;
        }
        write(bytes);
        gathered_.clear();
        count_ = 0;
    }

    net::Connection connection_;
    Bulking bulking_;
    Density density_;
    wire::Bytes gathered_;  // behind room for a BULK's header
    std::size_t count_ = 0;
    bool has_window_ = false;
};

// All links of one process, and its event loop.
class Links {
public:
    explicit Links(Bulking bulking) : bulking_(bulking) { epoll_.add(alarm_.fd(), EPOLLIN, ALARM); }

    std::size_t size() const { return links_.size(); }

    void add(net::Connection connection) {
        epoll_.add(connection.fd(), EPOLLIN, links_.size());
        links_.emplace_back(std::move(connection), bulking_);
    }

    // Something else to wait for: the handler of `turn` is not called for it, `on_other` is.
    void add_other(int fd, std::uint64_t number) { epoll_.add(fd, EPOLLIN, OTHER + number); }

    void put(std::size_t index, std::span<const std::uint8_t> message, std::int64_t now_ns) {
        if (links_[index].put(message, now_ns)) windows_.push_back({now_ns + Link::WINDOW_NS, index});
    }

    // After all `put` of the moment on this link.
    void settle(std::size_t index) {
        Link& link = links_[index];
        link.settle();
        if (link.is_blocked() != link.is_awaiting_write) {
            link.is_awaiting_write = link.is_blocked();
            epoll_.change(link.fd(), link.is_awaiting_write ? EPOLLIN | EPOLLOUT : EPOLLIN, index);
        }
    }

    // Waits until something came or the time is there; `handle(index, packet)`, `on_other(number)`.
    template <typename Handler, typename Other>
    void turn(std::int64_t deadline_ns, Handler&& handle, Other&& on_other) {
        close_windows();
        if (!windows_.empty()) deadline_ns = std::min(deadline_ns, windows_.front().end_ns);
        const bool is_late = deadline_ns <= net::monotonic_ns();
        if (!is_late && deadline_ns != std::exchange(alarm_ns_, deadline_ns)) alarm_.set(deadline_ns);
        epoll_.wait(is_late ? 0 : -1, [&](std::uint64_t tag, std::uint32_t events) {
            if (tag == ALARM) {
                alarm_.set(alarm_ns_ = NEVER_NS);
                return;
            }
            if (tag >= OTHER) {
                on_other(tag - OTHER);
                return;
            }
            if (events & EPOLLOUT) links_[tag].flush();
            if (events & ~static_cast<std::uint32_t>(EPOLLOUT))
                links_[tag].receive([&](const wire::Packet& packet) { handle(tag, packet); });
            settle(tag);
        });
        close_windows();
    }

    Totals totals() const;

    // The last thing that the broker hears.
    void leave() {
        for (Link& link : links_) link.leave();
    }

private:
    static constexpr std::uint64_t OTHER = 1ULL << 32;
    static constexpr std::uint64_t ALARM = ~0ULL;
    static constexpr std::int64_t NEVER_NS = 1LL << 62;

    struct Window {
        std::int64_t end_ns;
        std::size_t index;
    };

    void close_windows() {
        if (windows_.empty()) return;
        for (const std::int64_t now_ns = net::monotonic_ns(); !windows_.empty(); windows_.pop_front()) {
            const auto [end_ns, index] = windows_.front();
            if (end_ns > now_ns) break;
            links_[index].close_window();
            settle(index);
        }
    }

    const Bulking bulking_;
    net::Epoll epoll_;
    net::Alarm alarm_;
    std::int64_t alarm_ns_ = NEVER_NS;
    std::deque<Link> links_;
    std::deque<Window> windows_;  // all equally long, so the first to open is the first to end
};
