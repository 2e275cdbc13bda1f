#include "subscriptions.hpp"

#include <utility>

namespace polybus::core {

namespace {

void tell(std::vector<SubscriptionBook::Waiter> waiters, int code, std::string_view reason) {
    for (const auto& waiter : waiters) waiter->acknowledged(code, reason);
}

} // namespace

std::uint16_t SubscriptionBook::new_id() {
    do ++last_id_;
    while (last_id_ == 0 || subscribing_.contains(last_id_) || unsubscribing_.contains(last_id_));
    return last_id_;
}

wire::Subscribe SubscriptionBook::want(std::string_view filter, std::optional<std::uint16_t> concurrency,
                                       Waiter waiter) {
    Wanted& wanted = wanted_[std::string(filter)];
    wanted.concurrency = concurrency;
    if (waiter) wanted.waiters.push_back(std::move(waiter));
    const std::uint16_t id = new_id();
    subscribing_.emplace(id, filter);
    return {id, std::string(filter), concurrency};
}

std::optional<wire::Unsubscribe> SubscriptionBook::drop(std::string_view filter, Waiter waiter, bool is_connected) {
    const auto found = wanted_.find(filter);
    const bool is_known = found != wanted_.end();
    if (is_known) {
        tell(std::move(found->second.waiters), static_cast<int>(wire::SubscribeReason::unspecified), "unsubscribed");
        wanted_.erase(found);
    }
    if (!is_connected) {
        using enum wire::UnsubscribeReason;
        if (waiter)
            waiter->acknowledged(static_cast<int>(is_known ? success : no_subscription_existed),
                                 is_known ? "" : "no subscription existed");
        return {};
    }
    const std::uint16_t id = new_id();
    unsubscribing_.emplace(id, std::move(waiter));
    return wire::Unsubscribe{id, std::string(filter)};
}

std::vector<wire::Subscribe> SubscriptionBook::renew() {
    std::vector<wire::Subscribe> again;
    for (const auto& [filter, wanted] : wanted_) {
        const std::uint16_t id = new_id();
        subscribing_.emplace(id, filter);
        again.push_back({id, filter, wanted.concurrency});
    }
    return again;
}

std::optional<SubscriptionBook::Lost> SubscriptionBook::acknowledged(const wire::SubAck& packet) {
    const auto asked = subscribing_.extract(packet.packet_id);
    if (!asked) return {};
    const auto found = wanted_.find(asked.mapped());
    if (found == wanted_.end()) return {};
    const int code = static_cast<int>(packet.reason);
    const std::string reason = packet.reason_string.value_or("");
    auto waiters = std::exchange(found->second.waiters, {});
    if (packet.reason == wire::SubscribeReason::success) {
        tell(std::move(waiters), 0, {});
        return {};
    }
    wanted_.erase(found);
    if (waiters.empty()) return Lost{asked.mapped(), code, reason};
    tell(std::move(waiters), code, reason);
    return {};
}

void SubscriptionBook::acknowledged(const wire::UnsubAck& packet) {
    const auto asked = unsubscribing_.extract(packet.packet_id);
    if (asked && asked.mapped())
        asked.mapped()->acknowledged(static_cast<int>(packet.reason), packet.reason_string.value_or(""));
}

void SubscriptionBook::connection_lost() {
    subscribing_.clear();
    for (const auto& [id, waiter] : std::exchange(unsubscribing_, {}))
        if (waiter) waiter->acknowledged(0, {});
}

void SubscriptionBook::close(std::string_view reason) {
    for (auto& [filter, wanted] : std::exchange(wanted_, {})) tell(std::move(wanted.waiters), closed, reason);
    for (const auto& [id, waiter] : std::exchange(unsubscribing_, {}))
        if (waiter) waiter->acknowledged(closed, reason);
    subscribing_.clear();
}

} // namespace polybus::core
