#pragma once

/// A queue, and threads that work it off: as many as there is work for, up to a limit, started when first needed.

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace polybus::detail {

/// What an owner needs of a worker whatever its items are.
class WorkerBase {
public:
    virtual ~WorkerBase() = default;
    /// Takes nothing more. What is being worked on goes on, and so does what waits unless it is dropped.
    virtual void stop(bool drops) = 0;
    /// Waits until nothing is being worked on. A thread of this worker waits neither for itself nor for the others,
    /// which might be waiting for it.
    virtual void join() = 0;
};

template <class Item>
class Worker final : public WorkerBase, public std::enable_shared_from_this<Worker<Item>> {
public:
    using Work = std::function<void(Item&)>;

    Worker(std::size_t limit, Work work) : limit_(limit), work_(std::move(work)) {}

    ~Worker() override {
        for (std::thread& thread : threads_) thread.detach(); // its own last thread may be what destroys it
    }

    /// False if it was stopped.
    bool push(Item item) {
        const std::lock_guard lock(mutex_);
        if (is_stopped_) return false;
        queue_.push_back(std::move(item));
        if (idle_ >= queue_.size()) {
            ready_.notify_one();
        } else if (threads_.size() < limit_) {
            threads_.emplace_back([self = this->shared_from_this()] { self->run(); });
            ++alive_;
        }
        return true;
    }

    [[nodiscard]] std::size_t waiting() const {
        const std::lock_guard lock(mutex_);
        return queue_.size();
    }

    template <class Predicate>
    void remove_if(Predicate predicate) {
        const std::lock_guard lock(mutex_);
        std::erase_if(queue_, predicate);
    }

    void stop(bool drops) override {
        std::deque<Item> dropped; // its destructors may be the application's: without the lock
        const std::lock_guard lock(mutex_);
        is_stopped_ = true;
        if (drops) dropped.swap(queue_);
        ready_.notify_all();
    }

    void join() override {
        if (is_own_thread()) return;
        std::vector<std::thread> threads;
        {
            const std::lock_guard lock(mutex_);
            threads.swap(threads_);
        }
        for (std::thread& thread : threads) thread.join();
        // Somebody else may be joining.
        std::unique_lock lock(mutex_);
        done_.wait(lock, [&] { return alive_ == 0; });
    }

private:
    [[nodiscard]] bool is_own_thread() const { return current() == this; }

    static const void*& current() {
        thread_local const void* worker = nullptr;
        return worker;
    }

    void run() {
        current() = this;
        std::unique_lock lock(mutex_);
        for (;;) {
            ++idle_;
            ready_.wait(lock, [&] { return is_stopped_ || !queue_.empty(); });
            --idle_;
            if (queue_.empty()) break;
            {
                Item item = std::move(queue_.front());
                queue_.pop_front();
                lock.unlock();
                work_(item);
            }
            lock.lock();
        }
        --alive_;
        done_.notify_all();
    }

    const std::size_t limit_;
    const Work work_;
    mutable std::mutex mutex_;
    std::condition_variable ready_;
    std::condition_variable done_;
    std::deque<Item> queue_;
    std::vector<std::thread> threads_;
    std::size_t idle_ = 0;
    std::size_t alive_ = 0;
    bool is_stopped_ = false;
};

} // namespace polybus::detail
