#pragma once

/// Things that happen in other threads, to be looked at from the test's.

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include <polybus/polybus.hpp>

template <class T>
class Recorded {
public:
    void add(T value) {
        const std::lock_guard lock(mutex_);
        values_.push_back(std::move(value));
    }
    [[nodiscard]] std::vector<T> all() const {
        const std::lock_guard lock(mutex_);
        return values_;
    }
    [[nodiscard]] std::size_t size() const {
        const std::lock_guard lock(mutex_);
        return values_.size();
    }

private:
    mutable std::mutex mutex_;
    std::vector<T> values_;
};

class Events : public Recorded<polybus::Event> {
public:
    std::function<void(const polybus::Event&)> recorder() {
        return [this](const polybus::Event& event) { add(event); };
    }

    template <class E>
    [[nodiscard]] std::vector<E> of() const {
        std::vector<E> list;
        for (const polybus::Event& event : all())
            if (const auto* wanted = std::get_if<E>(&event)) list.push_back(*wanted);
        return list;
    }

    template <class E>
    [[nodiscard]] std::size_t count() const {
        return of<E>().size();
    }
};

/// A door that one thread waits at until another one opens it.
class Gate {
public:
    void open() {
        const std::lock_guard lock(mutex_);
        is_open_ = true;
        opened_.notify_all();
    }
    [[nodiscard]] bool is_open() const {
        const std::lock_guard lock(mutex_);
        return is_open_;
    }
    void wait() {
        std::unique_lock lock(mutex_);
        opened_.wait(lock, [&] { return is_open_; });
    }

private:
    mutable std::mutex mutex_;
    std::condition_variable opened_;
    bool is_open_ = false;
};
