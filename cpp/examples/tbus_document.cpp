// The example of the document that defines TBus, in its own spelling: a service and a requester in one program.
//
//     tbus_document [PORT]

#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include <polybus/tbus.hpp>

using namespace std;

void Triple(ReceivedMessage* msg) {
    int len;
    string data = decodeString(msg->getPayload(), &len);
    msg->setResponse(encodeString(to_string(stoi(data) * 3)));
}

int ReadNumber(vector<unsigned char> response) {
    int len;
    return stoi(decodeString(response, &len));
}

int main(int argc, char** argv) {
    int port = argc > 1 ? atoi(argv[1]) : 5035;

    TBusClient service("cpp_service", "127.0.0.1", port);
    service.connectToBroker();
    service.subscribe("tripleValue", *Triple);

    TBusClient client("cpp_client", "127.0.0.1", port);
    client.connectToBroker(true, 20);
    ushort requestId = client.publishRequest("tripleValue", encodeString("14"), true, 60);
    cout << client.awaitAndProcessResponse(requestId, *ReadNumber) << endl;

    client.disconnect();
    service.unsubscribe("tripleValue");
    service.disconnect(DisconnectReasonCode::IMPLEMENTATION_SPECIFIC_ERROR, "nothing left to do");
}
