#include "outbox.hpp"

#include <algorithm>
#include <utility>

#include "../wire/codec.hpp"

namespace polybus::core {

namespace {

constexpr Duration fast = std::chrono::milliseconds(10);
constexpr Duration window = std::chrono::milliseconds(50);

} // namespace

void BulkWindow::arrived(Time now) { times_[count_++ % fast_messages] = now; }

bool BulkWindow::is_open(Time now, std::size_t waiting_bytes) {
    if (!deadline_) {
        if (count_ < fast_messages) return false;
        const Duration spread = times_[(count_ - 1) % fast_messages] - times_[count_ % fast_messages];
        if (spread >= fast * (fast_messages - 1)) return false;
        deadline_ = now + window;
    }
    if (now < *deadline_ && waiting_bytes < Outbox::chunk_bytes) return true;
    deadline_.reset();
    return false;
}

void Outbox::push(Lane which, Outgoing outgoing, Time now) {
    if (bulking_ == Bulking::fixed && which != Lane::control) window_.arrived(now);
    if (which == Lane::regular) regular_bytes_ += outgoing.bytes->size();
    lane(which).push_back(std::move(outgoing));
}

bool Outbox::fill(Time now) {
    if (!parts_.empty()) return true;
    std::size_t size = 0;
    for (const Lane which : {Lane::control, Lane::priority, Lane::regular}) {
        Queue& queue = lane(which);
        if (queue.empty()) continue;
        if (which != Lane::control && !is_open_) break;
        if (which == Lane::regular && bulking_ == Bulking::fixed && !hurries_ && window_.is_open(now, regular_bytes_))
            continue;
        const std::size_t before = parts_.size();
        gather(queue, size);
        part_lanes_.insert(part_lanes_.end(), parts_.size() - before, which);
        if (!queue.empty()) break; // the chunk is full
    }
    if (parts_.empty()) return false;
    make_chunk(size);
    return true;
}

void Outbox::gather(Queue& queue, std::size_t& size) {
    while (!queue.empty()) {
        const std::size_t more = queue.front().bytes->size();
        if (!parts_.empty() && size + more > chunk_bytes) return;
        if (&queue == &lane(Lane::regular)) regular_bytes_ -= more;
        size += more;
        parts_.push_back(std::move(queue.front()));
        queue.pop_front();
    }
}

void Outbox::make_chunk(std::size_t size) {
    position_ = 0;
    finished_ = 0;
    ends_.clear();
    chunk_.clear();
    in_place_ = parts_.size() == 1;
    if (in_place_) {
        ends_.push_back(size);
        return;
    }
    if (bulking_ != Bulking::off) wire::append_bulk_header(chunk_, size);
    for (const Outgoing& part : parts_) {
        chunk_ += *part.bytes;
        ends_.push_back(chunk_.size());
    }
}

std::string_view Outbox::pending() const {
    if (parts_.empty()) return {};
    return std::string_view(in_place_ ? *parts_.front().bytes : chunk_).substr(position_);
}

void Outbox::written(std::size_t size) {
    position_ += size;
    for (; finished_ < parts_.size() && ends_[finished_] <= position_; ++finished_) release(parts_[finished_]);
    if (finished_ == parts_.size()) {
        parts_.clear();
        part_lanes_.clear();
    }
}

void Outbox::release(const Outgoing& outgoing) {
    if (outgoing.ping) pings_.push_back(outgoing.ping);
    if (outgoing.kind == Outgoing::Kind::message) released_ += outgoing.bytes->size();
}

bool Outbox::is_empty() const {
    return parts_.empty() &&
           std::all_of(lanes_.begin(), lanes_.end(), [](const Queue& queue) { return queue.empty(); });
}

Outgoing* Outbox::half_written() {
    if (finished_ >= parts_.size()) return nullptr;
    const std::size_t begin = ends_[finished_] - parts_[finished_].bytes->size();
    return position_ > begin ? &parts_[finished_] : nullptr;
}

void Outbox::drop_half_written() {
    if (half_written()) release(parts_[finished_++]);
}

void Outbox::connection_lost() {
    is_open_ = false;
    for (std::size_t i = parts_.size(); i-- > finished_;) {
        if (part_lanes_[i] == Lane::regular) regular_bytes_ += parts_[i].bytes->size();
        lane(part_lanes_[i]).push_front(std::move(parts_[i]));
    }
    parts_.clear();
    part_lanes_.clear();
    pings_.clear();
    window_.reset();
    for (Queue& queue : lanes_)
        std::erase_if(queue, [&](const Outgoing& outgoing) {
            if (outgoing.kind == Outgoing::Kind::message) return false;
            if (&queue == &lane(Lane::regular)) regular_bytes_ -= outgoing.bytes->size();
            return true;
        });
}

std::vector<std::uint32_t> Outbox::take_pings() { return std::exchange(pings_, {}); }

std::size_t Outbox::take_released() { return std::exchange(released_, 0); }

} // namespace polybus::core
