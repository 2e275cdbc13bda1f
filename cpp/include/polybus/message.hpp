#pragma once

#include <chrono>
#include <stop_token>
#include <string>
#include <string_view>

#include <polybus/bytes.hpp>

namespace polybus {

/// What a handler is given: a message, or a request if `is_request`.
struct Message {
    std::string topic{};
    Bytes payload{};
    bool priority = false;
    bool is_request = false;

    /// Who asks, and how long it will wait (rounded up). Only of a request.
    std::string requester{};
    std::chrono::seconds time_left{};

    /// Says stop when the answer is no longer wanted: the requester canceled, the connection was lost (the broker
    /// gives the request to another instance), or the service ends. Handlers that take long should look at it.
    std::stop_token stop{};

    [[nodiscard]] std::string_view text() const { return payload.text(); }
};

} // namespace polybus
