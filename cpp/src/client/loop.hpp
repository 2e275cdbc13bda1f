#pragma once

/// The I/O thread: owns the state machine and the socket, reads and writes in batches, and reconnects.

#include <exception>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "../core/reconnect.hpp"
#include "../core/session.hpp"
#include "../net/link.hpp"
#include "engine.hpp"

namespace polybus::detail {

class Loop final : public core::Listener {
public:
    explicit Loop(Engine& engine);

    void run();

private:
    using Phase = enum { waiting, connecting, talking, draining };

    // Listener
    void on_connected(std::size_t resent, std::size_t renewed) override;
    void on_message(const wire::PublishView& message) override;
    void on_request(const wire::PublishView& request) override;
    void on_withdrawn(std::string_view requester, std::uint16_t packet_id) override;
    void on_subscription_lost(const std::string& filter, int code, const std::string& reason) override;
    void on_message_refused(std::string_view topic, std::size_t size_bytes, const std::string& reason) override;

    void obey_commands(Time now);
    void obey(PublishCommand& command, Time now);
    void obey(RequestCommand& command, Time now);
    void obey(ResumeCommand& command, Time now);
    void obey(CancelCommand& command, Time now);
    void obey(ReplyCommand& command, Time now);
    void obey(SubscribeCommand& command, Time now);
    void obey(EndCommand& command, Time now);
    void obey(UnsubscribeCommand& command, Time now);
    void obey(FlushCommand& command, Time now);
    void obey(CloseCommand& command, Time now);

    void open_link(Time now);
    void advance_link(Time now);
    void read_in(Time now);
    void write_out(Time now);
    void check_ending(Time now);
    void attempt_failed(std::exception_ptr error, const std::string& reason, bool is_final, Time now);
    void give_up_waiting(Time now);
    void refused(const wire::ConnAck& refusal, Time now);
    void lost(const std::string& reason, Time now);
    void schedule_reconnect(const std::string& reason, Time now);
    void check_leaving(Time now);
    void finish(const std::string& reason);
    void wait(Time now);

    void deliver(const std::shared_ptr<Handling>& handling, const wire::PublishView& message);
    void deliver_inline(Handling& handling, const wire::PublishView& publish);
    void reply(const Hand& hand, core::Bytes bytes, bool is_priority);
    void withdraw_all();
    void report_dropped();

    Engine& engine_;
    core::Session session_;
    core::Reconnect reconnect_;
    std::unique_ptr<net::TlsContext> tls_;
    std::unique_ptr<net::Link> link_;
    Phase phase_ = waiting;
    Time phase_deadline_{};
    bool is_first_ = true; ///< no connection so far
    bool is_write_broken_ = false;
    bool is_over_ = false;
    std::optional<CloseCommand> closing_;
    std::optional<Time> close_deadline_;
    std::string over_reason_;
    Time now_{};

    std::vector<Command> commands_;
    Directory directory_;
    std::unordered_map<std::string, std::shared_ptr<Hand>> hands_; ///< by requester and PacketId
    std::unordered_map<std::string, std::size_t> dropped_;         ///< by filter, not reported yet
    Message inline_message_;
    std::minstd_rand random_;
};

} // namespace polybus::detail
