// A client that does what it is told by lines on its input, so that tests can drive it beside one in another
// language. Words are divided by single spaces; payloads are hex, `-` for none.
//
//     connect HOST PORT CLIENT_ID CLEAN KEEP_ALIVE_S BULK     ok | error refused CODE TEXT | error unreachable TEXT
//     subscribe FILTER                                        ok | error refused CODE TEXT
//     serve FILTER echo|triple|fail|hang|slow [MS] CONCURRENCY
//     unsubscribe FILTER
//     publish TOPIC HEX PRIORITY TIMEOUT_S
//     request TOPIC HEX PRIORITY TIMEOUT_S                    ok ID
//     await ID                                                ok HEX | error
//     timeout|canceled|deleted|not-delivered|service TEXT cancel ID disconnect CODE [REASON…] quit
//
// Each command is answered by one line. What happens by itself is a line that begins with `! `.

#include <chrono>
#include <condition_variable>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <polybus/polybus.hpp>
#include <polybus/tbus.hpp>

namespace {

using Words = std::vector<std::string>;

void say(std::string line) {
    static std::mutex mutex;
    for (char& letter : line)
        if (letter == '\n' || letter == '\r') letter = ' ';
    const std::lock_guard lock(mutex);
    std::cout << line << std::endl;
}

std::string to_hex(std::string_view bytes) {
    if (bytes.empty()) return "-";
    static constexpr char digits[] = "0123456789abcdef";
    std::string hex;
    hex.reserve(2 * bytes.size());
    for (const char byte : bytes) {
        hex.push_back(digits[static_cast<unsigned char>(byte) >> 4]);
        hex.push_back(digits[static_cast<unsigned char>(byte) & 15]);
    }
    return hex;
}

std::string from_hex(const std::string& hex) {
    if (hex == "-") return {};
    if (hex.size() % 2) throw polybus::UsageError("a payload is hex, two digits a byte, or -");
    std::string bytes;
    for (std::size_t i = 0; i < hex.size(); i += 2) {
        const std::string digits = hex.substr(i, 2);
        if (digits.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos)
            throw polybus::UsageError("a payload is hex, two digits a byte, or -");
        bytes.push_back(static_cast<char>(std::stoi(digits, nullptr, 16)));
    }
    return bytes;
}

unsigned long number(const std::string& word) {
    if (word.empty() || word.size() > 10 || word.find_first_not_of("0123456789") != std::string::npos)
        throw polybus::UsageError("'" + word + "' is no number");
    return std::stoul(word);
}

class Peer {
public:
    /// False: it is time to go.
    bool obey(const std::string& line) {
        Words words;
        std::istringstream stream(line);
        for (std::string word; std::getline(stream, word, ' ');) words.push_back(word);
        if (words.empty() || words[0] == "quit") return false;
        say(answer(words));
        return true;
    }

    void end() {
        is_ending_ = true;
        client_.reset();
    }

private:
    struct Asked {
        polybus::PendingRequest pending; ///< of this connection
        std::chrono::seconds timeout{5};
        bool is_left_behind = false; ///< asked before a disconnect
    };

    std::string answer(const Words& words) {
        try {
            const auto found = commands().find(words[0]);
            if (found == commands().end()) throw polybus::UsageError("unknown command '" + words[0] + "'");
            const std::string result = (this->*found->second)(words);
            return result.empty() ? "ok" : "ok " + result;
        } catch (const polybus::ConnectRefused& error) {
            return "error refused " + std::to_string(error.code()) + " " + error.what();
        } catch (const polybus::SubscriptionRefused& error) {
            return "error refused " + std::to_string(error.code()) + " " + error.what();
        } catch (const polybus::RequestRefused& error) {
            return std::string("error refused 128 ") + error.what();
        } catch (const polybus::ConnectionFailed& error) {
            return std::string("error unreachable ") + error.what();
        } catch (const polybus::RequestTimeout& error) {
            return std::string("error timeout ") + error.what();
        } catch (const polybus::RequestCanceled& error) {
            return std::string("error canceled ") + error.what();
        } catch (const polybus::RequestDeleted& error) {
            return std::string("error deleted ") + error.what();
        } catch (const polybus::NotDelivered& error) {
            return std::string("error not-delivered ") + error.what();
        } catch (const polybus::ServiceError& error) {
            return std::string("error service ") + error.what();
        } catch (const polybus::Closed& error) {
            return std::string("error closed ") + error.what();
        } catch (const std::exception& error) {
            return std::string("error usage ") + error.what();
        }
    }

