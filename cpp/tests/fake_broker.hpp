#pragma once

/// A broker that follows a script, on a socket of its own: for everything that a real one would not do.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "../src/wire/codec.hpp"
#include "check.hpp"

namespace fake {

using namespace polybus;

/// The client went away, or the test is over.
struct Gone {};

/// One connection, as the broker sees it.
class Peer {
public:
    Peer(int socket, int number, const std::atomic<bool>& is_over)
        : index(number), socket_(socket), is_over_(is_over) {}
    ~Peer() { close(); }

    const int index; ///< 0 is the first connection

    /// The next message, with BULKs taken apart.
    wire::Packet receive() {
        for (;;) {
            if (const auto frame = wire::next_frame(buffer_, pos_, wire::max_varint)) {
                pos_ = frame->end;
                const wire::Packet packet = wire::decode(frame->first_byte, frame->body);
                const auto* bulk = std::get_if<wire::Bulk>(&packet);
                if (!bulk) return packet;
                buffer_ = bulk->body.str() + buffer_.substr(pos_);
                pos_ = 0;
                continue;
            }
            buffer_.erase(0, pos_);
            pos_ = 0;
            wait();
            char bytes[65536];
            const ssize_t count = ::recv(socket_, bytes, sizeof bytes, 0);
            if (count <= 0) throw Gone{};
            buffer_.append(bytes, static_cast<std::size_t>(count));
        }
    }

    template <class P>
    P expect() {
        const wire::Packet packet = receive();
        if (const auto* wanted = std::get_if<P>(&packet)) return *wanted;
        throw check::Failure("the client sent a message of type " + std::to_string(packet.index()) + " instead");
    }

    /// The next of this kind; others are passed over.
    template <class P>
    P next() {
        for (;;) {
            const wire::Packet packet = receive();
            if (const auto* wanted = std::get_if<P>(&packet)) return *wanted;
        }
    }

    void send(const wire::Packet& packet) { send_bytes(wire::encode(packet)); }

    void send_bytes(std::string_view bytes) {
        while (!bytes.empty()) {
            const ssize_t count = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
            if (count <= 0) throw Gone{};
            bytes.remove_prefix(static_cast<std::size_t>(count));
        }
    }

    void welcome() {
        expect<wire::Connect>();
        send(wire::ConnAck{});
    }

    void answer(const wire::Publish& request, std::string_view payload) {
        wire::Publish answer;
        answer.is_response = true;
        answer.packet_id = request.packet_id;
        answer.response_destination = "whoever";
        answer.payload = Bytes(payload);
        send(answer);
    }

    /// Reads nothing, says nothing, until the test is over or the client closes.
    void hang() {
        while (!is_over_) {
            pollfd ready{socket_, POLLRDHUP, 0};
            if (::poll(&ready, 1, 5) > 0) return;
        }
    }

    /// Reads everything and answers pings, until the client goes.
    void idle() {
        for (;;)
            if (std::holds_alternative<wire::PingReq>(receive())) send(wire::PingResp{});
    }

    void close() {
        if (socket_ >= 0) ::close(socket_);
        socket_ = -1;
    }

private:
    void wait() const {
        pollfd ready{socket_, POLLIN, 0};
        while (::poll(&ready, 1, 5) == 0)
            if (is_over_) throw Gone{};
    }

    int socket_;
    const std::atomic<bool>& is_over_;
    std::string buffer_;
    std::size_t pos_ = 0;
};

/// Runs the script for each connection, one after the other.
class Broker {
public:
    explicit Broker(std::function<void(Peer&)> script) : script_(std::move(script)) {
        listener_ = ::socket(AF_INET, SOCK_STREAM, 0);
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        CHECK(::bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
        CHECK(::listen(listener_, 16) == 0);
        socklen_t size = sizeof address;
        ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
        port_ = ntohs(address.sin_port);
        thread_ = std::thread([this] { run(); });
    }

    ~Broker() {
        is_over_ = true;
        thread_.join();
        ::close(listener_);
    }

    [[nodiscard]] std::uint16_t port() const { return port_; }
    [[nodiscard]] int connections() const { return connections_; }
    /// What a script found wrong.
    std::string fault() {
        const std::lock_guard lock(mutex_);
        return fault_;
    }

private:
    void run() {
        while (!is_over_) {
            pollfd ready{listener_, POLLIN, 0};
            if (::poll(&ready, 1, 5) <= 0) continue;
            const int socket = ::accept(listener_, nullptr, nullptr);
            if (socket < 0) continue;
            Peer peer(socket, connections_++, is_over_);
            try {
                script_(peer);
            } catch (const Gone&) {
            } catch (const std::exception& error) {
                const std::lock_guard lock(mutex_);
                fault_ = error.what();
            }
        }
    }

    std::function<void(Peer&)> script_;
    int listener_ = -1;
    std::uint16_t port_ = 0;
    std::atomic<bool> is_over_{false};
    std::atomic<int> connections_{0};
    std::mutex mutex_;
    std::string fault_;
    std::thread thread_;
};

} // namespace fake
