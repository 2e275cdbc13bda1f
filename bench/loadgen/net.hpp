// Sockets, epoll and clocks.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>

#include "wire.hpp"

namespace net {

[[noreturn]] inline void fail(const std::string& what) {
    throw std::system_error(errno, std::generic_category(), what);
}

class Fd {
public:
    Fd() = default;
    explicit Fd(int fd) : fd_(fd) {}
    Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    Fd& operator=(Fd&& other) noexcept {
        std::swap(fd_, other.fd_);
        return *this;
    }
    ~Fd() { reset(); }

    int get() const { return fd_; }
    void reset() {
        if (fd_ >= 0) ::close(fd_);
        fd_ = -1;
    }

private:
    int fd_ = -1;
};

inline double monotonic_s() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

inline std::int64_t monotonic_ns() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

// What a process had of the processors, all its threads together.
struct Usage {
    double cpu_s = 0;   // running
    double wait_s = 0;  // ready to run, while others had the core: on a quiet machine next to nothing
};

inline Usage operator-(const Usage& later, const Usage& earlier) {
    return {later.cpu_s - earlier.cpu_s, later.wait_s - earlier.wait_s};
}

// Of one process; 0 is this one. A process that has ended counts as nothing.
inline Usage usage(pid_t pid) {
    Usage used;
    clockid_t clock{};
    timespec time{};
    if (clock_getcpuclockid(pid, &clock) == 0 && clock_gettime(clock, &time) == 0)
        used.cpu_s = static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
    std::error_code is_gone;
    const std::string process = pid == 0 ? "self" : std::to_string(pid);
    for (const auto& task : std::filesystem::directory_iterator("/proc/" + process + "/task", is_gone)) {
        double ran_ns = 0;
        double waited_ns = 0;
        if (std::ifstream(task.path() / "schedstat") >> ran_ns >> waited_ns) used.wait_s += waited_ns * 1e-9;
    }
    return used;
}

inline Usage usage(const std::vector<pid_t>& pids) {
    Usage sum;
    for (const pid_t pid : pids) {
        const Usage one = usage(pid);
        sum = {sum.cpu_s + one.cpu_s, sum.wait_s + one.wait_s};
    }
    return sum;
}

// The members of a result that say who used the processors, as JSON.
inline std::string usage_json(const Usage& watched, const Usage& generator) {
    char text[192];
    std::snprintf(text, sizeof text,
                  "\"watched_cpu_s\": %.6f, \"watched_wait_s\": %.6f, \"generator_cpu_s\": %.6f, "
                  "\"generator_wait_s\": %.6f",
                  watched.cpu_s, watched.wait_s, generator.cpu_s, generator.wait_s);
    return text;
}

inline sockaddr_in loopback(std::uint16_t port, std::uint32_t host = INADDR_LOOPBACK) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(host);
    return address;
}

inline void set_blocking(int fd, bool blocking) {
    const int flags = fcntl(fd, F_GETFL);
    if (fcntl(fd, F_SETFL, blocking ? flags & ~O_NONBLOCK : flags | O_NONBLOCK) < 0) fail("fcntl");
}

inline void set_option(int fd, int level, int option, int value) {
    if (setsockopt(fd, level, option, &value, sizeof value) < 0) fail("setsockopt");
}

inline Fd tcp_socket(bool blocking) {
    Fd fd{socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | (blocking ? 0 : SOCK_NONBLOCK), 0)};
    if (fd.get() < 0) fail("socket");
    set_option(fd.get(), IPPROTO_TCP, TCP_NODELAY, 1);
    return fd;
}

inline Fd listen(std::uint16_t port) {
    Fd fd = tcp_socket(false);
    set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
    const sockaddr_in address = loopback(port);
    if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) < 0) fail("bind");
    if (::listen(fd.get(), 4096) < 0) fail("listen");
    return fd;
}

inline std::uint16_t port_of(const Fd& fd) {
    sockaddr_in address{};
    socklen_t size = sizeof address;
    if (getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size) < 0) fail("getsockname");
    return ntohs(address.sin_port);
}

class Epoll {
public:
    Epoll() : fd_(epoll_create1(EPOLL_CLOEXEC)) {
        if (fd_.get() < 0) fail("epoll_create1");
    }

    void add(int fd, std::uint32_t events, std::uint64_t tag) { control(EPOLL_CTL_ADD, fd, events, tag); }
    void change(int fd, std::uint32_t events, std::uint64_t tag) { control(EPOLL_CTL_MOD, fd, events, tag); }

    // Waits and calls `handle(tag, events)` for what is ready.
    template <typename Handler>
    void wait(int timeout_ms, Handler&& handle) {
        epoll_event ready[256];
        const int count = epoll_wait(fd_.get(), ready, 256, timeout_ms);
        if (count < 0 && errno != EINTR) fail("epoll_wait");
        for (int i = 0; i < count; ++i) handle(ready[i].data.u64, ready[i].events);
    }

private:
    void control(int operation, int fd, std::uint32_t events, std::uint64_t tag) {
        epoll_event event{};
        event.events = events;
        event.data.u64 = tag;
        if (epoll_ctl(fd_.get(), operation, fd, &event) < 0) fail("epoll_ctl");
    }

    Fd fd_;
};

// Wakes an epoll at a time of CLOCK_MONOTONIC. Exactly: epoll's own timeouts may be late by a thousandth.
class Alarm {
public:
    Alarm() : fd_(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)) {
        if (fd_.get() < 0) fail("timerfd_create");
    }

    int fd() const { return fd_.get(); }

    // One that has rung is silent again.
    void set(std::int64_t at_ns) {
        const itimerspec schedule{{}, {at_ns / 1'000'000'000, at_ns % 1'000'000'000}};
        if (timerfd_settime(fd_.get(), TFD_TIMER_ABSTIME, &schedule, nullptr) < 0) fail("timerfd_settime");
    }

