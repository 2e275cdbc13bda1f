#pragma once

/// What each TBus message consists of: the tables of docs/protocols/tbus.md as the codec reads them. The names are
/// those of the page; errors use them.

#include <cstdint>
#include <tuple>

#include "fields.hpp"
#include "packets.hpp"

namespace polybus::wire {

template <class Member>
struct Flag {
    const char* name;
    Member member;
    std::uint8_t mask;
};

/// A field by its place. With one of the flags in `absent_with` it is not there.
template <class Member, class Codec>
struct Field {
    const char* name;
    Member member;
    Codec codec;
    std::uint8_t absent_with = 0;
};

template <class Member, class Codec>
struct Property {
    std::uint8_t id;
    const char* name;
    Member member;
    Codec codec;
    bool is_needed = false;
};

template <class M>
Flag(const char*, M, int) -> Flag<M>;
template <class M, class C>
Field(const char*, M, C) -> Field<M, C>;
template <class M, class C>
Field(const char*, M, C, int) -> Field<M, C>;
template <class M, class C>
Property(int, const char*, M, C) -> Property<M, C>;
template <class M, class C>
Property(int, const char*, M, C, bool) -> Property<M, C>;

/// Whether a message has properties: an optional block is there if bytes are left for it.
enum class Properties { never, optional, always };

inline constexpr Text any_text{};
inline constexpr Text topic_text{.may_hold_null = false, .shortest = 1};
/// Of any length: the reply to an empty one is a SUBACK.
inline constexpr Text filter_text{.may_hold_null = false};
inline constexpr Text client_id_text{.may_hold_null = false, .shortest = 1, .longest = 0xFFFF};
inline constexpr Number any_number{};
inline constexpr Number id_number{.lowest = 1};

inline constexpr int request_flag = 0b0001;
inline constexpr int priority_flag = 0b0010;
inline constexpr int response_flag = 0b0100;

inline constexpr int timeout_id = 0x02;
inline constexpr int response_destination_id = 0x08;
inline constexpr int token_id = 0x16;
inline constexpr int server_reference_id = 0x1C;
inline constexpr int reason_string_id = 0x1F;
inline constexpr int packet_id_id = 0x40;
inline constexpr int request_state_id = 0x41;
inline constexpr int topic_name_id = 0x42;
inline constexpr int message_id_id = 0x43;
inline constexpr int concurrency_id = 0x44;
inline constexpr int bulk_limit_id = 0x45;
inline constexpr int user_name_id = 0x46;

/// What a layout has unless it says otherwise.
struct PlainLayout {
    static constexpr std::tuple<> flags{};
    static constexpr std::uint8_t exclusive = 0;
    static constexpr std::tuple<> head{};
    static constexpr Properties has_properties = Properties::never;
    static constexpr std::tuple<> properties{}; // in the order of their ids, which is that of the wire
    static constexpr std::tuple<> tail{};
};

template <class P>
struct Layout;

template <>
struct Layout<Connect> : PlainLayout {
    static constexpr Type type = Type::connect;
    static constexpr const char* name = "CONNECT";
    static constexpr const char* rule = "TB-03";
    static constexpr std::tuple flags{Flag{"CleanStart", &Connect::clean_start, 0b0001},
                                      Flag{"BrokerConnect", &Connect::is_broker, 0b0010}};
    static constexpr std::tuple head{Field{"keepAlive", &Connect::keep_alive_s, any_number},
                                     Field{"clientId", &Connect::client_id, client_id_text}};
    static constexpr Properties has_properties = Properties::optional;
    static constexpr std::tuple properties{Property{token_id, "Token", &Connect::token, any_text},
                                           Property{bulk_limit_id, "BulkLimit", &Connect::bulk_limit, any_number},
                                           Property{user_name_id, "UserName", &Connect::user_name, any_text}};
};

template <>
struct Layout<ConnAck> : PlainLayout {
    static constexpr Type type = Type::connack;
    static constexpr const char* name = "CONNACK";
    static constexpr const char* rule = "TB-03";
    static constexpr std::tuple head{Field{"reason", &ConnAck::reason, any_number}};
    static constexpr Properties has_properties = Properties::always;
    static constexpr std::tuple properties{
        Property{server_reference_id, "ServerReference", &ConnAck::server_reference, any_text},
        Property{reason_string_id, "ReasonString", &ConnAck::reason_string, any_text}};
};

template <>
struct Layout<Publish> : PlainLayout {
    static constexpr Type type = Type::publish;
    static constexpr const char* name = "PUBLISH";
    static constexpr const char* rule = "TB-04";
    static constexpr std::tuple flags{Flag{"Request", &Publish::is_request, request_flag},
                                      Flag{"Priority", &Publish::is_priority, priority_flag},
                                      Flag{"Response", &Publish::is_response, response_flag}};
    static constexpr std::uint8_t exclusive = request_flag | response_flag;
    static constexpr std::tuple head{Field{"topicName", &Publish::topic, topic_text, response_flag}};
    static constexpr Properties has_properties = Properties::always;
    static constexpr std::tuple properties{
        Property{timeout_id, "Timeout", &Publish::timeout_s, any_number},
        Property{response_destination_id, "ResponseDestination", &Publish::response_destination, filter_text},
        Property{packet_id_id, "PacketId", &Publish::packet_id, id_number}};
    static constexpr std::tuple tail{Field{"payload", &Publish::payload, Rest{}}};
};

template <>
struct Layout<MsgAck> : PlainLayout {
    static constexpr Type type = Type::msgack;
    static constexpr const char* name = "MSGACK";
    static constexpr const char* rule = "TB-15";
    static constexpr Properties has_properties = Properties::always;
    static constexpr std::tuple properties{Property{topic_name_id, "TopicName", &MsgAck::topic, topic_text, true},
                                           Property{message_id_id, "MessageId", &MsgAck::message_id, id_number, true}};
};

template <>
struct Layout<ReqAck> : PlainLayout {
    static constexpr Type type = Type::reqack;
    static constexpr const char* name = "REQACK";
    static constexpr const char* rule = "TB-07";
    static constexpr Properties has_properties = Properties::always;
    static constexpr std::tuple properties{
        Property{response_destination_id, "ResponseDestination", &ReqAck::response_destination, filter_text},
        Property{reason_string_id, "ReasonString", &ReqAck::reason_string, any_text},
        Property{packet_id_id, "PacketId", &ReqAck::packet_id, id_number, true},
        Property{request_state_id, "RequestState", &ReqAck::state, any_number, true},
        Property{topic_name_id, "TopicName", &ReqAck::topic, topic_text}};
};

template <>
struct Layout<Bulk> : PlainLayout {
    static constexpr Type type = Type::bulk;
    static constexpr const char* name = "BULK";
    static constexpr const char* rule = "TB-12";
    static constexpr std::tuple tail{Field{"messages", &Bulk::body, Rest{.shortest = 1}}};
};

template <>
struct Layout<Subscribe> : PlainLayout {
    static constexpr Type type = Type::subscribe;
    static constexpr const char* name = "SUBSCRIBE";
    static constexpr const char* rule = "TB-05";
    static constexpr std::tuple head{Field{"packetId", &Subscribe::packet_id, id_number},
                                     Field{"topicFilter", &Subscribe::topic_filter, filter_text}};
    static constexpr Properties has_properties = Properties::optional;
    static constexpr std::tuple properties{
        Property{concurrency_id, "Concurrency", &Subscribe::concurrency, any_number}};
};

template <>
struct Layout<SubAck> : PlainLayout {
    static constexpr Type type = Type::suback;
    static constexpr const char* name = "SUBACK";
    static constexpr const char* rule = "TB-05";
    static constexpr std::tuple head{Field{"packetId", &SubAck::packet_id, id_number}};
    static constexpr Properties has_properties = Properties::always;
    static constexpr std::tuple properties{
        Property{reason_string_id, "ReasonString", &SubAck::reason_string, any_text}};
    static constexpr std::tuple tail{Field{"reason", &SubAck::reason, any_number}};
};

template <>
struct Layout<Unsubscribe> : PlainLayout {
    static constexpr Type type = Type::unsubscribe;
    static constexpr const char* name = "UNSUBSCRIBE";
    static constexpr const char* rule = "TB-05";
    static constexpr std::tuple head{Field{"packetId", &Unsubscribe::packet_id, id_number},
                                     Field{"topicFilter", &Unsubscribe::topic_filter, filter_text}};
};

template <>
struct Layout<UnsubAck> : PlainLayout {
    static constexpr Type type = Type::unsuback;
    static constexpr const char* name = "UNSUBACK";
    static constexpr const char* rule = "TB-05";
    static constexpr std::tuple head{Field{"packetId", &UnsubAck::packet_id, id_number}};
    static constexpr Properties has_properties = Properties::always;
    static constexpr std::tuple properties{
        Property{reason_string_id, "ReasonString", &UnsubAck::reason_string, any_text}};
    static constexpr std::tuple tail{Field{"reason", &UnsubAck::reason, any_number}};
};

template <>
struct Layout<PingReq> : PlainLayout {
    static constexpr Type type = Type::pingreq;
    static constexpr const char* name = "PINGREQ";
    static constexpr const char* rule = "TB-06";
};

template <>
struct Layout<PingResp> : PlainLayout {
    static constexpr Type type = Type::pingresp;
    static constexpr const char* name = "PINGRESP";
    static constexpr const char* rule = "TB-06";
};

template <>
struct Layout<Disconnect> : PlainLayout {
    static constexpr Type type = Type::disconnect;
    static constexpr const char* name = "DISCONNECT";
    static constexpr const char* rule = "TB-06";
    static constexpr std::tuple head{Field{"reason", &Disconnect::reason, any_number}};
    static constexpr Properties has_properties = Properties::optional;
    static constexpr std::tuple properties{
        Property{reason_string_id, "ReasonString", &Disconnect::reason_string, any_text}};
};

} // namespace polybus::wire
