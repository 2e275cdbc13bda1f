#include "requests.hpp"

#include <algorithm>

namespace polybus::core {

namespace {

constexpr Duration tick = std::chrono::milliseconds(50);

struct Ending {
    Outcome::End end;
    const char* words;
};

// What REQACK says about a request, to its requester.
std::optional<Ending> ending_of(wire::RequestState state) {
    using enum wire::RequestState;
    switch (state) {
    case canceled: return Ending{Outcome::End::canceled, "the request was canceled"};
    case deleted: return Ending{Outcome::End::deleted, "the request was deleted from the broker's storage"};
    case timed_out: return Ending{Outcome::End::timed_out, "no answer in time"};
    case not_delivered: return Ending{Outcome::End::not_delivered, "the request could not be delivered"};
    case error: return Ending{Outcome::End::service_error, "the service failed"};
    case delivered:
    case unknown: return {};
    }
    return {};
}

} // namespace

RequestBook::Ticks RequestBook::ticks_of(Time time) { return time.time_since_epoch() / tick + 1; }

void RequestBook::watch(const Request& request, Time deadline) {
    deadlines_[ticks_of(deadline)].emplace_back(request.id, request.number);
}

void RequestBook::add(std::shared_ptr<Request> request) {
    request->number = ++last_number_;
    watch(*request, request->deadline);
    const std::uint16_t id = request->id;
    requests_.insert_or_assign(id, std::move(request));
}

Request* RequestBook::find(std::uint16_t id) const {
    const auto found = requests_.find(id);
    return found == requests_.end() ? nullptr : found->second.get();
}

void RequestBook::erase(std::uint16_t id) {
    const auto found = requests_.find(id);
    const std::shared_ptr<Request> request = std::move(found->second);
    requests_.erase(found);
    request->forgotten();
}

bool RequestBook::answered(std::uint16_t id, std::string_view payload) {
    Request* request = find(id);
    if (!request) return false;
    if (!request->is_ended) {
        request->is_ended = true;
        request->end({Outcome::End::answered, polybus::Bytes(payload), {}, id});
    }
    erase(id);
    return true;
}

bool RequestBook::acknowledged(std::uint16_t id, wire::RequestState state, std::string_view reason) {
    Request* request = find(id);
    if (!request) return false;
    std::optional<Ending> ending = ending_of(state);
    // "There is nothing to cancel": it ended, and the news of that got lost.
    if (state == wire::RequestState::unknown && (request->is_canceled || request->is_ended))
        ending = ending_of(wire::RequestState::canceled);
    if (!ending) return true;
    finish(id, ending->end, std::string(reason.empty() ? ending->words : reason));
    return true;
}

void RequestBook::finish(std::uint16_t id, Outcome::End end, std::string reason) {
    Request* request = find(id);
    if (!request) return;
    if (!request->is_ended) {
        request->is_ended = true;
        request->end({end, {}, std::move(reason), id});
    }
    erase(id);
}

void RequestBook::finish_all(Outcome::End end, const std::string& reason) {
    while (!requests_.empty()) finish(requests_.begin()->first, end, reason);
    deadlines_.clear();
}

std::vector<Request*> RequestBook::unfinished() const {
    std::vector<Request*> list;
    for (const auto& [id, request] : requests_)
        if (!request->is_ended) list.push_back(request.get());
    std::sort(list.begin(), list.end(), [](const Request* a, const Request* b) { return a->number < b->number; });
    return list;
}

std::optional<Time> RequestBook::deadline() const {
    if (deadlines_.empty()) return {};
    return Time(deadlines_.begin()->first * tick);
}

std::vector<Request*> RequestBook::expire(Time now) {
    std::vector<Request*> expired;
    while (!deadlines_.empty() && Time(deadlines_.begin()->first * tick) <= now) {
        const auto passed = std::move(deadlines_.extract(deadlines_.begin()).mapped());
        for (const auto& [id, number] : passed) {
            Request* request = find(id);
            if (!request || request->number != number) continue;
            if (request->is_ended) { // its quarantine is over
                erase(id);
                continue;
            }
            if (!request->connection && request->bytes) { // never sent: nobody else knows this id
                finish(id, Outcome::End::timed_out, "no connection in time");
                continue;
            }
            request->is_ended = true;
            watch(*request, now + quarantine);
            expired.push_back(request);
            request->end({Outcome::End::timed_out, {}, "no answer in time", id});
        }
    }
    return expired;
}

} // namespace polybus::core