private:
    Fd fd_;
};

// One connection: a socket, the head of a packet whose tail has not come, and what is to be sent.
class Connection {
public:
    Connection() = default;
    explicit Connection(Fd fd) : fd_(std::move(fd)) {}

    int fd() const { return fd_.get(); }
    bool is_blocked() const { return sent_ < out_.size(); }
    bool is_closed() const { return is_closed_; }

    // Reads once, as much as there is up to 256 kB, and hands over each complete packet.
    template <typename Handler>
    void receive(Handler&& handle) {
        static thread_local wire::Bytes scratch(SCRATCH_BYTES);
        if (carry_.size() + READ_BYTES > scratch.size()) scratch.resize(carry_.size() + READ_BYTES);
        std::copy(carry_.begin(), carry_.end(), scratch.begin());
        const ssize_t got = recv(fd_.get(), scratch.data() + carry_.size(), READ_BYTES, 0);
        if (got < 0) {
            if (errno == EAGAIN || errno == EINTR) return;
            fail("recv");
        }
        if (got == 0) {
            is_closed_ = true;
            return;
        }
        const std::span<const std::uint8_t> data(scratch.data(), carry_.size() + static_cast<std::size_t>(got));
        const auto tail = data.subspan(wire::walk(data, handle));
        carry_.assign(tail.begin(), tail.end());
    }

    // What is appended here leaves with the next flush.
    wire::Bytes& outbox() { return out_; }

    // Writes what is left in the outbox; true when nothing is left.
    bool flush() {
        while (sent_ < out_.size()) {
            const ssize_t put = send_some({out_.data() + sent_, out_.size() - sent_});
            if (put < 0) return false;
            sent_ += static_cast<std::size_t>(put);
        }
        out_.clear();
        sent_ = 0;
        return true;
    }

    // One write straight from the caller's buffer; only what the socket did not take is copied.
    void write(std::span<const std::uint8_t> data) {
        if (is_blocked()) {
            wire::append(out_, data);
            return;
        }
        const ssize_t put = send_some(data);
        const auto rest = data.subspan(put < 0 ? 0 : static_cast<std::size_t>(put));
        wire::append(out_, rest);
    }

private:
    static constexpr std::size_t READ_BYTES = 256 * 1024;
    static constexpr std::size_t SCRATCH_BYTES = READ_BYTES + 64 * 1024;

    ssize_t send_some(std::span<const std::uint8_t> data) {
        const ssize_t put = send(fd_.get(), data.data(), data.size(), MSG_NOSIGNAL);
        if (put < 0 && errno != EAGAIN && errno != EINTR) fail("send");
        return put;
    }

    Fd fd_;
    wire::Bytes carry_;
    wire::Bytes out_;
    std::size_t sent_ = 0;
    bool is_closed_ = false;
};

// Writes, waits for `answers` packets and hands each to `check`. For the time before the clock runs.
template <typename Check>
void converse(Connection& connection, const wire::Bytes& bytes, std::size_t answers, Check&& check) {
    constexpr int PATIENCE_MS = 20'000;
    connection.write(bytes);
    while (answers > 0) {
        pollfd ready{connection.fd(), static_cast<short>(connection.is_blocked() ? POLLIN | POLLOUT : POLLIN), 0};
        if (poll(&ready, 1, PATIENCE_MS) == 0) throw std::runtime_error("the broker did not answer within 20 s");
        connection.flush();
        connection.receive([&](const wire::Packet& packet) {
            check(packet);
            --answers;
        });
        if (connection.is_closed()) throw std::runtime_error("the broker closed a connection");
    }
}

// The same for MQTT, where all answers are of one type and none may be a refusal.
inline void request(Connection& connection, const wire::Bytes& bytes, wire::Type type, std::size_t answers) {
    converse(connection, bytes, answers, [type](const wire::Packet& packet) {
        if (packet.type != type) throw std::runtime_error("unexpected answer of type " + std::to_string(packet.type));
        if (type == wire::CONNACK && packet.body[1] != 0)
            throw std::runtime_error("CONNECT refused with code " + std::to_string(packet.body[1]));
        if (type == wire::SUBACK)
            for (const std::uint8_t code : packet.body.subspan(2))
                if (code > 2) throw std::runtime_error("SUBSCRIBE refused");
    });
}

// A TCP connection, before its CONNECT.
inline Connection open_connection(std::uint16_t port) {
    Fd fd = tcp_socket(true);
    const sockaddr_in address = loopback(port);
    if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) < 0) fail("connect");
    set_blocking(fd.get(), false);
    return Connection(std::move(fd));
}

// A connection that has its CONNACK and, if it asked for a filter, its SUBACK. Without `is_clean` the broker keeps
// the session, until `forget_session`.
inline Connection open_session(std::uint16_t port, const std::string& client_id,
                               const std::vector<std::string>& filters = {}, std::uint8_t qos = 0,
                               bool is_clean = true) {
    Connection connection = open_connection(port);
    request(connection, wire::connect(client_id, is_clean), wire::CONNACK, 1);
    if (!filters.empty()) request(connection, wire::subscribe(1, filters, qos), wire::SUBACK, 1);
    return connection;
}

// Leaves nothing of it at the broker, and ends its connection if there is one.
inline void forget_session(std::uint16_t port, const std::string& client_id) {
    open_session(port, client_id).write(wire::disconnect());
}

}  // namespace net
