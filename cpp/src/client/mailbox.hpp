#pragma once

/// What other threads ask of the I/O thread: a list, and a pipe to wake it up once for many.

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "../core/session.hpp"
#include "../net/link.hpp"
#include "handling.hpp"

namespace polybus::detail {

struct PublishCommand {
    core::Bytes bytes;
    bool is_priority = false;
};
struct RequestCommand {
    std::shared_ptr<core::Request> request;
};
struct ResumeCommand {
    std::shared_ptr<core::Request> request;
};
struct CancelCommand {
    std::uint16_t id = 0;
};
/// A service is done with a request. No bytes: it was not to be answered any more.
struct ReplyCommand {
    std::shared_ptr<Hand> hand;
    core::Bytes bytes;
    bool is_priority = false;
};
struct SubscribeCommand {
    std::shared_ptr<Handling> handling;
    core::SubscriptionBook::Waiter waiter;
};
/// One handling ends; the broker is told what is left of its filter.
struct EndCommand {
    std::shared_ptr<Handling> handling;
    core::SubscriptionBook::Waiter waiter;
    bool is_refused = false; ///< the broker knows nothing of it
};
/// A filter ends, with all its handlings.
struct UnsubscribeCommand {
    std::string filter;
    core::SubscriptionBook::Waiter waiter;
};
struct FlushCommand {
    std::shared_ptr<core::Flush> waiter;
};
struct CloseCommand {
    int code = 0;
    std::string reason;
};

using Command = std::variant<PublishCommand, RequestCommand, ResumeCommand, CancelCommand, ReplyCommand,
                             SubscribeCommand, EndCommand, UnsubscribeCommand, FlushCommand, CloseCommand>;

class Mailbox {
public:
    Mailbox();

    /// False if nobody will read it. The I/O thread itself need not be woken.
    bool put(Command command, bool wakes = true);
    [[nodiscard]] bool is_empty();
    /// Everything there is; `commands` lends its memory.
    void take(std::vector<Command>& commands);
    /// Everything there is, and nothing more after it.
    std::vector<Command> close();

    [[nodiscard]] int wake_descriptor() const { return reader_.get(); }
    /// The pipe's bytes, when it has any.
    void drain_pipe();

private:
    std::mutex mutex_;
    std::vector<Command> commands_;
    bool is_signaled_ = false;
    bool is_closed_ = false;
    net::Descriptor reader_;
    net::Descriptor writer_;
};

} // namespace polybus::detail
