// A process of the generator's own, so that one part of it does not wait for another. It answers orders of one
// character over a socket, and ends when that is closed.
#pragma once

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <functional>
#include <memory>
#include <type_traits>

#include "net.hpp"

class Control {
public:
    explicit Control(net::Fd fd) : fd_(std::move(fd)) {}

    int fd() const { return fd_.get(); }

    // 0 when the other side is gone.
    char next_order() const {
        char order = 0;
        return recv(fd_.get(), &order, 1, 0) == 1 ? order : '\0';
    }

    template <typename Answer>
    void answer(const Answer& answer) const {
        static_assert(std::is_trivially_copyable_v<Answer>);
        send_all(ANSWER, std::string_view(reinterpret_cast<const char*>(&answer), sizeof answer));
    }

    void complain(std::string_view reason) const { send_all(COMPLAINT, reason); }

    void order(char order) const { send(fd_.get(), &order, 1, MSG_NOSIGNAL); }

    // Waits for it; a complaint becomes an exception.
    template <typename Answer>
    Answer await() const {
        static_assert(std::is_trivially_copyable_v<Answer>);
        char text[4096];
        const ssize_t got = recv(fd_.get(), text, sizeof text, 0);
        if (got <= 0) throw std::runtime_error("a part of the generator ended before its time");
        const std::string_view body(text + 1, static_cast<std::size_t>(got) - 1);
        if (text[0] == COMPLAINT) throw std::runtime_error(std::string(body));
        Answer answer;
        if (body.size() != sizeof answer) throw std::runtime_error("a part of the generator is out of step");
        std::copy(body.begin(), body.end(), reinterpret_cast<char*>(&answer));
        return answer;
    }

private:
    static constexpr char ANSWER = 'A';
    static constexpr char COMPLAINT = 'C';

    void send_all(char kind, std::string_view body) const {
        const std::string text = kind + std::string(body.substr(0, 4000));
        send(fd_.get(), text.data(), text.size(), MSG_NOSIGNAL);
    }

    net::Fd fd_;
};

class Child {
public:
    explicit Child(const std::function<void(const Control&)>& work) : Child(make_pair(), work) {}
    Child(const Child&) = delete;
    Child& operator=(const Child&) = delete;
    ~Child() {
        control_.reset();
        waitpid(pid_, nullptr, 0);
    }

    const Control& control() const { return *control_; }
    pid_t pid() const { return pid_; }

    template <typename Answer>
    Answer ask(char order) const {
        control_->order(order);
        return control_->await<Answer>();
    }

private:
    using Pair = std::pair<net::Fd, net::Fd>;

    static Pair make_pair() {
        int fds[2];
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) < 0) net::fail("socketpair");
        return {net::Fd(fds[0]), net::Fd(fds[1])};
    }

    Child(Pair pair, const std::function<void(const Control&)>& work) : pid_(fork()) {
        if (pid_ < 0) net::fail("fork");
        if (pid_ > 0) {
            control_ = std::make_unique<Control>(std::move(pair.first));
            return;
        }
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        pair.first.reset();
        const Control control(std::move(pair.second));
        try {
            work(control);
        } catch (const std::exception& error) {
            control.complain(error.what());
            control.next_order();  // stays until it was read
        }
        _exit(0);
    }

    pid_t pid_;
    std::unique_ptr<Control> control_;
};

// Without this the kernel may be 50 µs late with every timer.
inline void be_punctual() { prctl(PR_SET_TIMERSLACK, 1UL); }