    using Command = std::string (Peer::*)(const Words&);
    static const std::map<std::string, Command>& commands() {
        static const std::map<std::string, Command> table = {
            {"connect", &Peer::connect},     {"subscribe", &Peer::subscribe}, {"serve", &Peer::serve},
            {"publish", &Peer::publish},     {"request", &Peer::request},     {"unsubscribe", &Peer::unsubscribe},
            {"await", &Peer::await_outcome}, {"cancel", &Peer::cancel},       {"disconnect", &Peer::disconnect},
        };
        return table;
    }

    static void check(const Words& words, std::size_t least, std::size_t most) {
        if (words.size() < least || words.size() > most)
            throw polybus::UsageError("'" + words[0] + "' has " + std::to_string(words.size() - 1) +
                                      " words behind it, which is not what it needs");
    }

    polybus::Client& client() {
        if (!client_) throw polybus::Closed("not connected");
        return *client_;
    }

    std::string connect(const Words& words) {
        check(words, 7, 7);
        static const std::map<std::string, polybus::Bulking> modes = {{"adaptive", polybus::Bulking::adaptive},
                                                                      {"fixed", polybus::Bulking::fixed},
                                                                      {"off", polybus::Bulking::off}};
        if (!modes.contains(words[6])) throw polybus::UsageError("BULK is adaptive, fixed or off");
        polybus::Options options;
        options.host = words[1];
        options.port = static_cast<std::uint16_t>(number(words[2]));
        options.client_id = words[3];
        options.clean_start = number(words[4]) != 0;
        options.keep_alive = std::chrono::seconds(number(words[5]));
        options.bulking = modes.at(words[6]);
        options.on_event = [](const polybus::Event& event) {
            if (std::holds_alternative<polybus::event::Connected>(event)) say("! connected");
            if (const auto* lost = std::get_if<polybus::event::Disconnected>(&event)) say("! lost " + lost->reason);
            if (const auto* closed = std::get_if<polybus::event::Closed>(&event)) say("! closed " + closed->reason);
        };
        if (client_) throw polybus::UsageError("connected already");
        client_ = std::make_unique<polybus::Client>(std::move(options));
        is_ending_ = false;
        if (number(words[4])) asked_.clear();
        return {};
    }

    std::string subscribe(const Words& words) {
        check(words, 2, 2);
        keep(words[1], client().subscribe(words[1], [](const polybus::Message& message) {
            say("! message " + message.topic + " " + to_hex(message.text()));
        }));
        return {};
    }

    std::string serve(const Words& words) {
        check(words, 4, 5);
        const bool is_slow = words[2] == "slow";
        check(words, is_slow ? 5 : 4, is_slow ? 5 : 4);
        const auto pause = std::chrono::milliseconds(is_slow ? number(words[3]) : 0);
        const std::string behaviour = words[2];
        if (behaviour != "echo" && behaviour != "triple" && behaviour != "fail" && behaviour != "hang" && !is_slow)
            throw polybus::UsageError("a behaviour is echo, triple, fail, hang or slow, not " + behaviour);
        auto handler = [this, behaviour, pause](const polybus::Message& message) -> polybus::Bytes {
            if (!message.is_request) {
                say("! message " + message.topic + " " + to_hex(message.text()));
                return {};
            }
            say("! request " + message.topic + " " + to_hex(message.text()) + (message.priority ? " 1" : " 0"));
            return behave(behaviour, pause, message);
        };
        keep(words[1],
             client().serve(words[1], handler, {.concurrency = static_cast<std::uint16_t>(number(words.back()))}));
        return {};
    }

