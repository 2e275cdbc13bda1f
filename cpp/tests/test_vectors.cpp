// Every case that is shared with Python (tests/vectors/tbus.json), decoded as it may arrive and encoded again; and
// bytes that nobody meant.

#define TEST_GROUP "wire"

#include <cstdlib>
#include <fstream>
#include <random>
#include <set>
#include <sstream>

#include <polybus/errors.hpp>

#include "../src/wire/codec.hpp"
#include "../src/wire/layouts.hpp"
#include "check.hpp"
#include "json.hpp"

namespace {

using namespace polybus;
using namespace polybus::wire;

const json::Value& vectors() {
    static const json::Value value = [] {
        std::ifstream file(POLYBUS_VECTORS, std::ios::binary);
        if (!file) throw std::runtime_error("cannot read " POLYBUS_VECTORS);
        std::ostringstream text;
        text << file.rdbuf();
        return json::Parser(text.str()).parse();
    }();
    return value;
}

std::size_t max_size() { return vectors()["max_size"].number(); }

std::string from_hex(const std::string& hex) {
    std::string bytes;
    std::string digits;
    for (const char digit : hex) {
        if (digit == ' ') continue;
        digits.push_back(digit);
        if (digits.size() == 2) {
            bytes.push_back(static_cast<char>(std::stoi(digits, nullptr, 16)));
            digits.clear();
        }
    }
    if (!digits.empty()) throw std::runtime_error("odd hex: " + hex);
    return bytes;
}

// -- the expected message, from JSON, by the names that Python's classes give the fields ------------------------

void set(bool& field, const json::Value& value) { field = value.boolean(); }
void set(std::string& field, const json::Value& value) { field = value.text(); }
void set(Bytes& field, const json::Value& value) { field = Bytes(from_hex(value.text())); }
template <class T>
requires std::is_enum_v<T> || std::unsigned_integral<T>
void set(T& field, const json::Value& value) { field = static_cast<T>(value.number()); }
template <class T>
void set(std::optional<T>& field, const json::Value& value) {
    if (!value.is_null()) set(field.emplace(), value);
}

template <class P>
using Setter = std::function<void(P&, const json::Value&)>;

template <class P, class M>
Setter<P> field(M P::*member) {
    return [member](P& packet, const json::Value& value) { set(packet.*member, value); };
}

template <class P>
Packet build(const json::Value& object, const std::map<std::string, Setter<P>>& fields) {
    P packet;
    for (const auto& [name, value] : object.object())
        if (name != "type") fields.at(name)(packet, value); // a misspelt field is an error
    return packet;
}

Packet expected(const json::Value& object) {
    const std::string& type = object["type"].text();
    if (type == "Connect")
        return build<Connect>(object, {{"client_id", field(&Connect::client_id)},
                                       {"keep_alive_s", field(&Connect::keep_alive_s)},
                                       {"clean_start", field(&Connect::clean_start)},
                                       {"is_broker", field(&Connect::is_broker)},
                                       {"token", field(&Connect::token)},
                                       {"user_name", field(&Connect::user_name)},
                                       {"bulk_limit", field(&Connect::bulk_limit)}});
    if (type == "ConnAck")
        return build<ConnAck>(object, {{"reason", field(&ConnAck::reason)},
                                       {"reason_string", field(&ConnAck::reason_string)},
                                       {"server_reference", field(&ConnAck::server_reference)}});
    if (type == "Publish")
        return build<Publish>(object, {{"topic", field(&Publish::topic)},
                                       {"payload", field(&Publish::payload)},
                                       {"is_request", field(&Publish::is_request)},
                                       {"is_response", field(&Publish::is_response)},
                                       {"is_priority", field(&Publish::is_priority)},
                                       {"timeout_s", field(&Publish::timeout_s)},
                                       {"response_destination", field(&Publish::response_destination)},
                                       {"packet_id", field(&Publish::packet_id)}});
    if (type == "MsgAck")
        return build<MsgAck>(object, {{"message_id", field(&MsgAck::message_id)}, {"topic", field(&MsgAck::topic)}});
    if (type == "ReqAck")
        return build<ReqAck>(object, {{"packet_id", field(&ReqAck::packet_id)},
                                      {"state", field(&ReqAck::state)},
                                      {"response_destination", field(&ReqAck::response_destination)},
                                      {"topic", field(&ReqAck::topic)},
                                      {"reason_string", field(&ReqAck::reason_string)}});
    if (type == "Bulk") return build<Bulk>(object, {{"body", field(&Bulk::body)}});
    if (type == "Subscribe")
        return build<Subscribe>(object, {{"packet_id", field(&Subscribe::packet_id)},
                                         {"topic_filter", field(&Subscribe::topic_filter)},
                                         {"concurrency", field(&Subscribe::concurrency)}});
    if (type == "SubAck")
        return build<SubAck>(object, {{"packet_id", field(&SubAck::packet_id)},
                                      {"reason", field(&SubAck::reason)},
                                      {"reason_string", field(&SubAck::reason_string)}});
    if (type == "Unsubscribe")
        return build<Unsubscribe>(object, {{"packet_id", field(&Unsubscribe::packet_id)},
                                           {"topic_filter", field(&Unsubscribe::topic_filter)}});
    if (type == "UnsubAck")
        return build<UnsubAck>(object, {{"packet_id", field(&UnsubAck::packet_id)},
                                        {"reason", field(&UnsubAck::reason)},
                                        {"reason_string", field(&UnsubAck::reason_string)}});
    if (type == "PingReq") return build<PingReq>(object, {});
    if (type == "PingResp") return build<PingResp>(object, {});
    if (type == "Disconnect")
        return build<Disconnect>(
            object, {{"reason", field(&Disconnect::reason)}, {"reason_string", field(&Disconnect::reason_string)}});
    throw std::runtime_error("unknown type " + type);
}

// -- the ways in which the same bytes may arrive ------------------------------------------------------------------

using Chunks = std::vector<std::string>;
Chunks whole(const std::string& data) { return {data}; }
Chunks glued(const std::string& data) { return {data + data}; }
Chunks byte_by_byte(const std::string& data) {
    Chunks chunks;
    for (const char byte : data) chunks.emplace_back(1, byte);
    return chunks;
}

constexpr Chunks (*arrivals[])(const std::string&) = {whole, byte_by_byte, glued};

std::vector<Packet> read(const Chunks& chunks, std::size_t max) {
    std::vector<Packet> packets;
    std::string buffer;
    for (const std::string& chunk : chunks) {
        buffer += chunk;
        std::size_t pos = 0;
        while (const auto frame = next_frame(buffer, pos, max)) {
            Packet packet = decode(frame->first_byte, frame->body);
            // The short way must agree with the tables.
            if (const auto* publish = std::get_if<Publish>(&packet)) {
                const auto view = decode_publish(frame->flags(), frame->body);
                CHECK(view.has_value());
                CHECK_EQUAL(view->topic, publish->topic.value_or(""));
                CHECK_EQUAL(view->payload, publish->payload.text());
                CHECK_EQUAL(view->timeout_s, publish->timeout_s.value_or(0));
                CHECK_EQUAL(view->packet_id, publish->packet_id.value_or(0));
                CHECK_EQUAL(view->response_destination, publish->response_destination.value_or(""));
                CHECK_EQUAL(view->is_priority, publish->is_priority);
            }
            packets.push_back(std::move(packet));
            pos = frame->end;
        }
        buffer.erase(0, pos);
    }
    return packets;
}

/// For a case by itself: its name belongs to the failure.
template <class Function>
void with_name(const json::Value& test, Function function) {
    try {
        function();
    } catch (const Malformed& malformed) {
        throw check::Failure(test["name"].text() + ": refused: " + malformed.text);
    } catch (const std::exception& error) {
        throw check::Failure(test["name"].text() + ": " + error.what());
    }
}

} // namespace

