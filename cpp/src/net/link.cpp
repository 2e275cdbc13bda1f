#include "link.hpp"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace polybus::net {

namespace {

std::string words(int error) { return std::generic_category().message(error); }

Io result_of(ssize_t count) {
    if (count > 0) return {Io::Status::ok, static_cast<std::size_t>(count)};
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return {Io::Status::again};
    return {Io::Status::failed, 0, words(errno)};
}

} // namespace

Descriptor::Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
}

Descriptor::~Descriptor() {
    if (number_ >= 0) ::close(number_);
}

void Link::FreeAddresses::operator()(addrinfo* list) const { ::freeaddrinfo(list); }

Link::Link(std::string host, unsigned short port, TlsContext* tls) : host_(std::move(host)), tls_context_(tls) {
    addrinfo hints{};
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* list = nullptr;
    const int fault = ::getaddrinfo(host_.c_str(), std::to_string(port).c_str(), &hints, &list);
    addresses_.reset(list);
    next_ = list;
    if (fault)
        give_up(std::string("the host is not known: ") + ::gai_strerror(fault));
    else
        try_next();
}

Link::~Link() {
    if (tls_ && stage_ == Stage::open) tls_->say_goodbye();
}

Io Link::give_up(std::string text) {
    stage_ = Stage::failed;
    last_error_ = std::move(text);
    return {Io::Status::failed, 0, last_error_};
}

bool Link::try_next() {
    for (; next_; next_ = next_->ai_next) {
        Descriptor socket(::socket(next_->ai_family, next_->ai_socktype, next_->ai_protocol));
        if (!socket) {
            last_error_ = words(errno);
            continue;
        }
        ::fcntl(socket.get(), F_SETFD, FD_CLOEXEC);
        ::fcntl(socket.get(), F_SETFL, ::fcntl(socket.get(), F_GETFL) | O_NONBLOCK);
        const int yes = 1;
        ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        if (::connect(socket.get(), next_->ai_addr, next_->ai_addrlen) == 0 || errno == EINPROGRESS) {
            next_ = next_->ai_next;
            socket_ = std::move(socket);
            stage_ = Stage::connecting;
            return true;
        }
        last_error_ = words(errno);
    }
    stage_ = Stage::failed;
    return false;
}

Io Link::advance() {
    if (stage_ == Stage::connecting) {
        pollfd ready{socket_.get(), POLLOUT, 0};
        if (::poll(&ready, 1, 0) == 0) return {Io::Status::again};
        int error = 0;
        socklen_t size = sizeof error;
        ::getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
        if (error) {
            last_error_ = words(error);
            return try_next() ? Io{Io::Status::again} : Io{Io::Status::failed, 0, last_error_};
        }
        stage_ = Stage::open;
        if (tls_context_) {
            try {
                tls_ = tls_context_->open(socket_.get(), host_);
            } catch (const std::exception& error_text) {
                return give_up(error_text.what());
            }
            stage_ = Stage::handshaking;
        }
    }
    if (stage_ == Stage::handshaking) {
        Io io = tls_->handshake();
        if (io.status == Io::Status::ok) stage_ = Stage::open;
        if (io.status == Io::Status::failed || io.status == Io::Status::ended)
            return give_up("no TLS connection: " + io.text);
        return io;
    }
    if (stage_ == Stage::failed) return {Io::Status::failed, 0, last_error_};
    return {};
}

Io Link::read(std::span<char> space) {
    if (tls_) return tls_->read(space);
    const ssize_t count = ::recv(socket_.get(), space.data(), space.size(), 0);
    if (count == 0) return {Io::Status::ended, 0, "the broker closed the connection"};
    return result_of(count);
}

Io Link::write(std::string_view data) {
    if (tls_) return tls_->write(data);
    return result_of(::send(socket_.get(), data.data(), data.size(), MSG_NOSIGNAL));
}

void Link::finish_writing() {
    if (tls_) tls_->say_goodbye();
    ::shutdown(socket_.get(), SHUT_WR);
}

short Link::poll_events(bool has_output) const {
    if (stage_ == Stage::connecting) return POLLOUT;
    if (stage_ == Stage::handshaking) return tls_->wants_write() ? POLLOUT : POLLIN;
    return static_cast<short>(has_output || (tls_ && tls_->wants_write()) ? POLLIN | POLLOUT : POLLIN);
}

} // namespace polybus::net
