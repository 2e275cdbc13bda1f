#include "mailbox.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace polybus::detail {

Mailbox::Mailbox() {
    int ends[2];
    if (::pipe(ends) != 0) throw ConnectionFailed("no pipe could be made: " + std::generic_category().message(errno));
    reader_ = net::Descriptor(ends[0]);
    writer_ = net::Descriptor(ends[1]);
    for (const int end : ends) {
        ::fcntl(end, F_SETFD, FD_CLOEXEC);
        ::fcntl(end, F_SETFL, O_NONBLOCK);
    }
}

bool Mailbox::put(Command command, bool wakes) {
    {
        const std::lock_guard lock(mutex_);
        if (is_closed_) return false;
        commands_.push_back(std::move(command));
        if (!wakes || std::exchange(is_signaled_, true)) return true;
    }
    const char byte = 0;
    // A full pipe wakes as well as one more byte would.
    [[maybe_unused]] const ssize_t count = ::write(writer_.get(), &byte, 1);
    return true;
}

bool Mailbox::is_empty() {
    const std::lock_guard lock(mutex_);
    return commands_.empty();
}

void Mailbox::take(std::vector<Command>& commands) {
    commands.clear();
    const std::lock_guard lock(mutex_);
    commands.swap(commands_);
    is_signaled_ = false;
}

std::vector<Command> Mailbox::close() {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
    return std::exchange(commands_, {});
}

void Mailbox::drain_pipe() {
    char bytes[64];
    while (::read(reader_.get(), bytes, sizeof bytes) > 0) {
    }
}

} // namespace polybus::detail