TEST("every case decodes to its message, however it arrives") {
    std::size_t count = 0;
    for (const json::Value& test : vectors()["cases"].array()) {
        if (!test.has("packet")) continue;
        ++count;
        with_name(test, [&] {
            const std::string data = from_hex(test["hex"].text());
            for (const auto arrive : arrivals) {
                const auto packets = read(arrive(data), max_size());
                CHECK_EQUAL(packets.size(), arrive == glued ? 2U : 1U);
                for (const Packet& packet : packets) CHECK(packet == expected(test["packet"]));
            }
            CHECK(read(byte_by_byte(data.substr(0, data.size() - 1)), max_size()).empty());
        });
    }
    CHECK(count > 80);
}

TEST("every case encodes to its bytes") {
    for (const json::Value& test : vectors()["cases"].array()) {
        if (!test.has("packet")) continue;
        with_name(test, [&] {
            const std::string data = from_hex(test["hex"].text());
            const std::string written = encode(expected(test["packet"]));
            if (test.has("decode_only") && test["decode_only"].boolean()) {
                CHECK(written != data);
                CHECK(read({written}, max_size()).at(0) == expected(test["packet"]));
            } else {
                CHECK(written == data);
            }
        });
    }
}

TEST("a PUBLISH of a client is written the same by the short way") {
    std::size_t count = 0;
    for (const json::Value& test : vectors()["cases"].array()) {
        if (!test.has("packet") || test.has("decode_only")) continue;
        const Packet packet = expected(test["packet"]);
        const auto* publish = std::get_if<Publish>(&packet);
        if (!publish || publish->timeout_s == 0U) continue;
        if (!publish->is_response && publish->response_destination) continue; // only brokers write that
        ++count;
        with_name(test, [&] {
            PublishView view;
            view.topic = publish->topic ? std::string_view(*publish->topic) : std::string_view();
            view.payload = publish->payload.text();
            view.is_request = publish->is_request;
            view.is_response = publish->is_response;
            view.is_priority = publish->is_priority;
            view.timeout_s = publish->timeout_s.value_or(0);
            if (publish->response_destination) view.response_destination = *publish->response_destination;
            view.packet_id = publish->packet_id.value_or(0);
            CHECK(encode_publish(view) == encode(packet));
        });
    }
    CHECK(count > 15);
}

