#pragma once

/// What callers may have to wait for: room for bytes, and free PacketIds.

#include <bitset>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>

#include "../core/clock.hpp"

namespace polybus::detail {

using core::Time;

enum class Granted { yes, timeout, closed };

/// So many bytes and no more; but one message always fits, however large.
class Budget {
public:
    explicit Budget(std::size_t limit) : limit_(limit) {}

    Granted take(std::size_t size, Time deadline) {
        std::unique_lock lock(mutex_);
        const auto fits = [&] { return is_closed_ || used_ == 0 || used_ + size <= limit_; };
        if (!fits() && !freed_.wait_until(lock, deadline, fits)) return Granted::timeout;
        if (is_closed_) return Granted::closed;
        used_ += size;
        return Granted::yes;
    }

    void give_back(std::size_t size) {
        {
            const std::lock_guard lock(mutex_);
            used_ -= size;
        }
        freed_.notify_all();
    }

    void close() {
        {
            const std::lock_guard lock(mutex_);
            is_closed_ = true;
        }
        freed_.notify_all();
    }

private:
    std::mutex mutex_;
    std::condition_variable freed_;
    std::size_t limit_;
    std::size_t used_ = 0;
    bool is_closed_ = false;
};

/// PacketIds that are not in use. They are given out in a circle, so that one is used again as late as possible.
class PacketIds {
public:
    explicit PacketIds(std::uint16_t last) : last_(last) {}

    Granted take(std::uint16_t& id, Time deadline) {
        std::unique_lock lock(mutex_);
        const auto is_free = [&] { return is_closed_ || in_use_ < count; };
        if (!is_free() && !freed_.wait_until(lock, deadline, is_free)) return Granted::timeout;
        if (is_closed_) return Granted::closed;
        do ++last_;
        while (last_ == 0 || used_[last_]);
        used_.set(last_);
        ++in_use_;
        id = last_;
        return Granted::yes;
    }

    /// False: it is in use.
    bool take_this(std::uint16_t id) {
        const std::lock_guard lock(mutex_);
        if (used_[id]) return false;
        used_.set(id);
        ++in_use_;
        return true;
    }

    void give_back(std::uint16_t id) {
        {
            const std::lock_guard lock(mutex_);
            used_.reset(id);
            --in_use_;
        }
        freed_.notify_one();
    }

    void close() {
        {
            const std::lock_guard lock(mutex_);
            is_closed_ = true;
        }
        freed_.notify_all();
    }

private:
    static constexpr std::size_t count = 65'535;

    std::mutex mutex_;
    std::condition_variable freed_;
    std::bitset<count + 1> used_;
    std::size_t in_use_ = 0;
    std::uint16_t last_;
    bool is_closed_ = false;
};

} // namespace polybus::detail
