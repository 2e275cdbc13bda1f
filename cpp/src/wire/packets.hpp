#pragma once

/// TBus messages as values: one struct a message type, and the numbers that stand in them. An empty optional is a
/// field that is not there. docs/protocols/tbus.md says what the fields mean.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include <polybus/bytes.hpp>

namespace polybus::wire {

enum class Type : std::uint8_t {
    connect = 1,
    connack = 2,
    publish = 3,
    msgack = 4,
    reqack = 5,
    bulk = 6,
    subscribe = 8,
    suback = 9,
    unsubscribe = 10,
    unsuback = 11,
    pingreq = 12,
    pingresp = 13,
    disconnect = 14,
};

enum class ConnectReason : std::uint8_t {
    success = 0,
    unspecified = 128,
    malformed = 129,
    client_limit_reached = 131,
    client_id_in_use = 132,
    not_authorized = 135,
};

enum class SubscribeReason : std::uint16_t {
    success = 0,
    unspecified = 128,
    not_authorized = 135,
    invalid_filter = 143,
    too_many_subscriptions = 151,
};

enum class UnsubscribeReason : std::uint16_t {
    success = 0,
    no_subscription_existed = 17,
    unspecified = 128,
    invalid_filter = 143,
};

enum class DisconnectReason : std::uint16_t {
    normal = 0,
    no_subscription_existed = 17,
    unspecified = 128,
    keep_alive_timeout = 141,
};

enum class RequestState : std::uint8_t {
    delivered = 2,
    canceled = 6,
    deleted = 10,
    timed_out = 11,
    not_delivered = 12,
    error = 13,
    unknown = 14,
};

/// The values an enumeration may have on the wire.
template <class E>
inline constexpr std::array<E, 0> meanings{};
template <>
inline constexpr std::array meanings<ConnectReason>{
    ConnectReason::success,          ConnectReason::unspecified,
    ConnectReason::malformed,        ConnectReason::client_limit_reached,
    ConnectReason::client_id_in_use, ConnectReason::not_authorized};
template <>
inline constexpr std::array meanings<SubscribeReason>{SubscribeReason::success, SubscribeReason::unspecified,
                                                      SubscribeReason::not_authorized, SubscribeReason::invalid_filter,
                                                      SubscribeReason::too_many_subscriptions};
template <>
inline constexpr std::array meanings<UnsubscribeReason>{
    UnsubscribeReason::success, UnsubscribeReason::no_subscription_existed, UnsubscribeReason::unspecified,
    UnsubscribeReason::invalid_filter};
template <>
inline constexpr std::array meanings<DisconnectReason>{
    DisconnectReason::normal, DisconnectReason::no_subscription_existed, DisconnectReason::unspecified,
    DisconnectReason::keep_alive_timeout};
template <>
inline constexpr std::array meanings<RequestState>{
    RequestState::delivered,     RequestState::canceled, RequestState::deleted, RequestState::timed_out,
    RequestState::not_delivered, RequestState::error,    RequestState::unknown};

struct Connect {
    std::string client_id{};
    std::uint16_t keep_alive_s = 0;
    bool clean_start = false;
    bool is_broker = false;
    std::optional<std::string> token{};
    std::optional<std::string> user_name{};
    std::optional<std::uint32_t> bulk_limit{};
    friend bool operator==(const Connect&, const Connect&) = default;
};

struct ConnAck {
    ConnectReason reason = ConnectReason::success;
    std::optional<std::string> reason_string{};
    std::optional<std::string> server_reference{};
    friend bool operator==(const ConnAck&, const ConnAck&) = default;
};

/// A message, a request or an answer; an answer has no topic.
struct Publish {
    std::optional<std::string> topic{};
    Bytes payload{};
    bool is_request = false;
    bool is_response = false;
    bool is_priority = false;
    std::optional<std::uint32_t> timeout_s{};
    std::optional<std::string> response_destination{};
    std::optional<std::uint16_t> packet_id{};
    friend bool operator==(const Publish&, const Publish&) = default;
};

struct MsgAck {
    std::uint16_t message_id = 0;
    std::string topic{};
    friend bool operator==(const MsgAck&, const MsgAck&) = default;
};

struct ReqAck {
    std::uint16_t packet_id = 0;
    RequestState state = RequestState::delivered;
    std::optional<std::string> response_destination{};
    std::optional<std::string> topic{};
    std::optional<std::string> reason_string{};
    friend bool operator==(const ReqAck&, const ReqAck&) = default;
};

/// Messages one behind the other; `BulkReader` takes them apart.
struct Bulk {
    Bytes body{};
    friend bool operator==(const Bulk&, const Bulk&) = default;
};

struct Subscribe {
    std::uint16_t packet_id = 0;
    std::string topic_filter{};
    std::optional<std::uint16_t> concurrency{};
    friend bool operator==(const Subscribe&, const Subscribe&) = default;
};

struct SubAck {
    std::uint16_t packet_id = 0;
    SubscribeReason reason = SubscribeReason::success;
    std::optional<std::string> reason_string{};
    friend bool operator==(const SubAck&, const SubAck&) = default;
};

struct Unsubscribe {
    std::uint16_t packet_id = 0;
    std::string topic_filter{};
    friend bool operator==(const Unsubscribe&, const Unsubscribe&) = default;
};

struct UnsubAck {
    std::uint16_t packet_id = 0;
    UnsubscribeReason reason = UnsubscribeReason::success;
    std::optional<std::string> reason_string{};
    friend bool operator==(const UnsubAck&, const UnsubAck&) = default;
};

struct PingReq {
    friend bool operator==(const PingReq&, const PingReq&) = default;
};

struct PingResp {
    friend bool operator==(const PingResp&, const PingResp&) = default;
};

struct Disconnect {
    DisconnectReason reason = DisconnectReason::normal;
    std::optional<std::string> reason_string{};
    friend bool operator==(const Disconnect&, const Disconnect&) = default;
};

using Packet = std::variant<Connect, ConnAck, Publish, MsgAck, ReqAck, Bulk, Subscribe, SubAck, Unsubscribe, UnsubAck,
                            PingReq, PingResp, Disconnect>;

} // namespace polybus::wire
