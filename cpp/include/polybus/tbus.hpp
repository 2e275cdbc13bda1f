#pragma once

/// The names of the document that defines TBus (section 5.4), for programs that were written with them. A thin
/// layer over `polybus::Client`, which new programs should use.
///
///     TBusClient client("cpp_client", "127.0.0.1", 5035);
///     client.connectToBroker();
///     unsigned short id = client.publishRequest("tripleValue", encodeString("14"), false, 60);
///     int result = client.awaitAndProcessResponse(id, callback);

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <polybus/client.hpp>

namespace polybus::tbus {

using ByteVector = std::vector<unsigned char>;

/// @name Values as TBus writes them
/// The decoders throw polybus::UsageError if the bytes are no such value.
/// @{
ByteVector encode2Bytes(unsigned short value);
unsigned short decode2Bytes(const ByteVector& data);
ByteVector encode4Bytes(unsigned int value);
unsigned int decode4Bytes(const ByteVector& data);
ByteVector encodeVarLenInt(unsigned int value);
/// `size`, if given, becomes the number of bytes that the value takes.
unsigned int decodeVarLenInt(const ByteVector& data, int* size = nullptr);
ByteVector encodeString(const std::string& text);
std::string decodeString(const ByteVector& data, int* size = nullptr);
/// @}

enum class DisconnectReasonCode : unsigned short {
    NORMAL_DISCONNECTION = 0,
    NO_SUBSCRIPTION_EXISTED = 17,
    UNSPECIFIED_ERROR = 128,
    IMPLEMENTATION_SPECIFIC_ERROR = 128,
    KEEP_ALIVE_TIMEOUT = 141,
};

/// What a callback is given. What it sets as response is the answer, if this is a request.
class ReceivedMessage {
public:
    ReceivedMessage(ByteVector data, std::string name) : payload(std::move(data)), topic(std::move(name)) {}

    ByteVector getPayload() const { return payload; }
    std::string getTopic() const { return topic; }
    void setResponse(ByteVector data) { response = std::move(data); }
    ByteVector getResponse() const { return response; }

private:
    ByteVector payload;
    std::string topic;
    ByteVector response;
};

class TBusClient {
public:
    using Callback = void (*)(ReceivedMessage*);

    /// With `logging`, what happens to the connection is printed; errors are printed to stderr in any case.
    TBusClient(std::string id, std::string ip, int port, bool logging = false, bool bulking = true);
    TBusClient(const TBusClient&) = delete;
    TBusClient& operator=(const TBusClient&) = delete;
    ~TBusClient();

    /// Throws polybus::ConnectionFailed or ConnectRefused. Without a clean start, requests of before a disconnect
    /// can still be awaited.
    void connectToBroker(bool cleanStart = true, unsigned int keepAlive = 60);
    /// For messages and requests. Subscribing again replaces the callback. Throws SubscriptionRefused.
    void subscribe(const std::string& filter, Callback callback);
    void unsubscribe(const std::string& filter);
    /// `timeout` is in seconds; 0: the message is not stored if there is nobody to take it.
    void publishMessage(const std::string& topic, const ByteVector& payload, bool priority = false,
                        unsigned int timeout = 0);
    /// Returns the request's packet id. `timeout` is in seconds; 0: 5 s.
    unsigned short publishRequest(const std::string& topic, const ByteVector& payload, bool priority = false,
                                  unsigned int timeout = 0);
    /// Waits for the answer and returns what `callback` makes of it. Throws polybus::RequestFailed's children.
    template <class Function>
    auto awaitAndProcessResponse(unsigned short id, Function callback) {
        return callback(awaitResponse(id));
    }
    void cancelRequest(unsigned short id);
    void disconnect(DisconnectReasonCode code = DisconnectReasonCode::NORMAL_DISCONNECTION,
                    const std::string& reason = "");

private:
    struct Asked {
        std::optional<PendingRequest> pending; ///< none: asked before the last disconnect
        unsigned int timeout = 0;
    };

    ByteVector awaitResponse(unsigned short id);
    std::shared_ptr<Client> connected() const;

    const std::string id_;
    const std::string ip_;
    const int port_;
    const bool logging_;
    const bool bulking_;
    mutable std::mutex mutex_;
    std::shared_ptr<Client> client_;
    std::map<std::string, Subscription> subscriptions_;
    std::map<unsigned short, Asked> asked_;
};

} // namespace polybus::tbus

// The document writes these names without a namespace.
#ifndef POLYBUS_TBUS_NAMESPACE_ONLY
using polybus::tbus::decode2Bytes;
using polybus::tbus::decode4Bytes;
using polybus::tbus::decodeString;
using polybus::tbus::decodeVarLenInt;
using polybus::tbus::DisconnectReasonCode;
using polybus::tbus::encode2Bytes;
using polybus::tbus::encode4Bytes;
using polybus::tbus::encodeString;
using polybus::tbus::encodeVarLenInt;
using polybus::tbus::ReceivedMessage;
using polybus::tbus::TBusClient;
#endif
