#include <polybus/errors.hpp>

#include <polybus/events.hpp>

namespace polybus {

namespace {

struct Meaning {
    int code;
    const char* words;
};

constexpr Meaning connect_meanings[] = {{128, "unspecified error"},
                                        {129, "malformed packet"},
                                        {131, "client limit reached"},
                                        {132, "a connection with this client id exists"},
                                        {135, "not authorized"}};
constexpr Meaning subscribe_meanings[] = {{17, "no subscription existed"},
                                          {128, "unspecified error"},
                                          {135, "not authorized"},
                                          {143, "invalid topic filter"},
                                          {151, "too many subscriptions"}};

template <std::size_t N>
std::string explain(const Meaning (&meanings)[N], int code, const std::string& reason) {
    std::string text = std::to_string(code);
    for (const Meaning& meaning : meanings)
        if (meaning.code == code) text += std::string(" ") + meaning.words;
    return reason.empty() ? text : text + ": " + reason;
}

struct Describe {
    std::string operator()(const event::Connected& e) const {
        return "connected to " + e.broker + " at attempt " + std::to_string(e.attempt) + "; " +
               std::to_string(e.resent) + " requests sent again, " + std::to_string(e.renewed) +
               " subscriptions renewed";
    }
    std::string operator()(const event::Disconnected& e) const { return "disconnected: " + e.reason; }
    std::string operator()(const event::Reconnecting& e) const {
        return "reconnecting to " + e.broker + " in " + std::to_string(e.delay.count()) + " ms, attempt " +
               std::to_string(e.attempt) + ": " + e.reason;
    }
    std::string operator()(const event::Closed& e) const { return "closed: " + e.reason; }
    std::string operator()(const event::HandlerFailed& e) const {
        return e.topic.empty() ? "a callback failed: " + e.what : "the handler of '" + e.topic + "' failed: " + e.what;
    }
    std::string operator()(const event::MessagesDropped& e) const {
        return std::to_string(e.count) + " messages dropped: the handler of '" + e.filter + "' is too slow";
    }
    std::string operator()(const event::SubscriptionLost& e) const {
        return "subscription '" + e.filter + "' not renewed: " + explain(subscribe_meanings, e.code, e.reason);
    }
    std::string operator()(const event::MessageRefused& e) const {
        return "message of " + std::to_string(e.size_bytes) + " bytes to '" + e.topic + "' given up: " + e.reason;
    }
};

} // namespace

ConnectRefused::ConnectRefused(int code, std::string reason, std::string server_reference)
    : Error("the broker refused the connection: " + explain(connect_meanings, code, reason)), code_(code),
      reason_(std::move(reason)), server_reference_(std::move(server_reference)) {}

SubscriptionRefused::SubscriptionRefused(int code, std::string reason, const std::string& filter)
    : Error("the broker refused" + (filter.empty() ? std::string() : " '" + filter + "'") + ": " +
            explain(subscribe_meanings, code, reason)),
      code_(code), reason_(std::move(reason)) {}

std::string describe(const Event& event) { return std::visit(Describe{}, event); }

} // namespace polybus
