#include <polybus/tbus.hpp>

#include <iostream>

#include "../wire/utf8.hpp"
#include "../wire/varint.hpp"

namespace polybus::tbus {

namespace {

ByteVector bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

std::string_view text_of(const ByteVector& data) { return {reinterpret_cast<const char*>(data.data()), data.size()}; }

ByteVector encode_number(std::uint32_t value, int size) {
    ByteVector bytes;
    for (int shift = 8 * (size - 1); shift >= 0; shift -= 8)
        bytes.push_back(static_cast<unsigned char>(value >> shift));
    return bytes;
}

std::uint32_t decode_number(const ByteVector& data, std::size_t size, const char* name) {
    if (data.size() < size)
        throw UsageError(std::string(name) + ": needs " + std::to_string(size) + " bytes, and there are " +
                         std::to_string(data.size()));
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < size; ++i) value = value << 8 | data[i];
    return value;
}

wire::Varint decode_varint(const ByteVector& data, const char* name) {
    const wire::Varint varint = wire::decode_varint(text_of(data), 0, data.size());
    if (varint.fault != wire::VarintFault::none)
        throw UsageError(std::string(name) + ": the bytes do not begin with a variable-length integer of 1 to 4 bytes");
    return varint;
}

} // namespace

ByteVector encode2Bytes(unsigned short value) { return encode_number(value, 2); }

unsigned short decode2Bytes(const ByteVector& data) {
    return static_cast<unsigned short>(decode_number(data, 2, "decode2Bytes"));
}

ByteVector encode4Bytes(unsigned int value) { return encode_number(value, 4); }

unsigned int decode4Bytes(const ByteVector& data) { return decode_number(data, 4, "decode4Bytes"); }

ByteVector encodeVarLenInt(unsigned int value) {
    if (value > wire::max_varint)
        throw UsageError("encodeVarLenInt: " + std::to_string(value) + " is more than 268,435,455");
    std::string out;
    wire::append_varint(out, value);
    return bytes_of(out);
}

unsigned int decodeVarLenInt(const ByteVector& data, int* size) {
    const wire::Varint varint = decode_varint(data, "decodeVarLenInt");
    if (size) *size = static_cast<int>(varint.size_bytes);
    return static_cast<unsigned int>(varint.value);
}

ByteVector encodeString(const std::string& text) {
    if (wire::find_utf8_fault(text) != std::string_view::npos) throw UsageError("encodeString: the text is not UTF-8");
    if (text.size() > wire::max_varint) throw UsageError("encodeString: the text is longer than 268,435,455 bytes");
    std::string out;
    wire::append_varint(out, text.size());
    return bytes_of(out + text);
}

std::string decodeString(const ByteVector& data, int* size) {
    const wire::Varint length = decode_varint(data, "decodeString");
    if (length.value > data.size() - length.size_bytes)
        throw UsageError("decodeString: the string says it has " + std::to_string(length.value) +
                         " bytes, and what is left is " + std::to_string(data.size() - length.size_bytes));
    const std::string_view text = text_of(data).substr(length.size_bytes, length.value);
    if (wire::find_utf8_fault(text) != std::string_view::npos) throw UsageError("decodeString: the text is not UTF-8");
    if (size) *size = static_cast<int>(length.size_bytes + length.value);
    return std::string(text);
}

TBusClient::TBusClient(std::string id, std::string ip, int port, bool logging, bool bulking)
    : id_(std::move(id)), ip_(std::move(ip)), port_(port), logging_(logging), bulking_(bulking) {
    if (port < 1 || port > 0xFFFF) throw UsageError("TBusClient: a port is 1 to 65535, not " + std::to_string(port));
}

TBusClient::~TBusClient() = default;

std::shared_ptr<Client> TBusClient::connected() const {
    const std::lock_guard lock(mutex_);
    if (!client_) throw Closed("TBusClient: not connected; call connectToBroker first");
    return client_;
}