TEST("every error is found, with its reason and rule, however it arrives") {
    std::size_t count = 0;
    std::set<int> types;
    for (const json::Value& test : vectors()["cases"].array()) {
        if (!test.has("error")) continue;
        ++count;
        const std::string data = from_hex(test["hex"].text());
        types.insert(static_cast<unsigned char>(data[0]) >> 4);
        for (const auto arrive : arrivals) {
            bool is_refused = false;
            try {
                static_cast<void>(read(arrive(data), max_size()));
            } catch (const Malformed& malformed) {
                is_refused = true;
                with_name(test, [&] {
                    CHECK_EQUAL(static_cast<std::uint64_t>(malformed.reason_code),
                                test["error"]["reason_code"].number());
                    CHECK_EQUAL(malformed.rule, test["error"]["rule"].text());
                    CHECK(!malformed.text.empty());
                });
            }
            with_name(test, [&] { CHECK(is_refused); });
        }
    }
    CHECK(count > 150);
    CHECK_EQUAL(types.size(), 16U);
}

TEST("the inside of every BULK, up to its error") {
    for (const json::Value& test : vectors()["bulks"].array()) {
        with_name(test, [&] {
            const std::string data = from_hex(test["hex"].text());
            for (const auto arrive : arrivals) {
                const auto packets = read(arrive(data), max_size());
                CHECK_EQUAL(packets.size(), arrive == glued ? 2U : 1U);
                for (const Packet& packet : packets) {
                    const std::string body = std::get<Bulk>(packet).body.str();
                    std::vector<std::string> taken;
                    std::optional<Malformed> fault;
                    try {
                        BulkReader reader(body);
                        std::size_t begin = 0;
                        while (const auto frame = reader.next()) {
                            static_cast<void>(decode(frame->first_byte, frame->body));
                            taken.push_back(body.substr(begin, frame->end - begin));
                            begin = frame->end;
                        }
                    } catch (const Malformed& malformed) {
                        fault = malformed;
                    }
                    const auto& messages = test["messages"].array();
                    CHECK_EQUAL(taken.size(), messages.size());
                    for (std::size_t i = 0; i < taken.size(); ++i) CHECK(taken[i] == from_hex(messages[i].text()));
                    CHECK_EQUAL(fault.has_value(), test.has("error"));
                    if (fault) CHECK_EQUAL(fault->rule, test["error"]["rule"].text());
                }
            }
        });
    }
}