    polybus::Bytes behave(const std::string& behaviour, std::chrono::milliseconds pause,
                          const polybus::Message& message) {
        if (behaviour == "fail") throw std::runtime_error("cannot do it");
        if (behaviour == "triple") {
            const std::string text = decodeString(message.payload.vector());
            return encodeString(std::to_string(3 * std::stol(text)));
        }
        if (behaviour == "hang" || behaviour == "slow") {
            std::mutex mutex;
            std::condition_variable_any stopped;
            std::unique_lock lock(mutex);
            if (behaviour == "hang")
                stopped.wait(lock, message.stop, [] { return false; });
            else
                stopped.wait_for(lock, message.stop, pause, [] { return false; });
            if (message.stop.stop_requested() && !is_ending_) say("! canceled " + message.topic);
        }
        return message.payload;
    }

    void keep(const std::string& filter, polybus::Subscription subscription) {
        std::swap(subscriptions_[filter], subscription); // one filter, one subscription: the older one ends
    }

    std::string unsubscribe(const Words& words) {
        check(words, 2, 2);
        client().unsubscribe(words[1]);
        subscriptions_.erase(words[1]);
        return {};
    }

    std::string publish(const Words& words) {
        check(words, 5, 5);
        client().publish(words[1], from_hex(words[2]),
                         {.priority = number(words[3]) != 0, .timeout = std::chrono::seconds(number(words[4]))});
        return {};
    }

    std::string request(const Words& words) {
        check(words, 5, 5);
        const auto timeout = std::chrono::seconds(number(words[4]));
        polybus::RequestOptions options{.priority = number(words[3]) != 0};
        if (timeout.count()) options.timeout = timeout;
        Asked asked{client().request_async(words[1], from_hex(words[2]), options),
                    std::chrono::ceil<std::chrono::seconds>(options.timeout)};
        const std::uint16_t id = asked.pending.id();
        asked_[id] = std::move(asked);
        return std::to_string(id);
    }

    std::string await_outcome(const Words& words) {
        check(words, 2, 2);
        const auto found = asked_.find(static_cast<std::uint16_t>(number(words[1])));
        if (found == asked_.end()) throw polybus::UsageError("no request with the id " + words[1] + " was made");
        Asked asked = std::move(found->second);
        asked_.erase(found);
        if (asked.is_left_behind)
            asked.pending = client().resume(static_cast<std::uint16_t>(number(words[1])), asked.timeout);
        return to_hex(asked.pending.get().text());
    }

    std::string cancel(const Words& words) {
        check(words, 2, 2);
        client().cancel(static_cast<std::uint16_t>(number(words[1])));
        return {};
    }

    std::string disconnect(const Words& words) {
        check(words, 2, words.size());
        std::string reason;
        for (std::size_t i = 2; i < words.size(); ++i) reason += (i > 2 ? " " : "") + words[i];
        polybus::Client& leaving = client();
        for (auto& [id, asked] : asked_)
            if (!asked.pending.is_done()) asked.is_left_behind = true;
        is_ending_ = true;
        leaving.disconnect(static_cast<int>(number(words[1])), reason);
        client_.reset();
        subscriptions_.clear();
        return {};
    }

    std::atomic<bool> is_ending_{false};
    std::map<std::string, polybus::Subscription> subscriptions_;
    std::map<std::uint16_t, Asked> asked_;
    std::unique_ptr<polybus::Client> client_;
};

} // namespace

int main() {
    Peer peer;
    for (std::string line; std::getline(std::cin, line);)
        if (!peer.obey(line)) break;
    peer.end();
}