void TBusClient::connectToBroker(bool cleanStart, unsigned int keepAlive) {
    {
        const std::lock_guard lock(mutex_);
        if (client_) throw UsageError("TBusClient: connected already");
        if (cleanStart) asked_.clear();
    }
    Options options;
    options.client_id = id_;
    options.host = ip_;
    options.port = static_cast<std::uint16_t>(port_);
    options.keep_alive = std::chrono::seconds(keepAlive);
    options.clean_start = cleanStart;
    options.bulking = bulking_ ? Bulking::adaptive : Bulking::off;
    options.on_event = [logs = logging_, id = id_](const Event& event) {
        const bool is_error = std::holds_alternative<event::Closed>(event) ||
                              std::holds_alternative<event::HandlerFailed>(event) ||
                              std::holds_alternative<event::SubscriptionLost>(event) ||
                              std::holds_alternative<event::MessageRefused>(event);
        if (is_error)
            std::cerr << id << ": " << describe(event) << std::endl;
        else if (logs)
            std::cout << id << ": " << describe(event) << std::endl;
    };
    auto client = std::make_shared<Client>(std::move(options));
    const std::lock_guard lock(mutex_);
    client_ = std::move(client);
}

void TBusClient::subscribe(const std::string& filter, Callback callback) {
    if (!callback) throw UsageError("TBusClient::subscribe: the callback is null");
    Subscription subscription = connected()->serve(filter, [callback](const Message& message) {
        ReceivedMessage received(message.payload.vector(), message.topic);
        callback(&received);
        return Bytes(received.getResponse());
    });
    const std::lock_guard lock(mutex_);
    std::swap(subscriptions_[filter], subscription); // the one before ends outside the lock
}

void TBusClient::unsubscribe(const std::string& filter) {
    connected()->unsubscribe(filter);
    Subscription ended;
    const std::lock_guard lock(mutex_);
    if (const auto found = subscriptions_.find(filter); found != subscriptions_.end()) {
        ended = std::move(found->second);
        subscriptions_.erase(found);
    }
}

void TBusClient::publishMessage(const std::string& topic, const ByteVector& payload, bool priority,
                                unsigned int timeout) {
    connected()->publish(topic, payload, {.priority = priority, .timeout = std::chrono::seconds(timeout)});
}

unsigned short TBusClient::publishRequest(const std::string& topic, const ByteVector& payload, bool priority,
                                          unsigned int timeout) {
    RequestOptions options{.priority = priority};
    if (timeout) options.timeout = std::chrono::seconds(timeout);
    PendingRequest pending = connected()->request_async(topic, payload, options);
    const unsigned short id = pending.id();
    const std::lock_guard lock(mutex_);
    asked_[id] = {std::move(pending), timeout};
    return id;
}

ByteVector TBusClient::awaitResponse(unsigned short id) {
    Asked asked;
    {
        const std::lock_guard lock(mutex_);
        const auto found = asked_.find(id);
        if (found == asked_.end())
            throw UsageError("TBusClient: " + std::to_string(id) +
                             " is no request of this client that was not awaited yet");
        asked = std::move(found->second);
        asked_.erase(found);
    }
    if (!asked.pending)
        asked.pending = connected()->resume(id, std::chrono::seconds(asked.timeout ? asked.timeout : 5));
    return asked.pending->get().vector();
}

void TBusClient::cancelRequest(unsigned short id) { connected()->cancel(id); }

void TBusClient::disconnect(DisconnectReasonCode code, const std::string& reason) {
    std::shared_ptr<Client> client;
    std::map<std::string, Subscription> subscriptions;
    {
        const std::lock_guard lock(mutex_);
        client = std::exchange(client_, nullptr);
        subscriptions.swap(subscriptions_);
        // What is unfinished can be awaited after the next connectToBroker(false): the broker keeps it (TB-08).
        for (auto& [id, asked] : asked_)
            if (asked.pending && !asked.pending->is_done()) asked.pending.reset();
    }
    if (!client) throw Closed("TBusClient: not connected");
    client->disconnect(static_cast<int>(code), reason);
    for (auto& [filter, subscription] : subscriptions) subscription.release();
}

} // namespace polybus::tbus