TEST("a BULK is written only if it can be read") {
    const std::set<std::string> looked_at_later = {"a message that cannot be read", "a type that is not used"};
    for (const json::Value& test : vectors()["bulks"].array()) {
        with_name(test, [&] {
            const std::string data = from_hex(test["hex"].text());
            const auto frame = next_frame(data, 0, data.size());
            const Packet bulk = Bulk{Bytes(frame->body)};
            if (!test.has("error") || looked_at_later.contains(test["name"].text()))
                CHECK(encode(bulk) == data);
            else
                CHECK_THROWS(UsageError, "[" + test["error"]["rule"].text() + "]", encode(bulk));
        });
    }
}

TEST("a body cut anywhere is another message or the peer's fault") {
    for (const json::Value& test : vectors()["cases"].array()) {
        if (!test.has("packet")) continue;
        const std::string data = from_hex(test["hex"].text());
        const auto frame = next_frame(data, 0, data.size());
        for (std::size_t size = 0; size < frame->body.size(); ++size) {
            try {
                static_cast<void>(decode(frame->first_byte, frame->body.substr(0, size)));
            } catch (const Malformed&) {
            }
        }
    }
}

TEST("random bytes are a message, not complete, or an error") {
    const unsigned seed = 20240607;
    std::mt19937 random(seed);
    std::vector<std::string> seeds;
    for (const json::Value& test : vectors()["cases"].array()) seeds.push_back(from_hex(test["hex"].text()));
    std::size_t packets = 0;
    std::size_t errors = 0;
    for (int round = 0; round < 40'000; ++round) {
        std::string data;
        if (round % 4 == 0) {
            data.resize(random() % 64);
            for (char& byte : data) byte = static_cast<char>(random());
        } else {
            data = seeds[random() % seeds.size()];
            for (std::size_t change = random() % 3 + 1; change > 0 && !data.empty(); --change) {
                const std::size_t at = random() % data.size();
                if (random() % 3 == 0)
                    data.erase(at, 1);
                else if (random() % 2 == 0)
                    data.insert(at, 1, static_cast<char>(random()));
                else
                    data[at] = static_cast<char>(random());
            }
        }
        try {
            std::size_t pos = 0;
            while (const auto frame = next_frame(data, pos, 4096)) {
                pos = frame->end;
                const Packet packet = decode(frame->first_byte, frame->body);
                ++packets;
                if (const auto* bulk = std::get_if<Bulk>(&packet)) {
                    BulkReader reader(bulk->body.text());
                    while (const auto inner = reader.next()) static_cast<void>(decode(inner->first_byte, inner->body));
                } else {
                    // What was read can be written, and read again.
                    const std::string again = encode(packet);
                    const auto second = next_frame(again, 0, again.size());
                    CHECK(decode(second->first_byte, second->body) == packet);
                }
                const bool is_publish = frame->kind() == static_cast<std::uint8_t>(Type::publish);
                if (is_publish) CHECK(decode_publish(frame->flags(), frame->body).has_value());
            }
        } catch (const Malformed& malformed) {
            ++errors;
            CHECK(!malformed.text.empty());
        }
    }
    CHECK(packets > 1'000);
    CHECK(errors > 1'000);
}

TEST("what the tables refuse, the short way does not take either") {
    for (const json::Value& test : vectors()["cases"].array()) {
        if (!test.has("error")) continue;
        const std::string data = from_hex(test["hex"].text());
        if (static_cast<unsigned char>(data[0]) >> 4 != static_cast<int>(Type::publish)) continue;
        std::optional<Frame> frame;
        try {
            frame = next_frame(data, 0, max_size());
        } catch (const Malformed&) {
            continue; // the header is wrong already
        }
        with_name(test, [&] { CHECK(!frame || !decode_publish(frame->flags(), frame->body)); });
    }
}
