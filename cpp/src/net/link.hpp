#pragma once

/// One connection over TCP, or TLS on top of it, that never blocks. `advance` until `is_open`, then read and write.

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <polybus/options.hpp>

struct addrinfo;

namespace polybus::net {

struct Io {
    enum class Status { ok, again, ended, failed };
    Status status = Status::ok;
    std::size_t size = 0;
    std::string text{}; ///< why it failed
};

/// A file descriptor that is closed in the end.
class Descriptor {
public:
    Descriptor() = default;
    explicit Descriptor(int number) : number_(number) {}
    Descriptor(Descriptor&& other) noexcept;
    Descriptor& operator=(Descriptor&& other) noexcept;
    ~Descriptor();

    [[nodiscard]] int get() const { return number_; }
    explicit operator bool() const { return number_ >= 0; }

private:
    int number_ = -1;
};

/// What TLS adds. Implemented with OpenSSL, or as an error that says there is none.
class TlsSession {
public:
    virtual ~TlsSession() = default;
    virtual Io handshake() = 0;
    virtual Io read(std::span<char> space) = 0;
    virtual Io write(std::string_view data) = 0;
    /// The last call could not go on before the socket can be written to.
    [[nodiscard]] virtual bool wants_write() const = 0;
    /// Bytes are there that the socket does not know of any more.
    [[nodiscard]] virtual bool has_buffered() const = 0;
    virtual void say_goodbye() = 0;
};

/// Keeps keys and certificates over reconnects.
class TlsContext {
public:
    virtual ~TlsContext() = default;
    virtual std::unique_ptr<TlsSession> open(int descriptor, const std::string& host) = 0;
};

/// Throws UsageError if files cannot be read, or the library knows no TLS.
std::unique_ptr<TlsContext> make_tls_context(const Tls& tls);

class Link {
public:
    /// Looks the host up and begins to connect. Errors show in `advance`.
    Link(std::string host, unsigned short port, TlsContext* tls);
    ~Link();
    Link(const Link&) = delete;
    Link& operator=(const Link&) = delete;

    /// Goes on connecting. `failed` is final.
    Io advance();
    [[nodiscard]] bool is_open() const { return stage_ == Stage::open; }

    Io read(std::span<char> space);
    Io write(std::string_view data);
    /// Nothing more will be written.
    void finish_writing();

    [[nodiscard]] int descriptor() const { return socket_.get(); }
    /// What to wait for: POLLIN, POLLOUT.
    [[nodiscard]] short poll_events(bool has_output) const;
    [[nodiscard]] bool has_buffered() const { return tls_ && tls_->has_buffered(); }

private:
    enum class Stage { connecting, handshaking, open, failed };
    struct FreeAddresses {
        void operator()(addrinfo* list) const;
    };

    bool try_next();
    Io give_up(std::string text);

    std::string host_;
    TlsContext* tls_context_;
    std::unique_ptr<addrinfo, FreeAddresses> addresses_;
    addrinfo* next_ = nullptr;
    Descriptor socket_;
    std::unique_ptr<TlsSession> tls_;
    Stage stage_ = Stage::connecting;
    std::string last_error_;
};

} // namespace polybus::net
