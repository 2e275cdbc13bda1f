// The document's spelling: its own example programs, and what they leave out.

#define TEST_GROUP "tbus"

#include <polybus/tbus.hpp>

#include "check.hpp"
#include "real_broker.hpp"
#include "recorder.hpp"

using namespace std;

namespace {

int port() {
    static real::Broker broker;
    return broker.port();
}

// -- the callbacks of the document -------------------------------------------------------------------------------

void Cb(ReceivedMessage* msg) {
    vector<unsigned char> payload = msg->getPayload();
    int len;
    string data = decodeString(payload, &len);
    int res = stoi(data) * 3; // calculate result
    msg->setResponse(encodeString(to_string(res)));
}

int CallbackPub(vector<unsigned char> response) {
    int len;
    string data = decodeString(response, &len);
    return stoi(data);
}

Recorded<string>& heard() {
    static Recorded<string> list;
    return list;
}

void Hear(ReceivedMessage* msg) { heard().add(msg->getTopic() + "=" + decodeString(msg->getPayload())); }

void Other(ReceivedMessage* msg) { msg->setResponse(encodeString("0")); }

} // namespace

TEST("connect with and without arguments, and disconnect for a reason") {
    {
        TBusClient client("cpp_client_id", "127.0.0.1", port());
        client.connectToBroker(true, 20);
        client.disconnect();
    }
    TBusClient client("cpp_client_id", "127.0.0.1", port(), true, false);
    client.connectToBroker(true, 20);
    CHECK_THROWS(polybus::UsageError, "already", (client.connectToBroker(), 0));
    client.disconnect(DisconnectReasonCode::IMPLEMENTATION_SPECIFIC_ERROR, "failed connection to database");
    CHECK_THROWS(polybus::Closed, "not connected", (client.publishMessage("t", {}), 0));
    CHECK_THROWS(polybus::Closed, "not connected", (client.disconnect(), 0));
    client.connectToBroker(); // and once more
}

TEST("the example: subscribe, ask, await, unsubscribe") {
    TBusClient service("cpp_service", "127.0.0.1", port());
    service.connectToBroker();
    service.subscribe("tripleValue", *Cb);

    TBusClient client("cpp_client", "127.0.0.1", port());
    client.connectToBroker();
    vector<unsigned char> payload = encodeString("42");
    ushort requestId = client.publishRequest("tripleValue", payload, true, 60);
    int requestResult = client.awaitAndProcessResponse(requestId, *CallbackPub);
    CHECK_EQUAL(requestResult, 126);

    service.subscribe("tripleValue", *Other); // replaces the first
    CHECK_EQUAL(client.awaitAndProcessResponse(client.publishRequest("tripleValue", payload), *CallbackPub), 0);

    service.unsubscribe("tripleValue");
    CHECK_THROWS(polybus::SubscriptionRefused, "17", (service.unsubscribe("tripleValue"), 0));
    CHECK_THROWS(polybus::SubscriptionRefused, "143", (service.subscribe("a/#/b", *Cb), 0));
    CHECK_THROWS(polybus::UsageError, "null", (service.subscribe("a", nullptr), 0));
}

TEST("messages, with priority and timeout; requests that are canceled or time out") {
    TBusClient client("cpp_client", "127.0.0.1", port());
    client.connectToBroker();
    vector<unsigned char> payload = encodeString("42");
    client.publishMessage("test_topic", payload, false, 20); // waits for its subscriber
    client.subscribe("test_topic", *Hear);
    client.publishMessage("test_topic", encodeString("43"), true);
    CHECK_EVENTUALLY(heard().size() == 2);
    CHECK_EQUAL(heard().all()[0], "test_topic=42");

    ushort id = client.publishRequest("nobody_here", payload, true, 60);
    client.cancelRequest(id);
    CHECK_THROWS(polybus::RequestCanceled, "", client.awaitAndProcessResponse(id, *CallbackPub));
    CHECK_THROWS(polybus::UsageError, "no request", client.awaitAndProcessResponse(id, *CallbackPub));
    id = client.publishRequest("nobody_here", payload, false, 1);
    CHECK_THROWS(polybus::RequestTimeout, "", client.awaitAndProcessResponse(id, *CallbackPub));
}

TEST("an answer is awaited after a disconnect and a start that is not clean") {
    TBusClient service("cpp_service", "127.0.0.1", port());
    TBusClient client("cpp_client", "127.0.0.1", port());
    client.connectToBroker();
    ushort id = client.publishRequest("lateValue", encodeString("14"), false, 60);
    client.disconnect();
    service.connectToBroker();
    service.subscribe("lateValue", *Cb);
    client.connectToBroker(false);
    CHECK_EQUAL(client.awaitAndProcessResponse(id, *CallbackPub), 42);
}

TEST("values as bytes and back") {
    using Bytes = vector<unsigned char>;
    CHECK(encode2Bytes(0x1234) == (Bytes{0x12, 0x34}));
    CHECK_EQUAL(decode2Bytes({0x12, 0x34}), 0x1234);
    CHECK(encode4Bytes(0x12345678) == (Bytes{0x12, 0x34, 0x56, 0x78}));
    CHECK_EQUAL(decode4Bytes({0x12, 0x34, 0x56, 0x78}), 0x12345678U);
    CHECK(encodeVarLenInt(321) == (Bytes{0xc1, 0x02}));
    int size = 0;
    CHECK_EQUAL(decodeVarLenInt({0xc1, 0x02, 0xff}, &size), 321U);
    CHECK_EQUAL(size, 2);
    for (unsigned value : {0U, 127U, 128U, 16'383U, 16'384U, 268'435'455U})
        CHECK_EQUAL(decodeVarLenInt(encodeVarLenInt(value)), value);
    CHECK(encodeString("hi") == (Bytes{2, 'h', 'i'}));
    CHECK_EQUAL(decodeString(encodeString(string(200, 'x')), &size), string(200, 'x'));
    CHECK_EQUAL(size, 202);
    CHECK_THROWS(polybus::UsageError, "2 bytes", decode2Bytes({1}));
    CHECK_THROWS(polybus::UsageError, "4 bytes", decode4Bytes({1, 2, 3}));
    CHECK_THROWS(polybus::UsageError, "268,435,455", encodeVarLenInt(268'435'456));
    CHECK_THROWS(polybus::UsageError, "variable-length", decodeVarLenInt({0x80}));
    CHECK_THROWS(polybus::UsageError, "what is left is 1", decodeString({2, 'h'}));
    CHECK_THROWS(polybus::UsageError, "UTF-8", decodeString({1, 0xff}));
    CHECK_THROWS(polybus::UsageError, "UTF-8", encodeString("\xff"));
    CHECK_THROWS(polybus::UsageError, "port", TBusClient("c", "127.0.0.1", 0));
}
