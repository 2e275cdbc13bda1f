#pragma once

/// Everything that is thrown. The type says whose fault it is and what may be done about it.
///
///     Error
///     ├ UsageError            this program asked for something that cannot be
///     ├ ConnectionFailed      nobody there, not trusted, or no answer in time
///     ├ ConnectRefused        the broker said no: code(), reason(), server_reference()
///     ├ ConnectionLost        the connection went while this was under way, and nobody knows how far it came
///     ├ Closed                used after disconnect(), or the client gave up
///     ├ OperationTimeout      no room, or no acknowledgement, in time
///     ├ SubscriptionRefused   code(): 17, 128, 135, 143, 151
///     └ RequestFailed         id() of the request
///       ├ RequestTimeout      nobody answered in time
///       ├ RequestCanceled     by cancel()
///       ├ RequestDeleted      it waited, and the broker's storage was full
///       ├ NotDelivered        no service is there and it may not wait; or not authorized
///       ├ ServiceError        the service could not do it; what() is its own text
///       └ RequestRefused      the broker does not take it, for example because it is too large

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace polybus {

class Error : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

class UsageError : public Error {
public:
    using Error::Error;
};

class ConnectionFailed : public Error {
public:
    using Error::Error;
};

class ConnectionLost : public Error {
public:
    using Error::Error;
};

class Closed : public Error {
public:
    using Error::Error;
};

class OperationTimeout : public Error {
public:
    using Error::Error;
};

/// CONNACK with a reason other than 0.
class ConnectRefused : public Error {
public:
    ConnectRefused(int code, std::string reason, std::string server_reference);

    [[nodiscard]] int code() const { return code_; }
    [[nodiscard]] const std::string& reason() const { return reason_; }
    /// Other brokers, as `ip:port;ip:port`, if the broker named any.
    [[nodiscard]] const std::string& server_reference() const { return server_reference_; }

private:
    int code_;
    std::string reason_;
    std::string server_reference_;
};

/// SUBACK or UNSUBACK with a reason other than 0.
class SubscriptionRefused : public Error {
public:
    SubscriptionRefused(int code, std::string reason, const std::string& filter);

    [[nodiscard]] int code() const { return code_; }
    [[nodiscard]] const std::string& reason() const { return reason_; }

private:
    int code_;
    std::string reason_;
};

class RequestFailed : public Error {
public:
    RequestFailed(const std::string& text, std::uint16_t id) : Error(text), id_(id) {}

    [[nodiscard]] std::uint16_t id() const { return id_; }

private:
    std::uint16_t id_;
};

class RequestTimeout : public RequestFailed {
public:
    using RequestFailed::RequestFailed;
};

class RequestCanceled : public RequestFailed {
public:
    using RequestFailed::RequestFailed;
};

class RequestDeleted : public RequestFailed {
public:
    using RequestFailed::RequestFailed;
};

class NotDelivered : public RequestFailed {
public:
    using RequestFailed::RequestFailed;
};

class ServiceError : public RequestFailed {
public:
    using RequestFailed::RequestFailed;
};

class RequestRefused : public RequestFailed {
public:
    using RequestFailed::RequestFailed;
};

} // namespace polybus
